import { describe, expect, it } from 'vitest';
import { gradedRollout as rollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Trajectory } from '../core/types.ts';
import { dpo, makePairs, preferencesOf } from './dpo.ts';
import { crossEntropy } from './losses.ts';

/** Two conversations, and so two samples. */
const turns = [trainedTurn(0), trainedTurn(1, { promptIds: Int32Array.of(9), sampledIds: Int32Array.of(4, 4), thread: 'other' })];
const idsOf = (rows: readonly Trajectory[]) => makePairs(rows).rolloutIds;

describe('a pair', () => {
  it('is the best and the worst of a group, of equal ones the first by name, in whatever order they came', () => {
    const rows = [0.5, 1, 0, 1, 0].map((value, i) => rollout(`r${i}`, { value }, turns));
    const batch = makePairs(rows.toReversed());
    expect(batch.rolloutIds).toEqual(['r1', 'r2']);
    expect(batch).toEqual(makePairs(rows));
    const signs = batch.samples.map(({ rolloutId, advantages, mask }) => `${rolloutId} ${advantages[mask.indexOf(1)]}`);
    expect(signs).toEqual(['r1 1', 'r1 1', 'r2 -1', 'r2 -1']);
    expect(batch.trainedTokens).toBe(10);
  });

  it('is not made of equal values, of rollouts without a grade, or of one with nothing to train', () => {
    const failed = {
      ...rollout('c', { value: 0 }, turns),
      grade: { kind: 'failed', code: 'GRADER_TIMEOUT', message: '' },
    } as Trajectory;
    expect(idsOf([rollout('a', { value: 1 }, turns), rollout('b', { value: 1 }, turns), failed])).toEqual([]);
    expect(idsOf([rollout('a', { value: 5e-324 }, turns), rollout('b', { value: 0 }, turns)])).toEqual([]);
    expect(idsOf([rollout('a', { value: 1 }, turns), rollout('b', { value: 0 }, [])])).toEqual([]);
    const others = [rollout('a', { value: 1 }, turns), rollout('b', { value: 0 }, []), rollout('d', { value: 0.5 }, turns)];
    expect(idsOf(others)).toEqual(['a', 'd']);
  });
});

describe('its loss', () => {
  const pairs = ['g', 'h'].flatMap((group) => [1, 0].map((value) => rollout(`${group}${value}`, { value }, turns, group)));
  const batch = makePairs(pairs);
  const lengths = batch.samples.map(({ mask }) => mask.reduce((sum, one) => sum + one, 0));
  const numbers = (step: number) =>
    lengths.map((length, i) => Float32Array.from({ length }, (_, j) => -((i * 7 + j * step) % 5) / 4 - 0.1));
  const [current, reference] = [numbers(3), numbers(2)];

  it('is log 2 where nothing has moved yet, and stays finite however far things move', () => {
    expect(preferencesOf(batch, current, current, 0.1)).toMatchObject({
      ...{ loss: Math.log(2), metrics: { dpoMargin: 0, dpoAccuracy: 0 } },
    });
    expect([dpo(-1e6, 1), dpo(1e6, 1)]).toEqual([
      { loss: 1e6, slope: 1 },
      { loss: 0, slope: 0 },
    ]);
  });

  it('has the gradient, through a weighted cross-entropy, that central differences of −log σ(β·margin) give', () => {
    const lossAt = (logprobs: readonly ArrayLike<number>[]) =>
      preferencesOf(batch, logprobs as Float32Array[], reference, 0.3).loss;
    const { samples } = preferencesOf(batch, current, reference, 0.3);
    samples.forEach((sample, i) => {
      const advantages = sample.advantages.filter((_, place) => sample.mask[place] === 1);
      const own = { logprobs: current[i]!, sampled: current[i]!, advantages, reference: undefined };
      const { gradient } = crossEntropy().evaluate(own);
      gradient.forEach((derivative, j) => {
        const moved = (by: number) =>
          lossAt(current.with(i, Float64Array.from(current[i]!).with(j, current[i]![j]! + by) as never));
        expect(derivative * sample.weight).toBeCloseTo((moved(1e-5) - moved(-1e-5)) / 2e-5, 6);
      });
    });
  });
});
