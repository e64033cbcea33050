/** Rows, sources and files that are not what was expected: each is refused in words, and no word of an answer is in the message. */
import { execFile } from 'node:child_process';
import { mkdtemp, open, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { TaskRow, TaskSource } from './rows.ts';
import { givenRows } from './rows.ts';
import { openTaskFile } from './task-file.ts';
import { readTasks } from './tasks.ts';

let dir = '';
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'hostile-rows-'));
});
afterAll(() => rm(dir, { recursive: true }));

const rows = (...given: readonly unknown[]) => readTasks(given as TaskRow[], { name: 'rows' });
const refused = (message: string) => ({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });
async function file(name: string, content: string | Uint8Array) {
  await writeFile(join(dir, name), content);
  return await readTasks(join(dir, name));
}

describe('a row given as a value', () => {
  it('that throws when it is read is told as such', async () => {
    const broken = {
      get deep(): never {
        throw new Error('no database');
      },
    };
    await expect(rows({ prompt: 'a', metadata: broken })).rejects.toMatchObject(
      refused('row 1: metadata: reading it threw: no database'),
    );
    const top = {
      get prompt(): never {
        throw new Error('no database');
      },
    };
    await expect(rows(top)).rejects.toMatchObject(refused('threw after 1 rows: no database'));
  });

  it('that holds itself is nested too deeply', async () => {
    const twice: Record<string, unknown> = {};
    Object.assign(twice, { a: twice });
    await expect(rows({ prompt: 'a', metadata: twice })).rejects.toMatchObject(refused('nested deeper'));
  });

  it.each([
    [{ prompt: 'half \ud83d' }, 'surrogate'],
    [{ prompt: 'a', metadata: { 'k\udc00': 1 } }, 'surrogate'],
    [{ prompt: 'a', answer: new Array(2) }, 'answer.0: expected JSON, found undefined'],
    [{ prompt: 'a', answer: new Map([['x', 1]]) }, 'found a Map'],
    [{ prompt: 'a', answer: new (class {})() }, 'found an object of a class'],
    [JSON.parse('{"prompt":"a","__proto__":{"answer":1}}'), 'unknown column __proto__'],
    [{ prompt: 'a', metadata: { list: [{}] } }, 'found an empty object in the list'],
    [{ prompt: 'a', metadata: Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`k${i}`, {}])) }, 'showing first 5'],
    [Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`k${i}`, 1])), 'showing first 5'],
  ])('is refused: case %#', async (row, message) => {
    await expect(rows(row, row)).rejects.toMatchObject(refused(message));
  });

  it('may hold NUL, and magic keys that change nothing', async () => {
    const [task] = await rows({ prompt: 'a\0b', metadata: JSON.parse('{"__proto__":{"isAdmin":true},"constructor":1}') });
    expect(task?.prompt[0]?.content).toBe('a\0b');
    expect(Object.keys(task?.metadata as object)).toEqual(['__proto__', 'constructor']);
    expect(({} as { isAdmin?: boolean }).isAdmin).toBeUndefined();
  });
});

describe('a source', () => {
  it.each([5, null, {}, () => []])('that is none: %s', async (source) => {
    await expect(readTasks(source as unknown as TaskSource)).rejects.toMatchObject(
      refused('expected the path of a file, a list'),
    );
  });

  it('that does not answer is given up, one that is left early is closed', async () => {
    const silent = { [Symbol.asyncIterator]: () => ({ next: () => new Promise<never>(() => {}) }) };
    await expect(givenRows(silent, 20).next()).rejects.toMatchObject(refused('gave no row for 0.02 s'));
    let isClosed = false;
    const bad = (async function* () {
      try {
        for (;;) yield { prompt: '' };
      } finally {
        isClosed = true;
      }
    })();
    await expect(readTasks(bad)).rejects.toMatchObject(refused('showing first 5'));
    expect(isClosed).toBe(true);
  });

  it('that never ends, or is too large for the memory, ends in words and not in a crash', async () => {
    const script = `
      import { readTasks } from ${JSON.stringify(new URL('./tasks.ts', import.meta.url).href)};
      const rows = (function* () { for (let i = 0; ; i++) yield { prompt: 'question ' + i + ' lorem ipsum'.repeat(10_000) }; })();
      await readTasks(rows).catch((error) => console.log(error.code, error.message, error.hint));`;
    const args = ['--max-old-space-size=200', '--input-type=module', '-e', script];
    const { stdout } = await promisify(execFile)(process.execPath, args);
    expect(stdout).toMatch(
      /^DATASET_INVALID the list: the first \d+ rows take more than \d+ MiB of memory .*--max-old-space-size/,
    );
  }, 30_000);
});

