/** The example with a built-in grader as a newcomer runs it, briefly: every part real, on the shipped policy, graded in child processes. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { grader as ownGrader } from '../../examples/shop/agent.ts';
import type { Task, Trajectory } from '../../src/core/types.ts';
import { callGrader, graderInput } from '../../src/grader/call.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

const SHOP = join(ROOT, 'examples/shop');
const linesOf = async (file: string): Promise<readonly string[]> =>
  (await readFile(join(SHOP, file), 'utf8')).split('\n').filter((line) => line !== '');

let home: Awaited<ReturnType<typeof scratch>>;
let trajectories: readonly Trajectory[];
let tasks: ReadonlyMap<string, Task>;
beforeAll(async () => {
  home = await scratch();
  const lines = { train: await linesOf('train.jsonl'), heldOut: (await linesOf('held-out.jsonl')).slice(0, 8) };
  tasks = new Map([...lines.train, ...lines.heldOut].map((line) => JSON.parse(line) as Task).map((task) => [task.id, task]));
  const heldOut = await home.write('held-out.jsonl', lines.heldOut.join('\n'));
  const run = join(home.dir, 'run');
  const small = ['--steps', '1', '--groups-per-step', '4', '--run', run, '--json'];
  const given = ['--tasks', join(SHOP, 'train.jsonl'), '--held-out', heldOut, ...small];
  const { code, stderr } = await trainyard('train', join(ROOT, 'examples/graders/arithmetic.ts'), ...given);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  trajectories = await store.query();
});
afterAll(() => home.remove());

describe('examples/graders/arithmetic.ts', () => {
  it('gives 1 or 0, and both', () => {
    const rewards = trajectories.map(({ grade }) => (grade.kind === 'graded' ? grade.reward : undefined));
    expect(trajectories.length).toBeGreaterThan(16);
    expect(new Set(rewards.map((reward) => `${reward?.value} ${reward?.success}`))).toEqual(new Set(['1 true', '0 false']));
  });

  it('agrees, rollout by rollout, with the grader that the shop has of its own', async () => {
    const ctx = { signal: new AbortController().signal, model: undefined };
    for (const { taskId, turns, outcome, grade } of trajectories) {
      const own = await callGrader(ownGrader, graderInput(tasks.get(taskId)!, { turns, outcome }), ctx);
      if (grade.kind === 'graded') expect(own).toMatchObject({ kind: 'graded', reward: { value: grade.reward.value } });
    }
  });
});
