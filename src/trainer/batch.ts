/**
 * Trajectories → one training batch: advantages by group, turns stitched into samples, every sampled token weighted alike.
 *
 * Losses are sums over tokens, as in the Tinker API; the common weight 1 / (trained tokens in the batch) makes them a mean.
 */
import type { Sample, Trajectory } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';
import { grpoAdvantages } from './advantages.ts';

export interface Batch {
  readonly samples: readonly Sample[];
  /** Rollouts that are in it, each once, sorted. */
  readonly rolloutIds: readonly string[];
  readonly trainedTokens: number;
}

/** Deterministic: sorted by group and rollout, whatever order the trajectories come in. */
export function makeBatch(trajectories: readonly Trajectory[]): Batch {
  const advantages = grpoAdvantages(trajectories);
  const members = trajectories.filter(({ rolloutId }) => advantages.has(rolloutId)).toSorted(byIdentity);
  const unweighted = members.flatMap(({ turns, rolloutId, groupId }) => {
    const advantage = advantages.get(rolloutId) ?? 0;
    return stitch(turns, { advantageOf: () => advantage, weight: 1, rolloutId, groupId });
  });
  const trainedTokens = unweighted.reduce((sum, { mask }) => sum + mask.reduce((tokens, one) => tokens + one, 0), 0);
  const samples = unweighted.map((sample) => ({ ...sample, weight: 1 / trainedTokens }));
  const rolloutIds = [...new Set(samples.map(({ rolloutId }) => rolloutId))];
  return { samples, rolloutIds, trainedTokens };
}

function byIdentity(a: Trajectory, b: Trajectory): number {
  return compare(a.groupId, b.groupId) || compare(a.rolloutId, b.rolloutId);
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
