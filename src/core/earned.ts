/**
 * What a turn earned: the most particular reward that was given, by turn, then by thread, by role, and the rollout's value; and the name of
 * what it is compared with.
 */
import type { Reward, Trajectory, Turn } from './types.ts';

export interface Earned {
  readonly pool: string;
  readonly reward: number;
}

/** Undefined where nothing of it is trained: no grade, no trainable seat, no sampled token, or a thread that is left out. */
export function earnedBy({ grade }: Pick<Trajectory, 'grade'>, turn: Turn): Earned | undefined {
  if (grade.kind !== 'graded' || !isTrained(turn, grade.reward)) return undefined;
  const { byTurn, byThread, byRole, value } = grade.reward;
  return (
    named(byTurn, String(turn.index), 'turn') ??
    named(byThread, turn.thread, `thread ${turn.thread}`) ??
    named(byRole, turn.role, `role ${turn.role}`) ?? { pool: 'value', reward: value }
  );
}

function isTrained({ trainable, sampledIds, thread }: Turn, { untrained }: Reward): boolean {
  return trainable && sampledIds.length > 0 && !untrained?.includes(thread);
}

function named(rewards: Readonly<Record<string, number>> | undefined, name: string, pool: string): Earned | undefined {
  if (rewards === undefined || !Object.hasOwn(rewards, name)) return undefined;
  return { pool, reward: rewards[name]! };
}
