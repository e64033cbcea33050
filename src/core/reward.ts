/**
 * Validates rewards from graders and workflows: a finite number, or a finite `value` with its parts. Values stay within ±1e30, because
 * advantages are single floats and the squares and sums on the way to them must not overflow. Nothing is rounded, clamped, replaced or
 * dropped: an invalid reward is an error, never a number.
 */
import { describeValue, shortened } from './describe.ts';
import { nearName, TrainyardError } from './errors.ts';
import { defined, isObject, isPlain } from './json.ts';
import { turnNamed } from './turns.ts';
import type { ByName, ForkCause, Reward, RolloutIdentity, Trajectory, Turn } from './types.ts';

/** Limits, since all of these are stored with every trajectory and parts become report columns. */
const MOST = { parts: 256, metrics: 256, byThread: 1000, byRole: 1000, byTurn: 100_000 } as const;
type Named = keyof typeof MOST;
/** In characters. Every rollout stores the names, and every report repeats them. */
const LONGEST_NAME = 1_000;
/** Informational only, so any finite number is allowed. */
const LOOKED_AT: readonly Named[] = ['parts', 'metrics'];
const LARGEST_REWARD = 1e30;
const KEYS = ['value', 'success', 'parts', 'metrics', 'byTurn', 'byThread', 'byRole', 'untrained'] as const;
/** Set on a reward that was validated before, such as the workflow's own when a grader passes it on. Ignored: set again later. */
const STORED = ['source', 'credit'] as const;

/** Throws GRADER_BAD_REWARD, naming `who`. `turns` is the rollout's number of turns, which a `byTurn` list must match. */
export function toReward(result: unknown, who = 'the grader', turns = 0): Reward {
  if (typeof result === 'number') return { value: amount(result, `${who} returned`) };
  if (!isObject(result)) {
    const expected = 'expected a number or { value, success?, parts?, metrics?, byTurn?, byThread?, byRole? }';
    throw badReward(`${who} returned ${describeValue(result)}, ${expected}${likely(result)}`);
  }
  if (!('value' in result)) throw badReward(`${who} returned ${describeValue(result)}, in which \`value\` is missing`);
  checkKeys(result, who);
  // By name, not by a rest pattern: fields of a class may be getters of its prototype.
  const { success, untrained } = result;
  const value = amount(result['value'], `${who} returned an object whose \`value\` is`);
  if (success !== undefined && typeof success !== 'boolean') {
    throw badReward(`${who} returned an object whose \`success\` is ${describeValue(success)}, expected true or false`);
  }
  const named = (Object.keys(MOST) as Named[]).flatMap((name) => {
    const given = name === 'byTurn' ? byIndex(result[name], turns, who) : result[name];
    return given === undefined ? [] : [[name, numbers(name, given, who)]];
  });
  return {
    value,
    ...Object.fromEntries(named),
    ...defined({ success, untrained: untrained === undefined ? undefined : texts(untrained, who) }),
  };
}

/** Rewrites `byTurn` keys to turn indexes. Throws GRADER_BAD_REWARD for a turn, thread or role that the rollout does not have. */
export function settledReward(reward: Reward, identity: RolloutIdentity, turns: readonly Turn[]): Reward {
  const { byTurn, byThread = {}, byRole = {}, untrained = [] } = reward;
  for (const [what, given] of [
    ['thread', [...Object.keys(byThread), ...untrained]],
    ['role', Object.keys(byRole)],
  ] as const) {
    const known = new Set(turns.map((turn) => turn[what]));
    const unknown = given.find((name) => !known.has(name));
    if (unknown === undefined) continue;
    const names = shortened([...known].join(', ') || 'none', LONGEST_NAME);
    throw badReward(`a reward is for the ${what} ${quoted(unknown)}, which the rollout does not have; it has ${names}`);
  }
  if (byTurn === undefined) return reward;
  const settled = Object.entries(byTurn).map(([name, value]) => {
    const turn = turnNamed(identity, turns, name);
    if (turn !== undefined) return [String(turn.index), value] as const;
    throw badReward(`a reward is for the turn ${quoted(name)}, which the rollout does not have; it has ${turns.length} turns`);
  });
  const seen = new Set<string>();
  const twice = settled.find(([index]) => seen.size === seen.add(index).size)?.[0];
  if (twice !== undefined) throw badReward(`two rewards are for turn ${twice}, which has several names; expected one`);
  return { ...reward, byTurn: Object.fromEntries(settled) };
}

