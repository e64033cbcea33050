/**
 * Group-relative advantages: how much better a rollout did than the others of its group, by four algorithms. Groups are identified by
 * `groupId`, never by position. Only graded rollouts count; a group needs two of them, with different rewards, to give a signal. The order
 * of the rows does not change the numbers, bit for bit. docs/reference/training.md explains which algorithm to choose; batch.ts weights the
 * tokens.
 */
import { earnedBy } from '../core/reward.ts';
import type { Reward, Trajectory, Turn } from '../core/types.ts';
import type { Algorithm, Weighting } from '../settings/settings.ts';

/** Keeps the quotient finite if a group's rewards hardly differ. */
const EPSILON = 1e-4;

/** Rewards that differ by less are the same reward after rounding, and no signal: normalised, they would become a full gradient of noise. */
export const LEAST_DIFFERENCE = 1e-9;

/** Maps a reward, and the rollout that got it, to its advantage. */
type Comparison = (reward: number, rolloutId: string) => number;

/** rolloutId → advantage of its value, for graded rollouts of groups whose values differ. */
export function advantagesOf(trajectories: Iterable<Trajectory>, algorithm: Algorithm): ReadonlyMap<string, number> {
  const rows = [...trajectories];
  const comparisons = comparisonsOf(rows, algorithm, 'tokens');
  const advantages = new Map<string, number>();
  for (const { rolloutId, groupId, grade } of rows) {
    const compare = comparisons.get(groupId)?.get('value');
    if (compare !== undefined && grade.kind === 'graded') advantages.set(rolloutId, compare(grade.reward.value, rolloutId));
  }
  return advantages;
}

/** The advantage of a turn by its own reward. Undefined if it is not trained, or without signal: such a turn belongs in no sample. */
export function turnAdvantagesOf(
  trajectories: Iterable<Trajectory>,
  algorithm: Algorithm,
  weighting: Weighting = 'tokens',
): (trajectory: Trajectory, turn: Turn) => number | undefined {
  const comparisons = comparisonsOf(trajectories, algorithm, weighting);
  return (trajectory, turn) => {
    const earned = earnedBy(trajectory, turn);
    if (earned === undefined) return undefined;
    return comparisons.get(trajectory.groupId)?.get(earned.pool)?.(earned.reward, trajectory.rolloutId);
  };
}

/** Whether at least one reward in the group differs from those it is compared with. */
export function hasSignal(group: readonly Trajectory[]): boolean {
  const pools = poolsOf(group);
  return group.some((trajectory) => [...poolsAskedBy(trajectory)].some((pool) => differ(pools.get(pool))));
}

function comparisonsOf(
  trajectories: Iterable<Trajectory>,
  algorithm: Algorithm,
  weighting: Weighting,
): ReadonlyMap<string, ReadonlyMap<string, Comparison>> {
  const groups = Map.groupBy(trajectories, ({ groupId }) => groupId);
  const inGroup = (group: readonly Trajectory[]): ReadonlyMap<string, Comparison> => {
    const pools = [...poolsOf(group)].filter(([, pool]) => differ(pool));
    return new Map(pools.map(([name, pool]) => [name, comparisonIn(pool, algorithm, weighting)]));
  };
  return new Map([...groups].map(([groupId, group]) => [groupId, inGroup(group)]));
}

function comparisonIn(pool: Pool, algorithm: Algorithm, weighting: Weighting): Comparison {
  const weightOf = (rewards: readonly number[] | undefined): number =>
    weighting === 'rollouts' ? 1 / (rewards?.length ?? 1) : 1;
  const weighed = [...pool.values()].flatMap((rewards) => rewards.map((reward) => ({ reward, weight: weightOf(rewards) })));
  // Floating-point sums depend on the order, so it must not be the order of arrival.
  const sorted = weighed.toSorted((a, b) => a.reward - b.reward || a.weight - b.weight);
  // Counted, because a rollout's weights (thirds, say) need not add up to exactly 1.
  const all = weighting === 'rollouts' ? pool.size : sorted.length;
  const sum = sumOf(sorted);
  const mean = sum / all;
  switch (algorithm) {
    case 'grpo': {
      const distances = sorted.map(({ reward, weight }) => ({ reward: (reward - mean) ** 2, weight }));
      const deviation = Math.sqrt(sumOf(distances) / all);
      return (reward) => (reward - mean) / (deviation + EPSILON);
    }
    case 'dr-grpo':
    case 'reinforce++':
      return (reward) => reward - mean;
    case 'rloo':
      // Excludes all of the rollout's own rewards: a turn's baseline must not depend on how its rollout went on.
      return (reward, rolloutId) => {
        const own = (pool.get(rolloutId) ?? []).toSorted((a, b) => a - b);
        const ownSum = sumOf(own.map((one) => ({ reward: one, weight: weightOf(own) })));
        return reward - (sum - ownSum) / (all - (weighting === 'rollouts' ? 1 : own.length));
      };
  }
}

