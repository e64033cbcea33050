/**
 * What each turn earned, and how far back in a conversation a reward counts. What a turn earned counts, times the discount, for the turn
 * before it, and so on to the beginning of its branch.
 *
 * Turns are a tree: a turn belongs to the one that its prompt goes on from. Each branch is followed on its own, so conversations that take
 * turns with each other, as those of sub-agents do, never earn for each other. Where a conversation went on in several ways, the turn
 * before them gets the mean of what they earned: it led to each of them alike. Turns of other models than the policy earn nothing,
 * and neither do answers that nobody got: they led to nothing.
 */
import { TrainyardError } from './errors.ts';
import type { ForkCause, Reward, Trajectory, Turn } from './types.ts';

const CREDIT_UNITS = ['turn', 'row'] as const;

export interface Credit {
  /** From 0, every turn for itself, to 1, all that follows counts in full. */
  readonly turnDiscount: number;
  /** `row`: every turn of a training row gets what the row's last turn earned. */
  readonly per: (typeof CREDIT_UNITS)[number];
}

/** Forks after which the same conversation goes on in other words. */
const GOES_ON: readonly ForkCause[] = [
  'changed_tools',
  'compaction',
  'dropped_reasoning',
  'dropped_tool_call',
  'edited_message',
  'template_rewrites_history',
];

/**
 * With a reward for each of the policy's turns. Where the reward names turns these earned it and the others nothing of their own; where it
 * is one value, the end of each branch earned it. Not to be applied twice: throws USAGE where it was before.
 */
export function credited(reward: Reward, turns: readonly Turn[], credit: Credit): Reward {
  checkCredit(credit);
  if (reward.credit !== undefined) {
    const hint = 'rewards that were discounted once hold what later turns earned; discount the rewards as they were given';
    throw new TrainyardError('USAGE', 'the turns’ rewards were discounted before', { hint });
  }
  const { turnDiscount, per } = credit;
  if (reward.byTurn === undefined && (turnDiscount === 1 || per === 'row')) return reward;
  const own = turns.filter((turn) => turn.model === undefined && turn.sampledIds.length > 0 && !turn.undelivered);
  const following = Map.groupBy(own, parentOf);
  const earned = new Map<number, number>();
  for (const turn of own.toSorted((a, b) => b.index - a.index)) {
    const next = following.get(turn.index) ?? [];
    const given = reward.byTurn === undefined ? (next.length === 0 ? reward.value : 0) : (reward.byTurn[turn.index] ?? 0);
    const later = next.reduce((sum, { index }) => sum + (earned.get(index) ?? 0), 0) / Math.max(1, next.length);
    earned.set(turn.index, given + turnDiscount * later);
  }
  const ends = per === 'row' ? rowEnds(own) : undefined;
  const counts = ({ index }: Turn): number => earned.get(ends?.get(index) ?? index) ?? 0;
  return { ...reward, byTurn: Object.fromEntries(own.map((turn) => [turn.index, counts(turn)])), credit: { turnDiscount, per } };
}

export function checkCredit({ turnDiscount, per }: Credit): void {
  if (!(typeof turnDiscount === 'number' && turnDiscount >= 0 && turnDiscount <= 1)) {
    throw new TrainyardError('USAGE', `turnDiscount is ${String(turnDiscount)}, expected a number from 0 to 1`);
  }
  if (!CREDIT_UNITS.includes(per)) {
    throw new TrainyardError('USAGE', `credit per ${JSON.stringify(per)}, expected one of ${CREDIT_UNITS.join(', ')}`);
  }
}

function parentOf({ after, fork }: Turn): number | undefined {
  return after ?? (fork !== undefined && GOES_ON.includes(fork.cause) ? fork.from : undefined);
}

/** The last turn of each turn's row. Of turns that go on from the same one, the first is in its row. */
function rowEnds(turns: readonly Turn[]): ReadonlyMap<number, number> {
  const ends = new Map<number, number>();
  // Backwards, so that what follows is known; the first of several is written last.
  const next = new Map<number, number>();
  for (const { index, after } of turns.toSorted((a, b) => b.index - a.index)) {
    const following = next.get(index);
    ends.set(index, following === undefined ? index : (ends.get(following) ?? following));
    if (after !== undefined) next.set(after, index);
  }
  return ends;
}

interface Earned {
  /** Name of what it is compared with. */
  readonly pool: string;
  readonly reward: number;
}

/**
 * The most particular reward that was given: by turn, then by thread, by role, and the rollout's value. Undefined where nothing of the turn is
 * trained: no grade, no trainable seat, no sampled token, or a thread that is left out.
 */
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
