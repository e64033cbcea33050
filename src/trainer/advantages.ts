/**
 * Group-relative advantages: how much better a rollout was than the others of its own group, by three rules of comparison.
 *
 * Groups are told apart by `groupId` on each row, never by position. Only graded rollouts take part; a group needs two of
 * them, and two different rewards, to teach anything. The same rows in another order give the same numbers, bit for bit.
 * docs/reference/training.md says in words when to choose which; how much each token counts is decided in batch.ts.
 */
import { earnedBy } from '../core/reward.ts';
import type { Reward, Trajectory, Turn } from '../core/types.ts';

/**
 * With r the reward and n the rewards it is compared with, itself included:
 * `grpo` (r − mean) / (standard deviation + ε), `dr-grpo` r − mean, `rloo` r − mean of those that other rollouts got.
 */
export const ALGORITHMS = ['grpo', 'dr-grpo', 'rloo'] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

/**
 * What counts alike in a step: every trained token, and every reward of a pool; or every rollout, however many samples and rewards by turn it
 * has. Where each rollout has one reward and one sample of the same length the two are the same.
 */
export const WEIGHTINGS = ['tokens', 'rollouts'] as const;
export type Weighting = (typeof WEIGHTINGS)[number];

/** Keeps the quotient finite where a group's rewards hardly differ. */
const EPSILON = 1e-4;

/** Of a reward, given who got it. */
type Comparison = (reward: number, rolloutId: string) => number;

/** rolloutId → advantage of its value, for every graded rollout of groups whose values differ; others have no entry. */
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

/**
 * The advantage of a turn, by what it earned itself. Undefined where it is not trained, or where what it earned is compared with nothing
 * different: such a turn teaches nothing and belongs into no sample.
 */
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

/** Whether some reward of one group can be told from its like. */
export function hasSignal(group: readonly Trajectory[]): boolean {
  const pools = poolsOf(group);
  return group.some((trajectory) => [...poolsAskedBy(trajectory)].some((pool) => differ(pools.get(pool))));
}

/** By group and pool; only pools with signal. */
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
  // Sums of floating-point numbers depend on their order; this one is not the order of arrival.
  const sorted = weighed.toSorted((a, b) => a.reward - b.reward || a.weight - b.weight);
  // Counted, not added up: the weights of a rollout are thirds, say, and come to 1.
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
      return (reward) => reward - mean;
    case 'rloo':
      // Without all of the rollout's own rewards: what a turn is compared with must not depend on how the same rollout went on.
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

// ── reward pools ──────────────────────────────────────────────────────────────────────────────────────────────────────────

// A turn's own reward is the most particular one given (`earnedBy`). Each kind is a pool of its own: one for the values, one for each role and
// each thread that was rewarded by name, one for all rewards by turn. So what a werewolf earned never moves what a villager is compared with.

/** The rewards of one kind, by the rollout that got them. */
type Pool = ReadonlyMap<string, readonly number[]>;

/**
 * Every pool of one group. Each graded rollout is in a pool once; in that of rewards by turn with each of its trained turns that has one.
 * A rollout's value is compared even if none of its turns earned it.
 */
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

/** Pools from which a rollout takes its turns' rewards. One that was only given a value takes that, whatever its turns are. */
function poolsAskedBy(trajectory: Trajectory): ReadonlySet<string> {
  if (trajectory.grade.kind !== 'graded') return new Set();
  const { byTurn, byThread, byRole, untrained } = trajectory.grade.reward;
  if ((byTurn ?? byThread ?? byRole ?? untrained) === undefined) return new Set(['value']);
  return new Set(trajectory.turns.flatMap((turn) => earnedBy(trajectory, turn)?.pool ?? []));
}

/**
 * Whether two rollouts earned differently. That the turns of one did is not enough: with a discount the early ones always earn less, and would
 * be trained away where all went equally well. Nor is it enough that one had more turns, where all of them earned the same.
 */
function differ(pool: Pool | undefined): boolean {
  const [first = [], ...others] = [...(pool?.values() ?? [])].map((rewards) => rewards.toSorted((a, b) => a - b));
  if (others.flat().every((reward) => reward === first[0]) && first[0] === first.at(-1)) return false;
  return others.some((rewards) => rewards.length !== first.length || rewards.some((reward, i) => reward !== first[i]));
}