/** A misspelt `success` would otherwise be silently ignored. */
function checkKeys(result: object, who: string): void {
  const unknown = Object.keys(result).find((key) => !([...KEYS, ...STORED] as readonly string[]).includes(key));
  if (unknown === undefined) return;
  const meant = nearName(unknown, KEYS);
  const instead = meant === undefined ? `it may have ${KEYS.join(', ')}` : `did you mean ${meant}?`;
  const name = describeValue(unknown);
  const hint = 'what is to be seen goes into `metrics`, as numbers';
  throw badReward(`${who} returned an object with ${name}; a reward has no ${name}; ${instead}`, hint);
}

function numbers(name: Named, given: unknown, who: string): ByName<number> {
  const one = name === 'parts' ? 'part' : name === 'metrics' ? 'metric' : `${name} of`;
  if (typeof given !== 'object' || given === null || !isPlain(given)) {
    throw badReward(`${who} returned \`${name}\` that are ${describeValue(given)}, expected an object of numbers`);
  }
  const entries = Object.entries(given);
  if (entries.length > MOST[name]) throw badReward(`${who} returned ${entries.length} ${name}, expected at most ${MOST[name]}`);
  if (Object.hasOwn(given, '__proto__')) throw badReward(`${who} returned a ${one} named "__proto__", expected an ordinary name`);
  checkLengths(Object.keys(given), who);
  const checked = LOOKED_AT.includes(name) ? finite : amount;
  return Object.fromEntries(
    entries.map(([key, part]) => [key, checked(part, `${who} returned an object whose ${one} ${describeValue(key)} is`)]),
  );
}

/** The length must match: after a missing or extra number, every reward would belong to the wrong turn. */
function byIndex(given: unknown, turns: number, who: string): unknown {
  if (!Array.isArray(given)) return given;
  if (given.length === turns) return { ...given };
  throw badReward(`${who} returned ${given.length} rewards by turn, expected one for each of the rollout's ${turns} turns`);
}

function texts(given: unknown, who: string): readonly string[] {
  const isList = Array.isArray(given) && given.length <= MOST.byThread && given.every((name) => typeof name === 'string');
  if (isList) return checkLengths([...new Set<string>(given)], who);
  throw badReward(`${who} returned \`untrained\` that is ${describeValue(given)}, expected a list of threads`);
}

const quoted = (name: string) => JSON.stringify(shortened(name, LONGEST_NAME));

function checkLengths(names: readonly string[], who: string): readonly string[] {
  const long = names.find(({ length }) => length > LONGEST_NAME);
  if (long === undefined) return names;
  const found = `a name of ${long.length} characters, ${describeValue(long)}`;
  throw badReward(`${who} returned ${found}, expected at most ${LONGEST_NAME}`);
}

function amount(value: unknown, found: string): number {
  const reward = finite(value, found);
  if (Math.abs(reward) <= LARGEST_REWARD) return reward;
  throw badReward(`${found} ${reward}, expected a number from -1e30 to 1e30`);
}

function finite(value: unknown, found: string): number {
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw badReward(`${found} ${describeValue(value)}, expected a finite number${likely(value)}`);
}

/** The likely mistake. Part of the message, because a failed grading stores nothing else. */
function likely(found: unknown): string {
  if (typeof found === 'boolean') return '; write Number(…) around it';
  return found === undefined ? '; is a `return` missing?' : '';
}

