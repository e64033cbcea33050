/**
 * Group-relative advantages: how much better a rollout was than the others of its own group, by three rules of comparison.
 *
 * Groups are told apart by `groupId` on each row, never by position. Only graded rollouts take part; a group needs two of
 * them, and two different rewards, to teach anything. The same rows in another order give the same numbers, bit for bit.
 * docs/reference/training.md says in words when to choose which; how much each token counts is decided in batch.ts.
 */
import type { Trajectory, Turn } from '../core/types.ts';
import { differ, earnedBy, poolsAskedBy, poolsOf } from './reward-pools.ts';

/**
 * With r the reward and n the rewards it is compared with, itself included:
 * `grpo` (r − mean) / (standard deviation + ε), `dr-grpo` r − mean, `rloo` r − mean of the other n − 1.
 */
export const ALGORITHMS = ['grpo', 'dr-grpo', 'rloo'] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

/** Keeps the quotient finite where a group's rewards hardly differ. */
const EPSILON = 1e-4;

type Comparison = (reward: number) => number;

/** rolloutId → advantage of its value, for every graded rollout of groups whose values differ; others have no entry. */
export function advantagesOf(trajectories: Iterable<Trajectory>, algorithm: Algorithm): ReadonlyMap<string, number> {
  const rows = [...trajectories];
  const comparisons = comparisonsOf(rows, algorithm);
  const advantages = new Map<string, number>();
  for (const { rolloutId, groupId, grade } of rows) {
    const compare = comparisons.get(groupId)?.get('value');
    if (compare !== undefined && grade.kind === 'graded') advantages.set(rolloutId, compare(grade.reward.value));
  }
  return advantages;
}

/**
 * The advantage of a turn, by what it earned itself. Undefined where it is not trained, or where what it earned is compared with nothing
 * different: such a turn teaches nothing and belongs into no sample.
 */
export function turnAdvantagesOf(
  trajectories: Iterable<Trajectory>,
  algorithm: Algorithm,
): (trajectory: Trajectory, turn: Turn) => number | undefined {
  const comparisons = comparisonsOf(trajectories, algorithm);
  return (trajectory, turn) => {
    const earned = earnedBy(trajectory, turn);
    if (earned === undefined) return undefined;
    return comparisons.get(trajectory.groupId)?.get(earned.pool)?.(earned.reward);
  };
}

/** Whether some reward of one group can be told from its like. */
export function hasSignal(group: readonly Trajectory[]): boolean {
  const pools = poolsOf(group);
  return group.some((trajectory) => [...poolsAskedBy(trajectory)].some((pool) => differ(pools.get(pool))));
}

/** By group and pool; only pools with signal. */
function comparisonsOf(
  trajectories: Iterable<Trajectory>,
  algorithm: Algorithm,
): ReadonlyMap<string, ReadonlyMap<string, Comparison>> {
  const groups = Map.groupBy(trajectories, ({ groupId }) => groupId);
  const inGroup = (group: readonly Trajectory[]): ReadonlyMap<string, Comparison> => {
    const pools = [...poolsOf(group)].filter(([, rewards]) => differ(rewards));
    return new Map(pools.map(([pool, rewards]) => [pool, comparisonIn(rewards, algorithm)]));
  };
  return new Map([...groups].map(([groupId, group]) => [groupId, inGroup(group)]));
}

function comparisonIn(rewards: readonly number[], algorithm: Algorithm): Comparison {
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

function meanOf(values: readonly number[]): number {
  return sumOf(values) / values.length;
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
