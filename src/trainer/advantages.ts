/**
 * Group-relative advantages (GRPO): how much better a rollout was than the others of its own group.
 *
 * Groups are told apart by `groupId` on each row, never by position. Only graded rollouts take part; a group needs two of
 * them, and two different rewards, to teach anything.
 */
import type { Trajectory } from '../core/types.ts';

/** Keeps the quotient finite where a group's rewards hardly differ. */
const EPSILON = 1e-4;

/** rolloutId → advantage, for every graded rollout of groups with signal; others have no entry. */
export function grpoAdvantages(trajectories: Iterable<Trajectory>): ReadonlyMap<string, number> {
  const advantages = new Map<string, number>();
  for (const group of Map.groupBy(trajectories, ({ groupId }) => groupId).values()) {
    if (!hasSignal(group)) continue;
    const rewards = rewardsOf(group);
    const mean = meanOf([...rewards.values()]);
    const deviation = Math.sqrt(meanOf([...rewards.values()].map((reward) => (reward - mean) ** 2)));
    for (const [rolloutId, reward] of rewards) advantages.set(rolloutId, (reward - mean) / (deviation + EPSILON));
  }
  return advantages;
}

/** Whether the rollouts of one group got different rewards. */
export function hasSignal(group: readonly Trajectory[]): boolean {
  return new Set(rewardsOf(group).values()).size > 1;
}

function rewardsOf(group: readonly Trajectory[]): Map<string, number> {
  const rewards = new Map<string, number>();
  for (const { rolloutId, grade } of group) if (grade.kind === 'graded') rewards.set(rolloutId, grade.reward.value);
  return rewards;
}

function meanOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
