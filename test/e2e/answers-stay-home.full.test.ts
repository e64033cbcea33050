/**
 * With isolation 'process' an answer never reaches the process of the agent, whatever file it comes from: the agent looks for it in every
 * byte of its own memory. What it may see, it finds there by the same search.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { scratch, trainyard } from '../cli/command.ts';
import { hasSandbox } from '../fixtures/sandbox.ts';

const ENTRY = `
import { appendFileSync, closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync, writeFileSync } from 'node:fs';
import { defineGrader, defineWorkflow } from 'trainyard';
const note = (name: string, value: unknown) => appendFileSync('NOTES/' + name, JSON.stringify(value) + '\\n');

/** What this process has open. */
const files = () => readdirSync('/proc/self/fd').flatMap((fd) => { try { return [readlinkSync('/proc/self/fd/' + fd)]; } catch { return []; } });

/** Words of 32 hexadecimal digits after a prefix, in all memory that can be written to. */
function inMemory(prefix: string): string[] {
  const words = new Set<string>();
  const memory = openSync('/proc/self/mem', 'r');
  for (const line of readFileSync('/proc/self/maps', 'utf8').split('\\n')) {
    const [, from, to, rights] = /^([0-9a-f]+)-([0-9a-f]+) (\\S+)/.exec(line) ?? [];
    if (from === undefined || to === undefined || !rights?.startsWith('rw')) continue;
    const [start, end] = [Number('0x' + from), Number('0x' + to)];
    for (let at = start; at < end; at += 2 ** 22) {
      const bytes = Buffer.alloc(Math.min(2 ** 22 + 256, end - at));
      try { readSync(memory, bytes, 0, bytes.length, at); } catch { continue; }
      for (const encoding of ['latin1', 'utf16le'] as const) {
        const needle = Buffer.from(prefix, encoding);
        for (let i = bytes.indexOf(needle); i !== -1; i = bytes.indexOf(needle, i + 1)) {
          const word = bytes.subarray(i, i + needle.length * 8).toString(encoding).slice(prefix.length, prefix.length + 32);
          if (/^[0-9a-f]{32}$/.test(word)) words.add(word);
        }
      }
    }
  }
  closeSync(memory);
  return [...words];
}

export default defineWorkflow({ isolation: 'process', run: async (ctx) => {
  await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  const found = { secret: inMemory('SEC' + 'RET-'), open: inMemory('OP' + 'EN-'), ctx, env: process.env, argv: process.argv, files: files() };
  writeFileSync(ctx.artifactsDir + '/found', JSON.stringify(found));
  return 'done';
} });
export const grader = defineGrader(({ task, turns, artifactsDir }) => {
  note('found.txt', JSON.parse(readFileSync(artifactsDir + '/found', 'utf8')));
  note('graded.txt', { answer: task.answer, asked: turns.map(({ request }) => request) });
  return 1;
});
`;

let home: Awaited<ReturnType<typeof scratch>>;
let notes = '';
beforeAll(async () => {
  home = await scratch();
  notes = await mkdtemp(join(tmpdir(), 'notes-'));
});
afterAll(async () => {
  await home.remove();
  await rm(notes, { recursive: true });
});

const word = () => randomBytes(16).toString('hex');

it.skipIf(!hasSandbox).each(['jsonl', 'csv', 'parquet'])('from %s', { timeout: 60_000 }, async (format) => {
  const rows = Array.from({ length: 3 }, (_, i) => ({
    prompt: `Question ${i}?`,
    answer: `SECRET-${word()}`,
    metadata: { k: `OPEN-${word()}` },
  }));
  const file = join(home.dir, `tasks.${format}`);
  await writeFile(file, written(rows, format));
  const entry = await home.write(
    `agent-${format}.ts`,
    ENTRY.replace('NOTES', notes).replaceAll('found.txt', `found-${format}.txt`).replaceAll('graded.txt', `graded-${format}.txt`),
  );
  const { code, stderr } = await trainyard('eval', entry, '--held-out', file, '--workflow-workers', '1', '--threads', '1');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const linesOf = async (name: string) => (await readFile(join(notes, name), 'utf8')).trim().split('\n');
  const found = (await linesOf(`found-${format}.txt`)).map(
    (line) => JSON.parse(line) as { secret: string[]; open: string[]; files: string[] },
  );
  const open = new Set(found.flatMap((each) => each.open));
  for (const { metadata } of rows) expect(open).toContain(metadata.k.slice('OPEN-'.length));
  expect(found.map(({ secret }) => secret)).toEqual([[], [], []]);
  for (const { files } of found) {
    expect(files).not.toEqual([]);
    expect(files).not.toContain(file);
  }
  const [seen, graded] = [(await linesOf(`found-${format}.txt`)).join(), await linesOf(`graded-${format}.txt`)];
  for (const { answer } of rows) expect(seen).not.toContain(answer);
  const reports = graded.map((line) => JSON.parse(line) as { answer: string; asked: unknown });
  expect(reports.map(({ answer }) => answer).toSorted()).toEqual(rows.map(({ answer }) => answer).toSorted());
  expect(JSON.stringify(reports.map(({ asked }) => asked))).not.toContain('SECRET-');
});

type Row = { readonly prompt: string; readonly answer: string; readonly metadata: object };

function written(rows: readonly Row[], format: string): string | Uint8Array {
  if (format === 'jsonl') return rows.map((row) => JSON.stringify(row)).join('\n');
  const cells = rows.map(({ prompt, answer, metadata }) => [prompt, answer, JSON.stringify(metadata)]);
  const names = ['prompt', 'answer', 'metadata'];
  if (format === 'csv') {
    return [names, ...cells].map((record) => record.map((cell) => `"${cell.replaceAll('"', '""')}"`).join(',')).join('\n');
  }
  const columnData = names.map((name, column) => ({
    name,
    data: cells.map((record) => record[column] ?? ''),
    type: 'STRING' as const,
  }));
  return new Uint8Array(parquetWriteBuffer({ columnData }));
}
