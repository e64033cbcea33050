import { describe, expect, it } from 'vitest';
import { gradedRollout, trainedTurn } from '../../../test/fixtures/trained-rows.ts';
import type { Reward, Trajectory, Turn } from '../../core/types.ts';
import { exportInteractions, type TrajectoryTensors } from './export-interactions.ts';

/** A turn that goes on from another: its prompt is that one's ids and one id of its own. */
function turn(index: number, after?: Turn, more: Partial<Turn> = {}): Turn {
  const before = after === undefined ? [] : [...after.promptIds, ...after.sampledIds];
  return trainedTurn(index, {
    ...{ thread: 'policy', policyVersion: index },
    ...(after === undefined ? {} : { after: after.index }),
    promptIds: Int32Array.from([...before, 100 + index]),
    sampledIds: Int32Array.of(10 + index, 50 + index),
    logprobs: Float32Array.of(-0.5, -0.25 * (index + 1)),
    ...more,
  });
}

const trajectory = (turns: readonly Turn[], reward: Reward = { value: 1 }, more: Partial<Trajectory> = {}): Trajectory => {
  return { ...gradedRollout('r', reward, turns), ...more };
};

const rewardsIn = (rows: Record<string, TrajectoryTensors>) =>
  Object.fromEntries(Object.entries(rows).map(([id, { rewards }]) => [id, Number(rewards[0]?.toFixed(9))]));

const a = turn(0);
const b = turn(1, a);
const d = turn(2, b);
const g = turn(3, d);
const e = turn(4, a);

describe('the individual style', () => {
  it('gives a row for each completion: its own tokens trained, the prompt at version -1', () => {
    const rows = exportInteractions(trajectory([a, b]), { style: 'individual' });
    const row = (ids: number[], loss: number[], logprobs: number[], versions: number[]): TrajectoryTensors => ({
      ...{ input_ids: [ids], attention_mask: [ids.map(() => 1)], loss_mask: [loss], logprobs: [logprobs] },
      ...{ versions: [versions], rewards: [1] },
    });
    expect(rows).toEqual({
      'r-0': row([100, 10, 50], [0, 1, 1], [0, -0.5, -0.25], [-1, 0, 0]),
      'r-1': row([100, 10, 50, 101, 11, 51], [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, -0.5, -0.5], [-1, -1, -1, -1, 1, 1]),
    });
  });

  it('leaves out conversations that a grader took out, and reads rewards by name as names', () => {
    const named = turn(1, undefined, { thread: 'constructor', role: 'toString' });
    const reward = { value: 1, byThread: { policy: 3 }, byRole: {} };
    const exported = (given: Reward) => rewardsIn(exportInteractions(trajectory([a, named], given), { style: 'individual' }));
    expect(exported(reward)).toEqual({ 'r-0': 3, 'r-1': 1 });
    expect(exported({ ...reward, untrained: ['policy'] })).toEqual({ 'r-1': 1 });
  });

  it('discounts rewards along the conversation, once', () => {
    const line = trajectory([a, b, d], { value: 10, byTurn: { 2: 10 } });
    const rows = exportInteractions(line, { style: 'individual', discount: 0.9 });
    expect(rewardsIn(rows)).toEqual({ 'r-0': 8.1, 'r-1': 9, 'r-2': 10 });
    const before = trajectory([a], { value: 1, byTurn: { 0: 1 }, credit: { turnDiscount: 0.9, per: 'turn' } });
    expect(() => exportInteractions(before, { style: 'individual', discount: 0.9 })).toThrowError(/discounted before/);
    expect(rewardsIn(exportInteractions(before, { style: 'individual' }))).toEqual({ 'r-0': 1 });
  });
});

it('the concat style gives a row for each leaf of the tree, by exact token prefix; what branches share is trained once', () => {
  const rows = exportInteractions(trajectory([a, b, d, g, e], { value: 0, byTurn: { 3: 7, 4: 2 } }), { style: 'concat' });
  expect(rewardsIn(rows)).toEqual({ 'r-3': 7, 'r-4': 2 });
  expect(rows['r-3']?.loss_mask).toEqual([[0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]]);
  expect(rows['r-3']?.versions).toEqual([[-1, 0, 0, -1, 1, 1, -1, 2, 2, -1, 3, 3]]);
  expect(rows['r-4']?.loss_mask).toEqual([[0, 0, 0, 0, 1, 1]]);
});

describe('an export', () => {
  it('leaves out what is unfinished, with a warning, and what is not the policy’s to train, without', () => {
    const warnings: string[] = [];
    const tokens = { promptTokens: 3, sampledTokens: 1, turnsBefore: 1 };
    const unfinished = { thread: 'policy', role: 'policy', ...tokens, startedAt: 0, endedAt: 0 };
    const lost = turn(1, a, { trainable: false, undelivered: true });
    const helper = turn(2, undefined, { trainable: false, role: 'helper', model: 'other' });
    const rows = exportInteractions(trajectory([a, lost, helper], { value: 1 }, { unanswered: [unfinished] }), {
      style: 'concat',
      warn: (message) => warnings.push(message),
    });
    expect(Object.keys(rows)).toEqual(['r-0']);
    expect(warnings).toEqual([
      expect.stringMatching(/1 unfinished model calls/),
      expect.stringMatching(/1 answers that nobody received/),
    ]);
  });

  it('in another style, or of a rollout without a reward, is refused', () => {
    expect(() => exportInteractions(trajectory([a]), { style: 'tree' as never })).toThrowError(/style is "tree"/);
    const failed = trajectory([a], undefined, { grade: { kind: 'ungraded', why: 'failed' } });
    expect(() => exportInteractions(failed, { style: 'concat' })).toThrowError(/has no reward/);
  });
});
