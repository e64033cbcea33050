/**
 * What a grader or a workflow may give as a reward, checked: a finite number, or a finite `value` with what it is made of. Rewards are at most
 * 1e30 from 0: advantages are single floats, and the squares and sums on the way to them must not become infinite. Nothing is rounded, clamped,
 * replaced or dropped: what is not a reward is an error, never a number.
 */
import { describeValue, nearName, shortened } from './describe.ts';
import { TrainyardError } from './errors.ts';
import { defined, isObject, isPlain } from './json.ts';
import { turnNamed } from './turns.ts';
import type { ForkCause, Reward, RolloutIdentity, Trajectory, Turn } from './types.ts';

/** They are stored with every trajectory; parts become columns of reports. */
const MOST = { parts: 256, metrics: 256, byThread: 1000, byRole: 1000, byTurn: 100_000 } as const;
type Named = keyof typeof MOST;
/** Characters: a name is kept with every rollout, and repeated in every report. */
const LONGEST_NAME = 1_000;
/** What is only looked at may be any finite number. */
const LOOKED_AT: readonly Named[] = ['parts', 'metrics'];
const LARGEST_REWARD = 1e30;
/** What a reward may have, as messages list it. */
const KEYS = ['value', 'success', 'parts', 'metrics', 'byTurn', 'byThread', 'byRole', 'untrained'] as const;
/** Of a reward that was checked before, such as the workflow's own that a grader passes on: said anew, whatever it says. */
const STORED = ['source', 'credit'] as const;

/** Throws GRADER_BAD_REWARD, saying what `who` returned. `turns`: how many the rollout has, for rewards that come as a list. */
export function toReward(result: unknown, who = 'the grader', turns = 0): Reward {
  if (typeof result === 'number') return { value: amount(result, `${who} returned`) };
  if (!isObject(result)) {
    const expected = 'expected a number or { value, success?, parts?, metrics?, byTurn?, byThread?, byRole? }';
    throw badReward(`${who} returned ${describeValue(result)}, ${expected}${likely(result)}`);
  }
  if (!('value' in result)) throw badReward(`${who} returned ${describeValue(result)}, in which \`value\` is missing`);
  checkKeys(result, who);
  const { success, untrained, ...rest } = result;
  const value = amount(rest['value'], `${who} returned an object whose \`value\` is`);
  if (success !== undefined && typeof success !== 'boolean') {
    throw badReward(`${who} returned an object whose \`success\` is ${describeValue(success)}, expected true or false`);
  }
  const named = (Object.keys(MOST) as Named[]).flatMap((name) => {
    const given = name === 'byTurn' ? byIndex(rest[name], turns, who) : rest[name];
    return given === undefined ? [] : [[name, numbers(name, given, who)]];
  });
  return {
    ...{ value, ...Object.fromEntries(named) },
    ...defined({ success, untrained: untrained === undefined ? undefined : texts(untrained, who) }),
  };
}

/** With turns by their index, whatever they were called. Throws GRADER_BAD_REWARD for a turn, thread or role that is not there. */
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

/** A misspelt `success` would silently be no success at all. */
function checkKeys(result: object, who: string): void {
  const unknown = Object.keys(result).find((key) => !([...KEYS, ...STORED] as readonly string[]).includes(key));
  if (unknown === undefined) return;
  const meant = nearName(unknown, KEYS);
  const instead = meant === undefined ? `it may have ${KEYS.join(', ')}` : `did you mean ${meant}?`;
  const name = describeValue(unknown);
  const hint = 'what is to be seen goes into `metrics`, as numbers';
  throw badReward(`${who} returned an object with ${name}; a reward has no ${name}; ${instead}`, hint);
}

function numbers(name: Named, given: unknown, who: string): Readonly<Record<string, number>> {
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

/** A list must fit: with one number too few or too many, all behind the gap would be rewards of other turns. */
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

const quoted = (name: string): string => JSON.stringify(shortened(name, LONGEST_NAME));

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

/** What was most likely forgotten. In the message, because of a failed grading nothing else is kept. */
function likely(found: unknown): string {
  if (typeof found === 'boolean') return '; write Number(…) around it';
  return found === undefined ? '; is a `return` missing?' : '';
}

function badReward(message: string, hint = 'return a finite number, for example 1 or 0'): TrainyardError {
  return new TrainyardError('GRADER_BAD_REWARD', message, { hint });
}

// ── credit ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

// A reward counts, times the discount, for the turn before it, and so on to the beginning of its branch. Turns are a tree: a turn belongs to
// the one that its prompt continues. Each branch is followed on its own, so conversations that alternate, as those of sub-agents do, never
// earn for each other. Where a conversation went on in several ways, the turn before them gets the mean of what they earned. Turns of other
// models than the policy earn nothing, and neither do answers that nobody got.

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

/** `pool`: name of what the reward is compared with. */
interface Earned {
  readonly pool: string;
  readonly reward: number;
}

/**
 * The most particular reward that was given: by turn, then by thread, by role, and the rollout's value. Undefined where nothing of the turn is
 * trained: no grade, no trainable role, no sampled token, or a thread that is left out.
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

function named(rewards: Readonly<Record<string, number>> | undefined, name: string, pool: string): Earned | undefined {
  if (rewards === undefined || !Object.hasOwn(rewards, name)) return undefined;
  return { pool, reward: rewards[name]! };
}
