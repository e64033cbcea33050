/**
 * DAPO's soft punishment of overlong rollouts (https://arxiv.org/abs/2503.14476): a rollout that sampled more than `limit` − `buffer`
 * tokens loses part of its reward's `value`, growing linearly to `factor` at the limit. It changes what rewards are compared, never what is
 * stored or reported. Rewards by turn, thread or role stay as they are: nothing says which part made the rollout long.
 */
import { tokensOf } from '../core/turns.ts';
import type { Trajectory } from '../core/types.ts';

export interface OverlongSettings {
  /** The most tokens a rollout may sample. */
  readonly limit: number;
  readonly buffer: number;
  readonly factor: number;
}

/** 0 or less: −factor · (length − (limit − buffer)) / buffer, within [−factor, 0]. */
export function overlongPenalty(length: number, { limit, buffer, factor }: OverlongSettings): number {
  const excess = length - (limit - buffer);
  return excess <= 0 ? 0 : -factor * Math.min(excess / buffer, 1);
}

/** Counts the tokens of all turns, as the limit does. */
export function withOverlongPenalty(trajectories: readonly Trajectory[], settings: OverlongSettings): readonly Trajectory[] {
  return trajectories.map((trajectory) => {
    const { grade, turns } = trajectory;
    const length = turns.reduce((sum, turn) => sum + tokensOf(turn).sampledTokens, 0);
    const penalty = overlongPenalty(length, settings);
    if (grade.kind !== 'graded' || penalty === 0) return trajectory;
    return { ...trajectory, grade: { ...grade, reward: { ...grade.reward, value: grade.reward.value + penalty } } };
  });
}
