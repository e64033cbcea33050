/** The AReaL examples as a newcomer runs them, briefly: every part real, on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

/** One step on triage's tasks, and twelve held-out ones. */
async function trainBriefly(name: string): Promise<readonly Trajectory[]> {
  const triage = join(ROOT, 'examples', 'triage');
  const lines = (await readFile(join(triage, 'held-out.jsonl'), 'utf8')).split('\n').slice(0, 12);
  const heldOut = await home.write(`${name}.jsonl`, lines.join('\n'));
  const run = join(home.dir, name);
  const tasks = ['--tasks', join(triage, 'train.jsonl'), '--held-out', heldOut];
  const small = ['--steps', '1', '--groups-per-step', '3', '--group', '4', '--run', run, '--json'];
  const { code, stdout, stderr } = await trainyard('train', join(ROOT, 'examples', 'areal', `${name}.ts`), ...tasks, ...small);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const done: unknown = JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
  expect(done).toMatchObject({ type: 'done', steps: 1, before: { n: 12, failed: 0 }, after: { n: 12, failed: 0 } });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const trajectories = await store.query();
  expect(new Set(trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
  return trajectories;
}

const rewardsIn = (trajectories: readonly Trajectory[]): Set<number> =>
  new Set(trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : [])));

describe('the AReaL examples', () => {
  it('async-workflow trains on the row it returned, and keeps the second opinion untrained', async () => {
    const trajectories = await trainBriefly('async-workflow');
    expect(rewardsIn(trajectories)).toEqual(new Set([0, 1]));
    for (const { turns, metrics } of trajectories) {
      expect(turns.map(({ trainable, request }) => [trainable, request.dialect])).toEqual([
        [true, undefined],
        [false, 'chat'],
      ]);
      expect(Object.keys(metrics ?? {}).toSorted()).toEqual(['agrees', 'names_a_queue']);
    }
  });

  it('reward-wrapper is rewarded by its own processes', async () => {
    const trajectories = await trainBriefly('reward-wrapper');
    const sources = trajectories.map(({ grade }) => grade.kind === 'graded' && grade.reward.source);
    expect(new Set(sources)).toEqual(new Set(['workflow']));
    const rewards = rewardsIn(trajectories);
    expect(rewards.has(0.5) && rewards.has(1)).toBe(true);
    expect([...rewards].every((reward) => [0, 0.5, 1].includes(reward))).toBe(true);
  });

  it('agent is graded, and its answers are chat completions', async () => {
    const trajectories = await trainBriefly('agent');
    expect(rewardsIn(trajectories)).toEqual(new Set([0, 1]));
    expect(new Set(trajectories.map(({ turns }) => turns[0]?.request.dialect))).toEqual(new Set(['chat']));
  });
});
