/**
 * What a grader or a workflow may give as a reward, checked: a finite number, or a finite `value` with what it is made of. Rewards are at most
 * 1e30 from 0: advantages are single floats, and the squares and sums on the way to them must not become infinite.
 *
 * The result is a fresh plain object. Nothing is rounded, clamped or replaced, and nothing is left behind unseen: what is not a reward is an
 * error, never a number.
 */
import { describeValue, shortened } from './describe.ts';
import { TrainyardError } from './errors.ts';
import { isPlain } from './json.ts';
import { nearName } from './near-name.ts';
import { turnNamed } from './turns.ts';
import type { Reward, RolloutIdentity, Turn } from './types.ts';

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
  if (typeof result !== 'object' || result === null || Array.isArray(result)) {
    throw badReward(
      `${who} returned ${describeValue(result)}, expected a number or { value, success?, parts?, metrics?, byTurn?, byThread?, byRole? }${likely(result)}`,
    );
  }
  if (!('value' in result)) throw badReward(`${who} returned ${describeValue(result)}, in which \`value\` is missing`);
  checkKeys(result, who);
  const value = amount(result.value, `${who} returned an object whose \`value\` is`);
  const success = 'success' in result ? result.success : undefined;
  if (success !== undefined && typeof success !== 'boolean') {
    throw badReward(`${who} returned an object whose \`success\` is ${describeValue(success)}, expected true or false`);
  }
  const named = (Object.keys(MOST) as Named[]).flatMap((name) => {
    const given: unknown = name in result ? (result as Partial<Record<Named, unknown>>)[name] : undefined;
    if (given === undefined) return [];
    return [[name, numbers(name, name === 'byTurn' ? byIndex(given, turns, who) : given, who)] as const];
  });
  const untrained = 'untrained' in result && result.untrained !== undefined ? { untrained: texts(result.untrained, who) } : {};
  return { value, ...(success === undefined ? {} : { success }), ...Object.fromEntries(named), ...untrained };
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
  throw badReward(
    `${who} returned an object with ${describeValue(unknown)}; a reward has no ${describeValue(unknown)}; ${instead}`,
    'what is to be seen goes into `metrics`, as numbers',
  );
}

function numbers(name: Named, given: unknown, who: string): Readonly<Record<string, number>> {
  const one = name === 'parts' ? 'part' : name === 'metrics' ? 'metric' : `${name} of`;
  if (typeof given !== 'object' || given === null || !isPlain(given)) {
    throw badReward(`${who} returned \`${name}\` that are ${describeValue(given)}, expected an object of numbers`);
  }
  const entries = Object.entries(given);
  if (entries.length > MOST[name]) {
    throw badReward(`${who} returned ${entries.length} ${name}, expected at most ${MOST[name]}`);
  }
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

function quoted(name: string): string {
  return JSON.stringify(shortened(name, LONGEST_NAME));
}

function checkLengths(names: readonly string[], who: string): readonly string[] {
  const long = names.find(({ length }) => length > LONGEST_NAME);
  if (long === undefined) return names;
  throw badReward(
    `${who} returned a name of ${long.length} characters, ${describeValue(long)}, expected at most ${LONGEST_NAME}`,
  );
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
