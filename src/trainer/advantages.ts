/**
 * Group-relative advantages: how much better a rollout was than the others of its own group, by three rules of comparison.
 *
 * Groups are told apart by `groupId` on each row, never by position. Only graded rollouts take part; a group needs two of
 * them, and two different rewards, to teach anything. The same rows in another order give the same numbers, bit for bit.
 * docs/reference/training.md says in words when to choose which; how much each token counts is decided in batch.ts.
 */
import type { Trajectory } from '../core/types.ts';

/**
 * With r the reward and n the graded rollouts of its group:
 * `grpo` (r − mean) / (standard deviation + ε), `dr-grpo` r − mean, `rloo` r − mean of the other n − 1.
 */
export const ALGORITHMS = ['grpo', 'dr-grpo', 'rloo'] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

/** Keeps the quotient finite where a group's rewards hardly differ. */
const EPSILON = 1e-4;

/** rolloutId → advantage, for every graded rollout of groups with signal; others have no entry. */
export function advantagesOf(trajectories: Iterable<Trajectory>, algorithm: Algorithm): ReadonlyMap<string, number> {
  const advantages = new Map<string, number>();
  for (const group of Map.groupBy(trajectories, ({ groupId }) => groupId).values()) {
    if (!hasSignal(group)) continue;
    const rewards = rewardsOf(group);
    const compare = comparisonIn([...rewards.values()], algorithm);
    for (const [rolloutId, reward] of rewards) advantages.set(rolloutId, compare(reward));
  }
  return advantages;
}

/** Whether the rollouts of one group got different rewards. */
export function hasSignal(group: readonly Trajectory[]): boolean {
  return new Set(rewardsOf(group).values()).size > 1;
}

function comparisonIn(rewards: readonly number[], algorithm: Algorithm): (reward: number) => number {
  // Sums of floating-point numbers depend on their order; this one is not the order of arrival.
  const sorted = rewards.toSorted((a, b) => a - b);
  const mean = meanOf(sorted);
  switch (algorithm) {
    case 'grpo': {
      const deviation = Math.sqrt(meanOf(sorted.map((reward) => (reward - mean) ** 2)));
      return (reward) => (reward - mean) / (deviation + EPSILON);
    }
    case 'dr-grpo':
      return (reward) => reward - mean;
    case 'rloo':
      return (reward) => reward - (sumOf(sorted) - reward) / (sorted.length - 1);
  }
}

function rewardsOf(group: readonly Trajectory[]): Map<string, number> {
  const rewards = new Map<string, number>();
  for (const { rolloutId, grade } of group) if (grade.kind === 'graded') rewards.set(rolloutId, grade.reward.value);
  return rewards;
}

function meanOf(values: readonly number[]): number {
  return sumOf(values) / values.length;
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
