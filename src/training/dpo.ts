/**
 * Direct preference optimisation (https://arxiv.org/abs/2305.18290) on pairs of rollouts that the policy itself made. In each group the
 * graded rollout with the highest value is preferred to the one with the lowest; of equal ones the first by rolloutId is taken. Only
 * rollouts with something to train are candidates, and a group whose candidates all have one value has no pair. The loss of a pair is
 * −log σ(β·m), where m is the preferred rollout's Σ (lp − ref) over its trained tokens, in all of its samples, minus the other's. A step
 * averages over pairs. The gradient by lp is ∓β·σ(−β·m) for every token of a pair: a weighted cross-entropy whose weights are known after
 * one forward pass. Rewards by turn, thread and role are not looked at.
 */
import { earnedBy } from '../core/reward.ts';
import type { Sample, Trajectory } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';
import { LEAST_DIFFERENCE } from './advantages.ts';
import { type Batch, byIdentity, tokensIn } from './batch.ts';

/** Of one pair: the loss, and how fast it falls with the margin. */
export function dpo(margin: number, beta: number): { readonly loss: number; readonly slope: number } {
  const x = -beta * margin;
  return { loss: Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))), slope: beta / (1 + Math.exp(-x)) };
}

/** The samples of all pairs, with advantage 1 in preferred rollouts and −1 in the others. Every pair counts alike. */
export function makePairs(trajectories: readonly Trajectory[]): Batch {
  const groups = Map.groupBy(trajectories.toSorted(byIdentity), ({ groupId }) => groupId);
  const pairs = [...groups.values()].flatMap((group) => pairIn(group) ?? []);
  const samples = pairs.flatMap(({ preferred, other }) => [
    ...samplesOf(preferred, 1, 1 / pairs.length),
    ...samplesOf(other, -1, 1 / pairs.length),
  ]);
  const rolloutIds = [...new Set(samples.map(({ rolloutId }) => rolloutId))];
  return { samples, rolloutIds, trainedTokens: samples.reduce((sum, sample) => sum + tokensIn(sample), 0) };
}

/** `group`: sorted by rolloutId. */
function pairIn(group: readonly Trajectory[]): { readonly preferred: Trajectory; readonly other: Trajectory } | undefined {
  const candidates = group.filter((trajectory) => trainedTurns(trajectory).length > 0);
  const value = ({ grade }: Trajectory): number => (grade.kind === 'graded' ? grade.reward.value : Number.NaN);
  const [first] = candidates;
  if (first === undefined) return undefined;
  const preferred = candidates.reduce((best, one) => (value(one) > value(best) ? one : best), first);
  const other = candidates.reduce((worst, one) => (value(one) < value(worst) ? one : worst), first);
  return value(preferred) - value(other) >= LEAST_DIFFERENCE ? { preferred, other } : undefined;
}

/** None of a rollout without a grade. */
function trainedTurns(trajectory: Trajectory): Trajectory['turns'] {
  return trajectory.turns.filter((turn) => earnedBy(trajectory, turn) !== undefined);
}

function samplesOf(trajectory: Trajectory, sign: number, weight: number): readonly Sample[] {
  const { rolloutId, groupId } = trajectory;
  return stitch(trainedTurns(trajectory), { advantageOf: () => sign, weight, rolloutId, groupId });
}

export interface Preferences {
  /** With advantages for which cross_entropy has the gradient of the pairs' mean loss. */
  readonly samples: readonly Sample[];
  readonly loss: number;
  /** Means over pairs: of β·m, and the share of those with m > 0. */
  readonly metrics: { readonly dpoMargin: number; readonly dpoAccuracy: number };
}

/** `current`, `reference`: log-probabilities of the trained tokens of each sample of `makePairs`, under the two policies. */
export function preferencesOf(
  { samples }: Pick<Batch, 'samples'>,
  current: readonly Float32Array[],
  reference: readonly Float32Array[],
  beta: number,
): Preferences {
  const margins = new Map<string, number>();
  samples.forEach(({ groupId, mask, advantages }, i) => {
    const sign = advantages[mask.indexOf(1)]!;
    const moved = current[i]!.reduce((sum, lp, place) => sum + (lp - reference[i]![place]!), 0);
    margins.set(groupId, (margins.get(groupId) ?? 0) + sign * moved);
  });
  const pairs = new Map([...margins].map(([groupId, margin]) => [groupId, { margin, ...dpo(margin, beta) }]));
  const mean = (of: (pair: { readonly margin: number; readonly loss: number }) => number): number =>
    [...pairs.values()].reduce((sum, pair) => sum + of(pair), 0) / Math.max(pairs.size, 1);
  return {
    samples: samples.map((sample) => {
      const { slope } = pairs.get(sample.groupId)!;
      return { ...sample, advantages: sample.advantages.map((sign) => sign * slope) };
    }),
    loss: mean(({ loss }) => loss),
    metrics: { dpoMargin: mean(({ margin }) => beta * margin), dpoAccuracy: mean(({ margin }) => (margin > 0 ? 1 : 0)) },
  };
}
