import { describe, expect, it } from 'vitest';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Mark, Reward, Trajectory } from '../core/types.ts';
import { rolloutReport } from '../evaluation/results.ts';
import type { Group, GroupBatch } from '../rollout/scheduler.ts';
import { turnAdvantagesOf } from './advantages.ts';
import { withoutMarked } from './groups.ts';

const rollout = (rolloutId: string, reward: Reward, turns = 2): Trajectory => {
  const sampled = Array.from({ length: turns }, (_, index) => trainedTurn(index, { sampledIds: Int32Array.of(1, 2) }));
  return gradedRollout(rolloutId, reward, sampled, rolloutId[0]);
};
const group = (...trajectories: readonly Trajectory[]): Group =>
  ({ groupId: trajectories[0]!.groupId, task: {}, trajectories }) as unknown as Group;
const marked = (...marks: readonly Partial<Mark>[]) => ({
  marks: async () => marks.map((mark) => ({ excluded: true, reason: 'x', at: 0, ...mark }) as Mark),
});
const batchOf = (...groups: readonly Group[]): GroupBatch => ({ groups, withoutSignal: [], stale: [] });
const idsOf = (groups: readonly Group[]) => groups.map(({ trajectories }) => trajectories.map(({ rolloutId }) => rolloutId));

describe('a batch without what is excluded', () => {
  it('compares the others of a group among themselves', async () => {
    const three = group(rollout('a0', { value: 100 }), rollout('a1', { value: 1 }), rollout('a2', { value: 0 }));
    const { groups, excluded } = await withoutMarked(batchOf(three), marked({ rolloutId: 'a0' }));
    const [left] = groups;
    const advantage = turnAdvantagesOf(left!.trajectories, 'dr-grpo');
    expect(left!.trajectories.map((one) => advantage(one, one.turns[0]!))).toEqual([0.5, -0.5]);
    expect(excluded).toEqual([{ rolloutId: 'a0' }]);
  });

  it('drops a group that is too small or has no signal any more, counts it, and still reports what was sampled', async () => {
    const pair = group(rollout('a0', { value: 1 }), rollout('a1', { value: 0 }));
    const equal = group(rollout('b0', { value: 1 }), rollout('b1', { value: 0 }), rollout('b2', { value: 0 }));
    const whole = group(rollout('c0', { value: 1 }), rollout('c1', { value: 0 }));
    const store = marked({ rolloutId: 'a1' }, { rolloutId: 'b0' }, { rolloutId: 'elsewhere' });
    const curated = await withoutMarked(batchOf(pair, equal, whole), store);
    expect(idsOf(curated.groups)).toEqual([['c0', 'c1']]);
    expect(idsOf(curated.withoutSignal)).toEqual([['a0'], ['b1', 'b2']]);
    expect(curated.excluded).toEqual([{ rolloutId: 'a1' }, { rolloutId: 'b0' }]);
    const report = { groups: 3, groupsWithoutSignal: 2, rollouts: 7, excludedRollouts: 2, sampledTokens: 28 };
    expect(rolloutReport(curated)).toMatchObject(report);
  });

  it('keeps an excluded turn out of the rewards by turn that others are compared with', async () => {
    const both = group(rollout('a0', { value: 0, byTurn: { 0: 1, 1: 100 } }), rollout('a1', { value: 0, byTurn: { 0: 0 } }));
    const { groups } = await withoutMarked(batchOf(both), marked({ rolloutId: 'a0', turn: 1 }));
    const advantage = turnAdvantagesOf(groups[0]!.trajectories, 'dr-grpo');
    const [first, second] = groups[0]!.trajectories;
    expect(first!.turns.map((one) => advantage(first!, one))).toEqual([0.5, undefined]);
    expect(advantage(second!, second!.turns[0]!)).toBe(-0.5);
  });

  it('drops a group of which no turn is left to train, though its rewards differ', async () => {
    const pair = group(rollout('a0', { value: 1 }, 1), rollout('a1', { value: 0 }, 1));
    const store = marked({ rolloutId: 'a0', turn: 0 }, { rolloutId: 'a1', turn: 0 });
    expect(await withoutMarked(batchOf(pair), store)).toMatchObject({ groups: [], withoutSignal: [{ groupId: 'a' }] });
  });

  it('is as it was where nothing is marked, or marks were taken back', async () => {
    const pair = group(rollout('a0', { value: 1 }), rollout('a1', { value: 0 }));
    const undone = marked({ rolloutId: 'a0' }, { rolloutId: 'a0', excluded: false });
    const { groups, excluded } = await withoutMarked(batchOf(pair), undone);
    expect(groups[0]).toBe(pair);
    expect(excluded).toEqual([]);
  });
});
