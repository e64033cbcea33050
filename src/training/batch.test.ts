import { describe, expect, it } from 'vitest';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { StaleRule, Trajectory, Turn } from '../core/types.ts';
import { ALGORITHMS } from '../settings/settings.ts';
import { attachReference, type Batch, makeBatch, weighStale } from './batch.ts';

const turn = (index: number, promptIds: readonly number[], sampledIds: readonly number[]): Turn =>
  trainedTurn(index, { promptIds: Int32Array.from(promptIds), sampledIds: Int32Array.from(sampledIds) });
const rollout = (groupId: string, rolloutId: string, value: number, turns: readonly Turn[]): Trajectory =>
  gradedRollout(rolloutId, { value }, turns, groupId);

/** Two groups with signal and one without. Trained tokens: 3 + 1 + (2 + 2) + 0 = 8, of four rollouts. */
const rows = [
  rollout('g1', 'a', 1, [turn(0, [1, 2], [3, 4, 5])]),
  rollout('g1', 'b', 0, [turn(0, [1, 2], [6])]),
  rollout('g2', 'c', 2, [turn(0, [1], [2, 3]), turn(1, [1, 2, 3, 9], [4, 5])]),
  rollout('g2', 'd', 0, []),
  rollout('g3', 'e', 1, [turn(0, [1], [2])]),
  rollout('g3', 'f', 1, [turn(0, [1], [2])]),
];

const weightsOf = ({ samples }: Batch) => samples.map(({ weight }) => weight);
const advantagesIn = ({ samples }: Batch) => samples.map(({ advantages }) => [...advantages]);

