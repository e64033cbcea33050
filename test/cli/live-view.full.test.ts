/** The whole command at a terminal: a real, tiny run, drawn on a pseudo-terminal and judged by what is on the screen at the end. */
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { ROOT, start, useScratch } from './command.ts';
import { onTerminal, type TerminalOptions } from './pty.ts';

/** Rewards differ within a group whatever the policy says. */
const ENTRY = `
import { writeSync } from 'node:fs';
import OpenAI from 'openai';
import { defineGrader, defineWorkflow } from 'trainyard';
let rollouts = 0;
export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  if (ctx.task.id === 'slow') writeSync(1, 'waiting\\n');
  if (ctx.task.id === 'slow') await new Promise((resolve) => setTimeout(resolve, 50_000));
  await client.chat.completions.create({ model: model.name, messages: [...ctx.prompt] as never, max_tokens: 8 });
  console.log('the agent says ' + ++rollouts);
});
export const grader = defineGrader(({ messages }) => (messages.at(-1)?.content ?? '').length % 2);
`;
const CONTROL = '\u001b';

const home = useScratch();
beforeAll(async () => {
  await home.write('agent.ts', ENTRY);
  const tasks = (count: number): string => Array.from({ length: count }, (_, i) => `{"id":"t${i}","prompt":"${i}?"}`).join('\n');
  await home.write('train.jsonl', tasks(6));
  await home.write('held-out.jsonl', tasks(3));
  await home.write('slow.jsonl', '{"id":"slow","prompt":"?"}');
});

const MAIN = ['--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts')];
const trainArgs = (run: string, steps: number): string[] => [
  ...['train', join(home.dir, 'agent.ts'), '--run', join(home.dir, run), '--steps', `${steps}`],
  ...['--groups-per-step', '2', '--group', '4'],
];
const shownBy = (args: readonly string[], options: TerminalOptions) => onTerminal([process.execPath, ...MAIN, ...args], options);

describe('trainyard train at a terminal', () => {
  it.each([
    [80, { NO_COLOR: '1' }],
    [40, {}],
  ])('of %i columns ends with one clean view, the summary, and the cursor shown', async (columns, env) => {
    const { terminal, ended, raw } = shownBy(trainArgs(`run-${columns}`, 3), { columns, rows: 30, env });
    expect(await ended).toBe(0);
    const lines = terminal.text;
    const rowsOf = (name: string): readonly string[] => lines.filter((line) => line.startsWith(name));
    for (const name of ['step ', 'reward ', 'held out ', 'time ', 'tokens/s ', 'groups '])
      expect(rowsOf(name).length, name).toBe(1);
    expect(rowsOf('step ')[0]).toMatch(/━ {2}3\/3$/);
    expect(rowsOf('now ')).toEqual([]);
    expect(rowsOf('Done in').length).toBe(1);
    expect(terminal.cursorShown).toBe(true);
    expect(lines.filter((line) => line.includes('the agent says'))).toEqual([]);
    expect(lines.filter((line) => line.startsWith('warning PRINTS_KEPT: ')).length, 'says once where they are').toBe(1);
    const view = lines.slice(
      lines.findIndex((line) => line.includes('agent.ts ·')),
      lines.findIndex((line) => /^Done/.test(line)),
    );
    for (const line of view) expect(line).toMatch(/^(?:$|agent\.ts|step|reward|held out|time|tokens\/s|groups|logprobs| {10})/);
    expect(raw().includes(`${CONTROL}[36m`)).toBe(columns === 40);
  });

  it('prints an error below what it had shown, and nothing else when it never began', async () => {
    const { terminal, ended, raw } = shownBy(['train', join(home.dir, 'none.ts')], {});
    expect(await ended).toBe(2);
    expect(terminal.text[0]).toMatch(/^error FILE_NOT_FOUND: /);
    expect(raw()).not.toContain(CONTROL);
  });

  it.each([
    ['a dumb terminal', { TERM: 'dumb' }],
    ['continuous integration', { CI: 'true', NO_COLOR: '1' }],
  ])('of %s gets plain lines', async (name, env) => {
    const { terminal, ended, raw } = shownBy(trainArgs(`run-${name}`, 1), { columns: 200, env });
    expect(await ended).toBe(0);
    expect(raw()).not.toContain(CONTROL);
    expect(terminal.text.filter((line) => /^step {3}1 {2}reward/.test(line)).length).toBe(1);
  });
});

describe('in a pipe', () => {
  it.each([
    ['SIGINT', 130, 'stopping'],
    ['SIGTERM', 143, 'finishing what is in hand'],
  ] as const)(
    'trainyard eval whose rollouts do not end is stopped by the first %s and ends with %i',
    async (signal, code, doing) => {
      const flags = ['--held-out', join(home.dir, 'slow.jsonl'), '--run', join(home.dir, signal)];
      const { child, ended, prints } = start(['eval', join(home.dir, 'agent.ts'), ...flags]);
      await prints('waiting');
      child.kill(signal);
      const { code: found, stdout, stderr } = await ended;
      expect(stdout).toContain(`warning INTERRUPTED: ${doing}; once more to leave at once`);
      expect(stderr).toMatch(/^Interrupted\n {2}go on with: .*trainyard.* eval --resume .*\n$/);
      expect(found).toBe(code);
    },
  );

  it('trainyard eval that is stopped before anything ran says so, in text and as the last event', async () => {
    const late = `import { defineGrader, defineWorkflow } from 'trainyard';
console.error('importing');
await new Promise((resolve) => { setInterval(() => {}, 1000); process.once('SIGINT', resolve); });
export default defineWorkflow(async () => {});
export const grader = defineGrader(() => 1);\n`;
    const entry = await home.write('slow-start.ts', late);
    const { child, ended } = start(['eval', entry, '--held-out', join(home.dir, 'slow.jsonl'), '--json']);
    child.stderr.once('data', () => child.kill('SIGINT'));
    const { code, stdout, stderr } = await ended;
    expect(stderr).toMatch(/^importing\n(?:.*\n)*Interrupted before anything ran\n$/);
    expect(JSON.parse(stdout.trim().split('\n').at(-1) ?? '')).toEqual({
      type: 'error',
      code: 'CANCELLED',
      message: 'interrupted before anything ran',
      at: expect.any(Number),
    });
    expect(code).toBe(130);
  });
});
