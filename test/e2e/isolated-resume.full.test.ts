/** A run whose rollouts have processes of their own and give their own rewards, killed for real and taken up again. */
import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { scratch, start, trainyard } from '../cli/command.ts';
import { eventually } from '../fixtures/grader/processes.ts';
import { localServer } from '../fixtures/local-server.ts';
import { needsSandbox } from '../fixtures/sandbox.ts';

/** Rewards by turn and by thread, found from what was said, so that they differ; a program is left running, and the end is told. */
const ENTRY = `
import { spawn } from 'node:child_process';
import { defineWorkflow } from 'trainyard';
const url = process.env.TEST_URL!;
const sum = (text: string) => [...text].reduce((codes, letter) => codes + (letter.codePointAt(0) ?? 0), 0);
export default defineWorkflow({
  isolation: 'process',
  env: ['TEST_URL'],
  setup: () => void spawn('sh', ['-c', 'sleep 300; :', url], { stdio: 'ignore' }),
  teardown: () => fetch(url),
  async run(ctx) {
    const messages: any[] = [...ctx.prompt];
    const earned: Record<string, number> = {};
    for (let turn = 0; turn < 2; turn++) {
      const { id, message, text } = await ctx.model().generate({ messages, maxTokens: 8 });
      earned[id] = (sum(text) % 7) / 3;
      messages.push(message, { role: 'user', content: 'and?' });
    }
    const aside = await ctx.model().thread('aside').generate({ messages: ctx.prompt, maxTokens: 4 });
    const value = (sum(aside.text) % 5) / 3;
    return { reward: { value, byTurn: earned, byThread: { aside: value } }, credit: { turnDiscount: 0.9, per: 'turn' } };
  },
});
`;

it('ends as one that nothing disturbed, to the byte, and leaves no process behind', needsSandbox, async () => {
  const home = await scratch();
  const entry = await home.write('agent.ts', ENTRY);
  const tasks = Array.from({ length: 4 }, (_, i) => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?` }));
  const file = await home.write('train.jsonl', tasks.join('\n'));
  const flags = (run: string): string[] => [
    ...['train', entry, '--tasks', file, '--run', run, '--steps', '3', '--groups-per-step', '2', '--group', '3'],
    ...['--workflow-workers', '2', '--json'],
  ];
  let tornDown = 0;
  await using server = await localServer((_, response) => {
    tornDown += 1;
    response.end();
  });
  const url = server.origin;
  process.env['TEST_URL'] = url;
  // By what they were started with: in a namespace of their own they know other numbers.
  const running = (): readonly string[] =>
    execFileSync('ps', ['-axww', '-o', 'args='], { encoding: 'utf8' })
      .split('\n')
      .filter((line) => line.includes(url) || line.includes(home.dir));
  const [whole, killed] = [join(home.dir, 'whole'), join(home.dir, 'killed')];

  expect(await trainyard(...flags(whole))).toMatchObject({ code: 0, stderr: '' });
  expect(tornDown).toBe(2);
  expect(running()).toEqual([]);

  const { child, ended, prints } = start(flags(killed));
  await prints('"step":2,');
  expect(running().length).toBeGreaterThan(2);
  child.kill('SIGKILL');
  await ended;
  expect(await eventually(() => running().length === 0)).toBe(true);

  expect(await trainyard('train', '--resume', killed, '--json')).toMatchObject({ code: 0, stderr: '' });
  const weights = (run: string) => readFile(join(run, 'checkpoints', 'step-000003', 'model.safetensors'));
  expect((await weights(killed)).equals(await weights(whole))).toBe(true);
  await using one = await openSqliteStore(join(whole, 'store.sqlite'));
  await using other = await openSqliteStore(join(killed, 'store.sqlite'));
  const graded = async (store: typeof one) =>
    (await store.query()).map(({ rolloutId, grade }) => JSON.stringify([rolloutId, grade])).toSorted();
  expect(await graded(other)).toEqual(await graded(one));
  expect((await graded(one)).every((line) => line.includes('"kind":"graded"'))).toBe(true);
  expect(running()).toEqual([]);
  await home.remove();
});
