/**
 * The check of the options that built-in graders are made with, of all of them alike: a misspelt option would otherwise silently change
 * what is right. Everything that is wrong is said at once, when the grader is defined.
 */
import type { GraderInput } from '../core/contracts.ts';
import { describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';

/** Reads what is to be graded; for graders that should look at something else than the final answer. */
export type ReadSaid = (input: GraderInput) => string;

/** Every grader of texts may be told to read something else than the final answer. */
export interface TextOptions {
  /** Reads the text to grade; absent: the workflow's output, else the last message of the assistant. */
  readonly of?: ReadSaid;
}

const KINDS = {
  boolean: ['true or false', (value: unknown) => typeof value === 'boolean'],
  function: ['a function', (value: unknown) => typeof value === 'function'],
  text: ['a text', (value: unknown) => typeof value === 'string' && value.trim() !== ''],
  texts: [
    'a list of texts',
    (value: unknown) => Array.isArray(value) && value.length > 0 && value.every((text) => typeof text === 'string'),
  ],
  number: ['a finite number', (value: unknown) => Number.isFinite(value)],
  amount: ['a finite number from 0 up', (value: unknown) => Number.isFinite(value) && Number(value) >= 0],
  count: ['a whole number from 1 up', (value: unknown) => Number.isSafeInteger(value) && Number(value) >= 1],
  natural: ['a whole number from 0 up', (value: unknown) => Number.isSafeInteger(value) && Number(value) >= 0],
  /** Whoever is given it looks at it. */
  any: ['', () => true],
} as const;

/** What an option must be, or what it may be; not given is always allowed. */
export type OptionKinds = Readonly<Record<string, keyof typeof KINDS | readonly string[]>>;

/** Throws GRADER_INVALID. `more`: what else is wrong with an object of options, in words. */
export function checkOptions(
  grader: string,
  given: unknown,
  kinds: OptionKinds,
  more: () => Iterable<string> = () => [],
  hint?: string,
): void {
  const problems = isObject(given)
    ? [...faultsIn(given, kinds), ...more()]
    : [`expected an object of options, found ${describeValue(given)}`];
  if (problems.length === 0) return;
  throw new TrainyardError('GRADER_INVALID', `${grader}: ${problems.join('; ')}`, hint === undefined ? {} : { hint });
}

function faultsIn(given: object, kinds: OptionKinds): readonly string[] {
  return Object.entries(given).flatMap(([name, value]) => {
    const kind = Object.hasOwn(kinds, name) ? kinds[name] : undefined;
    if (kind === undefined) return unknownOptions({ [name]: value }, Object.keys(kinds));
    const [expected, fits] = typeof kind === 'string' ? KINDS[kind] : oneOf(kind);
    return value === undefined || fits(value) ? [] : [`${name} is ${describeValue(value)}, expected ${expected}`];
  });
}

function oneOf(names: readonly string[]): readonly [string, (value: unknown) => boolean] {
  return [names.map((name) => `'${name}'`).join(' or '), (value) => (names as readonly unknown[]).includes(value)];
}
