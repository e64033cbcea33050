/** What counts alike in a step: tokens, or rollouts. The fast code is compared with the definition, written out slowly. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Sample, Trajectory, Turn } from '../core/types.ts';
import { turnAdvantagesOf } from './advantages.ts';
import { makeBatch } from './batch.ts';

/** A conversation of its own, and so a sample of its own. */
const turn = (index: number, tokens: number): Turn =>
  trainedTurn(index, {
    promptIds: Int32Array.of(1000 + index),
    sampledIds: Int32Array.from({ length: tokens }, (_, i) => i),
  });

interface Row {
  readonly reward: number;
  /** Trained tokens of each sample. */
  readonly samples: readonly number[];
  readonly byTurn?: readonly number[];
}

const rollout = (rolloutId: string, { reward: value, samples, byTurn }: Row, groupId = 'g'): Trajectory => {
  const turns = samples.map((tokens, index) => turn(index, tokens));
  return gradedRollout(
    rolloutId,
    { value, ...(byTurn === undefined ? {} : { byTurn: Object.fromEntries(byTurn.entries()) }) },
    turns,
    groupId,
  );
};

const tokensIn = ({ mask }: Sample): number => mask.reduce((sum, one) => sum + one, 0);
/** Of the whole step, by rollout. */
function shares(samples: readonly Sample[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const sample of samples) sums[sample.rolloutId] = (sums[sample.rolloutId] ?? 0) + sample.weight * tokensIn(sample);
  return sums;
}

describe('weighed by rollouts', () => {
  it('samples of rollouts with 1, 3 and 2 of them count 1, ⅓ each and ½ each', () => {
    const rows = [
      rollout('a', { reward: 1, samples: [7] }),
      rollout('b', { reward: 0, samples: [1, 2, 30] }),
      rollout('c', { reward: 0.5, samples: [4, 4] }),
    ];
    const { samples } = makeBatch(rows, 'grpo', undefined, 'rollouts');
    const ofRollout = samples.map((sample) => 3 * sample.weight * tokensIn(sample));
    for (const [place, expected] of [1, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2].entries()) {
      expect(ofRollout[place]).toBeCloseTo(expected, 12);
    }
  });

  it('two turns that earned 1 and a rollout of one turn that earned 0 have the mean ⅔ over turns, ½ over rollouts', () => {
    const rows = [
      rollout('a', { reward: 1, samples: [2, 2], byTurn: [1, 1] }),
      rollout('b', { reward: 0, samples: [2], byTurn: [0] }),
    ];
    const below = (weighting: 'tokens' | 'rollouts') =>
      -turnAdvantagesOf(rows, 'dr-grpo', weighting)(rows[1]!, rows[1]!.turns[0]!)!;
    expect([below('tokens'), below('rollouts')]).toEqual([expect.closeTo(2 / 3), expect.closeTo(1 / 2)]);
  });

  it('a batch of dr-grpo is refused: it has a constant of its own', () => {
    const rows = [rollout('a', { reward: 1, samples: [1] }), rollout('b', { reward: 0, samples: [1] })];
    expect(() => makeBatch(rows, 'dr-grpo', 10, 'rollouts')).toThrowError(expect.objectContaining({ code: 'USAGE' }));
  });

  const rows = fc.array(
    fc.record({
      reward: fc.integer({ min: -3, max: 3 }),
      samples: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 5 }),
    }),
    { minLength: 2, maxLength: 8 },
  );

  it('every rollout has the same share of the step, however it is split, and all shares come to 1', () => {
    fc.assert(
      fc.property(rows, fc.constantFrom('grpo' as const, 'rloo' as const), (given, algorithm) => {
        const sharesOf = (list: readonly Row[]): Record<string, number> => {
          const trajectories = list.map((row, i) => rollout(`r${i}`, row));
          return shares(makeBatch(trajectories, algorithm, undefined, 'rollouts').samples);
        };
        const whole = sharesOf(given);
        // Split again: every sample becomes one of single tokens.
        const split = sharesOf(given.map((row) => ({ ...row, samples: row.samples.flatMap((n) => Array<number>(n).fill(1)) })));
        expect(Object.keys(split)).toEqual(Object.keys(whole));
        const expected = 1 / Object.keys(whole).length;
        for (const share of [...Object.values(whole), ...Object.values(split)]) expect(share).toBeCloseTo(expected, 10);
      }),
    );
  });

  it('goes by names: the same rollouts in any order give the same samples, bit for bit', () => {
    const pair = rows.chain((given) =>
      fc.tuple(fc.constant(given), fc.shuffledSubarray([...given.keys()], { minLength: given.length })),
    );
    fc.assert(
      fc.property(pair, ([given, order]) => {
        const trajectories = given.map((row, i) => rollout(`r${i}`, { ...row, byTurn: row.samples }, `g${i % 2}`));
        const shuffled = order.map((place) => trajectories[place]!);
        expect(makeBatch(shuffled, 'grpo', undefined, 'rollouts')).toEqual(
          makeBatch(trajectories, 'grpo', undefined, 'rollouts'),
        );
      }),
    );
  });

  it.each(['grpo', 'dr-grpo', 'rloo'] as const)('%s of rewards by turn is what its definition says, written out', (algorithm) => {
    const episodes = fc.array(fc.array(fc.integer({ min: -4, max: 4 }), { minLength: 1, maxLength: 4 }), {
      minLength: 2,
      maxLength: 6,
    });
    fc.assert(
      fc.property(episodes, (given) => {
        if (new Set(given.flat()).size < 2) return;
        const group = given.map((byTurn, i) => rollout(`r${i}`, { reward: 0, samples: byTurn.map(() => 1), byTurn }));
        const advantage = turnAdvantagesOf(group, algorithm, 'rollouts');
        const mean = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0) / list.length;
        const center = mean(given.map(mean));
        const spread = Math.sqrt(mean(given.map((own) => mean(own.map((r) => (r - center) ** 2)))));
        for (const [i, own] of given.entries()) {
          for (const [t, reward] of own.entries()) {
            const others = given.filter((_, j) => j !== i);
            const expected = {
              grpo: (reward - center) / (spread + 1e-4),
              'dr-grpo': reward - center,
              rloo: reward - mean(others.map(mean)),
            }[algorithm];
            expect(advantage(group[i]!, group[i]!.turns[t]!)).toBeCloseTo(expected, 9);
          }
        }
      }),
    );
  });
});

it('weighed by tokens how a rollout is split does not matter either: every token counts once', () => {
  const whole = [rollout('a', { reward: 1, samples: [6] }), rollout('b', { reward: 0, samples: [2] })];
  const split = [rollout('a', { reward: 1, samples: [1, 2, 3] }), rollout('b', { reward: 0, samples: [2] })];
  expect(shares(makeBatch(split).samples)).toEqual(shares(makeBatch(whole).samples));
});