describe('a batch', () => {
  it.each(['grpo', 'rloo'] as const)('of %s divides by the trained tokens of the batch', (algorithm) => {
    const batch = makeBatch(rows, algorithm);
    expect(batch).toMatchObject({ rolloutIds: ['a', 'b', 'c'], trainedTokens: 8 });
    expect(weightsOf(batch)).toEqual([1 / 8, 1 / 8, 1 / 8]);
  });

  it('of dr-grpo divides by rollouts × the constant, whatever their lengths; a rollout that gave no sample does not count', () => {
    const batch = makeBatch(rows, 'dr-grpo', 100);
    expect(batch).toMatchObject({ rolloutIds: ['a', 'b', 'c'], trainedTokens: 8 });
    expect(weightsOf(batch)).toEqual([1 / 300, 1 / 300, 1 / 300]);
    const longer = rows.with(0, rollout('g1', 'a', 1, [turn(0, [1, 2], [3, 4, 5, 3, 4, 5, 3, 4, 5])]));
    expect(weightsOf(makeBatch(longer, 'dr-grpo', 100))).toEqual(weightsOf(batch));
  });

  it.each([undefined, 0, -1, Number.NaN, Infinity])('of dr-grpo refuses %s tokens per rollout', (constant) => {
    expect(() => makeBatch(rows, 'dr-grpo', constant)).toThrowError(expect.objectContaining({ code: 'USAGE' }));
  });

  it('carries the advantage of its algorithm on sampled tokens and nowhere else', () => {
    expect(advantagesIn(makeBatch(rows, 'dr-grpo', 100))).toEqual([
      [0, 0, 0.5, 0.5, 0.5],
      [0, 0, -0.5],
      [0, 1, 1, 0, 1, 1],
    ]);
    expect(advantagesIn(makeBatch(rows, 'rloo'))).toEqual([
      [0, 0, 1, 1, 1],
      [0, 0, -1],
      [0, 2, 2, 0, 2, 2],
    ]);
    expect(makeBatch(rows)).toEqual(makeBatch(rows, 'grpo'));
    const [first] = makeBatch(rows).samples;
    expect(first?.advantages[2]).toBe(Math.fround(0.5 / (0.5 + 1e-4)));
  });

  it('counts a sample by its oldest turn, half for each version too old, and leaves the others as they were', () => {
    const aged = rows.map((one, i) => ({
      ...one,
      turns: one.turns.map((turn) => ({ ...turn, policyVersion: [4, 2, 5 + turn.index][i] ?? 0 })),
    }));
    const weighed = (rule: StaleRule['rule'], most = 1) =>
      weightsOf(weighStale(makeBatch(aged), { policyVersion: 6, most, rule }));
    expect(weighed('weigh')).toEqual([1 / 16, 1 / 64, 1 / 8]);
    expect(weighed('weigh', 0)).toEqual([1 / 32, 1 / 128, 1 / 16]);
    expect(weighed('keep')).toEqual([1 / 8, 1 / 8, 1 / 8]);
    expect(weighed('drop')).toEqual([0, 0, 1 / 8]);
  });

  it('of reinforce++ has advantages of mean 0 and unbiased deviation 1 over the trained tokens of all groups', () => {
    // r − mean of the group: ½ thrice, −½ once, 1 four times; their mean is 5/8, their variance 63/224 with n − 1.
    const [a, b, c] = makeBatch(rows, 'reinforce++').samples;
    const whitened = (value: number) => Math.fround((value - 5 / 8) / Math.sqrt(15 / 56 + 1e-8));
    expect([...a!.advantages]).toEqual([0, 0, ...Array(3).fill(whitened(0.5))]);
    expect([...b!.advantages]).toEqual([0, 0, whitened(-0.5)]);
    expect([...c!.advantages]).toEqual([0, whitened(1), whitened(1), 0, whitened(1), whitened(1)]);
    expect(weightsOf(makeBatch(rows, 'reinforce++'))).toEqual([1 / 8, 1 / 8, 1 / 8]);
    const lonely = [rollout('g', 'a', 1, [turn(0, [1], [2])]), rollout('g', 'b', 0, [])];
    expect(advantagesIn(makeBatch(lonely, 'reinforce++'))).toEqual([[0, 0.5]]);
  });

  it('of grpo has, for rewards 1 and 0, the ±0.7071 of those who divide by n − 1, times √2, on every turn of a rollout', () => {
    const two = [turn(0, [1], [2, 3]), turn(1, [9], [4])];
    const pair = [rollout('g', 'a', 1, two), rollout('g', 'b', 0, two)];
    const others = 0.5 / (Math.SQRT1_2 + 1e-6);
    const found = makeBatch(pair).samples.map(({ rolloutId, advantages }) => [rolloutId, advantages.at(-1)! / Math.SQRT2]);
    const close = (sign: number) => expect.closeTo(sign * others, 3);
    expect(found).toEqual([
      ['a', close(1)],
      ['a', close(1)],
      ['b', close(-1)],
      ['b', close(-1)],
    ]);
  });

  it('is empty where no group has signal', () => {
    for (const algorithm of ALGORITHMS) {
      expect(makeBatch(rows.slice(4), algorithm, 50)).toEqual({ samples: [], rolloutIds: [], trainedTokens: 0 });
    }
  });
});

describe('attachReference', () => {
  const batch = makeBatch(rows);

  it('puts the k-th log-probability at the k-th trained token, and 0 elsewhere', () => {
    const attached = attachReference(batch, [Float32Array.of(-1, -2, -3), Float32Array.of(-4), Float32Array.of(-5, -6, -7, -8)]);
    expect(attached.samples.map(({ reference }) => [...reference!])).toEqual([
      [0, 0, -1, -2, -3],
      [0, 0, -4],
      [0, -5, -6, 0, -7, -8],
    ]);
    expect({ ...attached, samples: attached.samples.map(({ reference: _, ...sample }) => sample) }).toEqual(batch);
  });

  it.each([
    ['a sample too few', [Float32Array.of(-1, -2, -3), Float32Array.of(-4)]],
    ['a token too few', [Float32Array.of(-1, -2), Float32Array.of(-4), new Float32Array(4)]],
    ['every token instead of the trained ones', [new Float32Array(5), new Float32Array(3), new Float32Array(6)]],
  ])('refuses %s', (_, logprobs) => {
    expect(() => attachReference(batch, logprobs)).toThrowError(expect.objectContaining({ code: 'TRAINER_FAILED' }));
  });
});