function sumOf(values: readonly { readonly reward: number; readonly weight: number }[]): number {
  return values.reduce((sum, { reward, weight }) => sum + weight * reward, 0);
}

// A turn's reward is the most specific one given (`earnedBy`). Rewards are only compared within a pool: one for values, one for each role
// and each thread rewarded by name, one for all rewards by turn. So a werewolf's rewards never shift a villager's baseline.

type Pool = ReadonlyMap<string, readonly number[]>;

/** A graded rollout adds one reward to each pool, or one per rewarded turn. Its value is compared even if none of its turns earned it. */
function poolsOf(group: Iterable<Trajectory>): ReadonlyMap<string, Pool> {
  const pools = new Map<string, Map<string, number[]>>();
  for (const trajectory of new Map(Array.from(group, (one) => [one.rolloutId, one])).values()) {
    if (trajectory.grade.kind !== 'graded') continue;
    for (const [name, rewards] of rewardsOf(trajectory, trajectory.grade.reward)) {
      const pool = pools.get(name) ?? new Map<string, number[]>();
      pools.set(name, pool.set(trajectory.rolloutId, rewards));
    }
  }
  return pools;
}

function rewardsOf(trajectory: Trajectory, reward: Reward): ReadonlyMap<string, number[]> {
  const own = new Map([['value', [reward.value]]]);
  for (const [role, earned] of Object.entries(reward.byRole ?? {})) own.set(`role ${role}`, [earned]);
  for (const [thread, earned] of Object.entries(reward.byThread ?? {})) {
    if (!reward.untrained?.includes(thread)) own.set(`thread ${thread}`, [earned]);
  }
  if (reward.byTurn === undefined) return own;
  const earned = trajectory.turns.map((turn) => earnedBy(trajectory, turn));
  const byTurn = earned.flatMap((one) => (one?.pool === 'turn' ? [one.reward] : []));
  return byTurn.length === 0 ? own : own.set('turn', byTurn);
}

/** The pools that a rollout's turns take their rewards from: always the value's, whatever its turns are, if that is its only reward. */
function poolsAskedBy(trajectory: Trajectory): ReadonlySet<string> {
  if (trajectory.grade.kind !== 'graded') return new Set();
  const { byTurn, byThread, byRole, untrained } = trajectory.grade.reward;
  if ((byTurn ?? byThread ?? byRole ?? untrained) === undefined) return new Set(['value']);
  return new Set(trajectory.turns.flatMap((turn) => earnedBy(trajectory, turn)?.pool ?? []));
}

/**
 * Whether two rollouts earned differently. Differences between one rollout's turns are not enough: with a discount, early turns always earn
 * less, and would be trained away even if all rollouts did equally well. Nor are different numbers of turns if all of them earned the same.
 */
function differ(pool: Pool | undefined): boolean {
  const all = [...(pool?.values() ?? [])].map((rewards) => rewards.toSorted((a, b) => a - b));
  const isFar = (a: number, b: number): boolean => Math.abs(a - b) >= LEAST_DIFFERENCE;
  const lowest = Math.min(...all.map((rewards) => rewards[0]!));
  const highest = Math.max(...all.map((rewards) => rewards.at(-1)!));
  if (!isFar(lowest, highest)) return false;
  const [first = [], ...others] = all;
  return others.some((rewards) => rewards.length !== first.length || rewards.some((reward, i) => isFar(reward, first[i]!)));
}
