/**
 * What each turn earned, and whom it is compared with: rewards of one kind, of the rollouts of one group.
 *
 * A turn's own reward is the most particular one given: by turn, then by thread, by role, and the rollout's value. Each kind is a pool
 * of its own: one for the values, one for each role and each thread that was rewarded by name, one for all rewards by turn. So what
 * a werewolf earned never moves what a villager is compared with. Names decide, never positions. Does not compare: advantages.ts does.
 */
import { earnedBy } from '../core/reward.ts';
import type { Reward, Trajectory } from '../core/types.ts';

/** The rewards of one kind, by the rollout that got them. */
export type Pool = ReadonlyMap<string, readonly number[]>;

/**
 * Every pool of one group. Each graded rollout is in a pool once; in that of rewards by turn with each of its trained turns that has one.
 * A rollout's value is compared even if none of its turns earned it.
 */
export function poolsOf(group: Iterable<Trajectory>): ReadonlyMap<string, Pool> {
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
  const byTurn = trajectory.turns.flatMap((turn) => {
    const earned = earnedBy(trajectory, turn);
    return earned?.pool === 'turn' ? [earned.reward] : [];
  });
  return byTurn.length === 0 ? own : own.set('turn', byTurn);
}

/** Pools from which a rollout takes its turns' rewards. One that was only given a value takes that, whatever its turns are. */
export function poolsAskedBy(trajectory: Trajectory): ReadonlySet<string> {
  if (trajectory.grade.kind !== 'graded') return new Set();
  const { byTurn, byThread, byRole, untrained } = trajectory.grade.reward;
  if ((byTurn ?? byThread ?? byRole ?? untrained) === undefined) return new Set(['value']);
  return new Set(trajectory.turns.flatMap((turn) => earnedBy(trajectory, turn)?.pool ?? []));
}

/**
 * Two rollouts that earned differently: without them there is nothing to compare. That the turns of one rollout earned differently is not
 * enough. With a discount the early ones always earn less, and would be trained away in a group in which all went equally well. Nor is it
 * that one had more turns than another, where all of them earned the same.
 */
export function differ(pool: Pool | undefined): boolean {
  const [first = [], ...others] = [...(pool?.values() ?? [])].map((rewards) => rewards.toSorted((a, b) => a - b));
  if (others.flat().every((reward) => reward === first[0]) && first[0] === first.at(-1)) return false;
  return others.some((rewards) => rewards.length !== first.length || rewards.some((reward, i) => reward !== first[i]));
}