describe('a file', () => {
  const line = '{"prompt":"a","answer":"SECRET"}\n';

  it.each([
    ['packed.jsonl.gz', gzipSync(line), 'packed by gzip'],
    ['packed.jsonl', gzipSync(line), 'packed by gzip'],
    ['packed.csv', zstdCompressSync(line), 'packed by zstd'],
    ['sheet.csv', Buffer.from('PK\u0003\u0004rest'), 'a ZIP archive or a spreadsheet'],
    ['wide.csv', Buffer.from(`\ufeff${line}`, 'utf16le'), 'UTF-16'],
    ['list.json', `[${line.trim()}]`, 'list.json is a JSON list, expected one JSON object a line'],
    ['pretty.json', JSON.stringify({ prompt: 'a' }, null, 2), 'goes on over more lines'],
    ['semicolons.csv', 'prompt;answer\na;1\n', 'expected columns separated by commas, found ";"'],
    ['tabs.csv', 'prompt\tanswer\na\t1\n', 'expected columns separated by commas, found tabs'],
    ['empty.csv', '', 'holds no task'],
    ['header.csv', 'prompt,answer\n', 'holds no task'],
    ['magic.csv', '__proto__,prompt\n1,a\n', 'unknown column __proto__'],
    ['twice.jsonl', '{"prompt":"a","answer":"SECRET","answer":"other"}\n', 'line 1: an object has one key twice'],
    ['deep-twice.jsonl', '{"prompt":"a","metadata":{"x":[{"SECRET":1,"SECRET":2}]}}\n', 'line 1: an object has one key twice'],
    ['huge.jsonl', '{"prompt":"a","answer":1e999}\n', 'answer: expected a finite number'],
    ['cells.csv', `prompt,answer\n${'"x",'.repeat(3)}\n`, 'expected 2 columns, got 4'],
  ])('%s is refused', async (name, content, message) => {
    const thrown = await file(name, content).catch((error: Error) => error);
    expect(thrown).toMatchObject(refused(message));
    expect(String(thrown)).not.toContain('SECRET');
  });

  it('with keys written in every way that is one key is read', async () => {
    expect(await file('escaped.jsonl', '{"prompt":"a: {\\"b\\": 1}","answer":{"a:b":{"c":":"}}}\n')).toMatchObject([
      { answer: { 'a:b': { c: ':' } } },
    ]);
  });

  it.each(['grows', 'shrinks', 'changes'])('that %s while it is read is refused', async (how) => {
    const path = join(dir, `${how}.jsonl`);
    await writeFile(path, line.repeat(20_000));
    await using data = await openTaskFile(path);
    const chunks = data.chunks();
    await chunks.next();
    await using writer = await open(path, 'r+');
    if (how === 'grows') await writer.write(line, 20_000 * line.length);
    else if (how === 'shrinks') await writer.truncate(300_000);
    else await writer.write('{"prompt":"b"', 0);
    await writer.utimes(1, 1);
    const rest = async (): Promise<void> => {
      for await (const chunk of chunks) expect(chunk.length).toBeGreaterThan(0);
    };
    await expect(rest()).rejects.toMatchObject(refused('was changed while it was read'));
  });
});