function badReward(message: string, hint = 'return a finite number, for example 1 or 0'): TrainyardError {
  return new TrainyardError('GRADER_BAD_REWARD', message, hint);
}

// Credit. A reward also counts, discounted, for the turn before it, and so on back to the start of its branch. Turns form a tree: a turn's
// parent is the turn that its prompt continues. Each branch is followed separately, so conversations that alternate, such as those of
// sub-agents, never earn for each other. A turn with several continuations gets the mean of what they earned. Turns of models other than
// the policy and undelivered responses earn nothing.

const CREDIT_UNITS = ['turn', 'row'] as const;

export interface Credit {
  /** From 0 (each turn earns only its own reward) to 1 (all later rewards count in full). */
  readonly turnDiscount: number;
  /** `row`: every turn of a training row gets what the row's last turn earned. */
  readonly per: (typeof CREDIT_UNITS)[number];
}

/** Forks after which the same conversation continues in changed form. */
const GOES_ON: readonly ForkCause[] = [
  'changed_tools',
  'compaction',
  'dropped_reasoning',
  'dropped_tool_call',
  'edited_message',
  'template_rewrites_history',
];

/**
 * Assigns a reward to each of the policy's turns. If the reward has `byTurn`, unlisted turns earn nothing of their own; if it is one value,
 * the end of each branch earns it. Throws USAGE if credit was already applied.
 */
export function credited(reward: Reward, turns: readonly Turn[], credit: Credit): Reward {
  checkCredit(credit);
  if (reward.credit !== undefined) {
    const hint = 'rewards that were discounted once hold what later turns earned; discount the rewards as they were given';
    throw new TrainyardError('USAGE', 'the turns’ rewards were discounted before', hint);
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
  const counts = ({ index }: Turn) => earned.get(ends?.get(index) ?? index) ?? 0;
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

/** The turn whose conversation this one continues, possibly in changed form. */
export function parentOf({ after, fork }: Turn): number | undefined {
  return after ?? (fork !== undefined && GOES_ON.includes(fork.cause) ? fork.from : undefined);
}

/** Maps each turn to the last turn of its row. If several turns continue the same one, the first is in its row. */
function rowEnds(turns: readonly Turn[]): ReadonlyMap<number, number> {
  const ends = new Map<number, number>();
  // Iterates backwards, so that later turns are known; the first of several continuations is written last and wins.
  const next = new Map<number, number>();
  for (const { index, after } of turns.toSorted((a, b) => b.index - a.index)) {
    const following = next.get(index);
    ends.set(index, following === undefined ? index : (ends.get(following) ?? following));
    if (after !== undefined) next.set(after, index);
  }
  return ends;
}

/** `pool` names the set of rewards that this one is compared with. */
interface Earned {
  readonly pool: string;
  readonly reward: number;
}

/**
 * The most specific reward for the turn: by turn, then thread, then role, then the rollout's value. Undefined if the turn is not trained:
 * no grade, no trainable role, no sampled token, or an untrained thread.
 */
export function earnedBy({ grade }: Pick<Trajectory, 'grade'>, turn: Turn): Earned | undefined {
  if (grade.kind !== 'graded' || !turn.trainable || turn.sampledIds.length === 0) return undefined;
  const { byTurn, byThread, byRole, value, untrained } = grade.reward;
  if (untrained?.includes(turn.thread)) return undefined;
  return (
    named(byTurn, String(turn.index), 'turn') ??
    named(byThread, turn.thread, `thread ${turn.thread}`) ??
    named(byRole, turn.role, `role ${turn.role}`) ?? { pool: 'value', reward: value }
  );
}

function named(rewards: ByName<number> | undefined, name: string, pool: string): Earned | undefined {
  if (rewards === undefined || !Object.hasOwn(rewards, name)) return undefined;
  return { pool, reward: rewards[name]! };
}
