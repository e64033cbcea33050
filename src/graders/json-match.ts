/**
 * `jsonMatch`: whether what was said is JSON, fits a schema, and equals the task's answer.
 *
 * A text without JSON in it is the policy's mistake: 0. A task without an answer, a pattern that takes forever, or more than can be checked is
 * not: unscorable.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject, MAX_NESTING, nestingOf, parsedJson } from '../core/json.ts';
import { referred, type Schema, schemaFault, TOO_INVOLVED } from '../core/json-schema.ts';
import type { Json, Reward } from '../core/types.ts';
import { answerOf, checkOptions, type OptionKinds, saidBy, type TextOptions } from './answer-text.ts';
import { regexesTogether, regexWithin, statelessRegex } from './text-match.ts';

// ── the JSON in a text ───────────────────────────────────────────────────────────────────────────────────────────────

const FENCE = /```[^\n`]*\n([\s\S]*?)```/g;
/** Characters looked at; each of some hundred brackets that are never closed costs the rest of the text. */
const MOST_LOOKS = 20_000_000;

type Found = { readonly value: Json } | undefined;

/**
 * The value that a text gives: the whole text, or the last fenced block that is JSON, or the last object or list in it. The work is bounded:
 * a text of nothing but opening brackets would otherwise take time by the square of its length. Values nested deeper than any honest one
 * are none, because whoever compares them would run out of stack.
 */
export function jsonInText(text: string): Found {
  return parsed(text.trim()) ?? lastFenced(text) ?? lastBracketed(text);
}

function parsed(text: string): Found {
  try {
    return nestingOf(text) > MAX_NESTING ? undefined : { value: JSON.parse(text) as Json };
  } catch {
    return undefined;
  }
}

function lastFenced(text: string): Found {
  const blocks = [...text.matchAll(FENCE)].map(([, inside = '']) => inside.trim());
  for (const block of blocks.toReversed()) {
    const found = parsed(block);
    if (found !== undefined) return found;
  }
  return undefined;
}

function lastBracketed(text: string): Found {
  let last: Found;
  for (const { value } of bracketedIn(text)) last = { value };
  return last;
}

/** Every object and list of a text that is inside of no other, with the text it was read from. */
export function* bracketedIn(text: string): Generator<{ readonly value: Json; readonly json: string }> {
  let looks = 0;
  for (let start = 0; start < text.length && looks < MOST_LOOKS; start++) {
    const char = text[start];
    if (char !== '{' && char !== '[') continue;
    const end = endOfValue(text, start);
    looks += (end ?? text.length) - start;
    if (end === undefined) continue;
    const json = text.slice(start, end);
    const isTooDeep = nestingOf(json) > MAX_NESTING;
    const found = isTooDeep ? undefined : parsed(json);
    if (found !== undefined) yield { ...found, json };
    // What is inside of a value is no answer of its own, and neither are the inner levels of one that is too deep.
    if (found !== undefined || isTooDeep) start = end - 1;
  }
}

/** Behind the bracket that closes the one at `start`; undefined where none does. */
function endOfValue(text: string, start: number): number | undefined {
  let depth = 0;
  let inString = false;
  for (let i = start; i < text.length; i++) {
    const char = text[i];
    if (inString) {
      if (char === '\\') i++;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === '{' || char === '[') depth++;
    else if ((char === '}' || char === ']') && --depth === 0) return i + 1;
  }
  return undefined;
}

// ── whether two JSON values are equal, as far as a grader cares ─────────────────────────────────────────────────────────

export interface JsonEquality {
  /** How far numbers may be apart, as a share of the expected one, or absolutely where that is below 1. Default 0. */
  readonly tolerance?: number;
  /** Whether lists are compared as bags: the same items, as often, in any order. Default false. */
  readonly anyOrder?: boolean;
  /** Whether objects may have more members than expected. Default false. */
  readonly moreMembers?: boolean;
}

/** The order of keys never counts. */
export function jsonEqual(expected: Json, found: Json, how: JsonEquality = {}): boolean {
  if (typeof expected === 'number' && typeof found === 'number') {
    const most = (how.tolerance ?? 0) * Math.max(1, Math.abs(expected));
    return expected === found || Math.abs(expected - found) <= most;
  }
  if (isList(expected)) return isList(found) && listsEqual(expected, found, how);
  if (isObject(expected)) return isObject(found) && objectsEqual(expected, found, how);
  return expected === found;
}

export function isList(value: Json): value is readonly Json[] {
  return Array.isArray(value);
}

function objectsEqual(
  expected: { readonly [key: string]: Json },
  found: { readonly [key: string]: Json },
  how: JsonEquality,
): boolean {
  const keys = Object.keys(expected);
  if (!how.moreMembers && Object.keys(found).length !== keys.length) return false;
  return keys.every((key) => Object.hasOwn(found, key) && jsonEqual(expected[key]!, found[key]!, how));
}

function listsEqual(expected: readonly Json[], found: readonly Json[], how: JsonEquality): boolean {
  if (expected.length !== found.length) return false;
  if (!how.anyOrder) return expected.every((one, i) => jsonEqual(one, found[i]!, how));
  return mostPairs(expected.length, found.length, (e, f) => jsonEqual(expected[e]!, found[f]!, how)) === expected.length;
}

/**
 * How many of `left` things can be paired with different ones of `right` others. Taking the first that fits would not do: with a tolerance,
 * or with arguments that are a subset, it can take away the only one that fits another.
 */
export function mostPairs(left: number, right: number, fits: (left: number, right: number) => boolean): number {
  const fitting = Array.from({ length: left }, (_, l) => Array.from({ length: right }, (_, r) => r).filter((r) => fits(l, r)));
  const partner = new Map<number, number>();
  const place = (l: number, tried: Set<number>): boolean =>
    fitting[l]!.some((r) => {
      if (tried.has(r)) return false;
      tried.add(r);
      const other = partner.get(r);
      if (other !== undefined && !place(other, tried)) return false;
      partner.set(r, l);
      return true;
    });
  return Array.from({ length: left }, (_, l) => place(l, new Set())).filter(Boolean).length;
}

export interface JsonMatchOptions extends TextOptions, Pick<JsonEquality, 'tolerance' | 'anyOrder'> {
  /** A JSON Schema that what was said must fit. */
  readonly schema?: Schema;
  /** `answer`: it must equal the task's answer, too. An answer that is a text with a JSON object or list stands for that. */
  readonly equals?: 'answer';
  /** Whether an object that is right in some of its members earns their share. Default false: all or nothing. */
  readonly partial?: boolean;
}

const KINDS: OptionKinds = {
  schema: 'any',
  equals: ['answer'],
  partial: 'boolean',
  tolerance: 'amount',
  anyOrder: 'boolean',
  of: 'function',
};

/** Fields beyond these count, and have no part of their own. */
const MOST_FIELDS = 200;

/** Throws GRADER_INVALID for a schema that cannot be checked in full. */
export function jsonMatch(options: JsonMatchOptions): Grader {
  checkOptions(
    'jsonMatch',
    options,
    KINDS,
    () => optionFaults(options),
    'write jsonMatch({ schema }), or jsonMatch({ equals: "answer" })',
  );
  const { schema, equals, partial = false, of } = options;
  if (schema !== undefined) checkSchema(schema, 'jsonMatch');
  const fits = schema === undefined ? undefined : fitting(schema);
  return defineGrader({
    name: 'jsonMatch',
    grade(input) {
      const expected = equals === undefined ? undefined : { value: expectedOf(input) };
      const found = jsonInText(saidBy(input, of));
      if (found === undefined) return scored(0, { json: 0 });
      if (fits !== undefined && !fits(found.value)) return scored(0, { json: 1, schema: 0 });
      const parts = { json: 1, ...(fits === undefined ? {} : { schema: 1 }) };
      if (expected === undefined) return scored(1, parts);
      const equal = partial ? sharesOf(expected.value, found.value, options) : undefined;
      if (equal !== undefined) return scored(equal.value, { ...parts, ...equal.parts });
      const isEqual = jsonEqual(expected.value, found.value, options) ? 1 : 0;
      return scored(isEqual, { ...parts, equal: isEqual });
    },
  });
}

function scored(value: number, parts: NonNullable<Reward['parts']>): Reward {
  return { value, success: value === 1, parts };
}

/** Expressions are made once: a schema is applied to every rollout. */
function fitting(schema: Schema): (value: Json) => boolean {
  const expressions = new Map<string, ReturnType<typeof regexWithin>>();
  const expression = (pattern: string): ReturnType<typeof regexWithin> => {
    const known = expressions.get(pattern) ?? regexWithin(statelessRegex(pattern));
    expressions.set(pattern, known);
    return known;
  };
  return (value) => {
    const within = regexesTogether();
    const fault = schemaFault(schema, value, (pattern, text) => within(expression(pattern), text));
    // Not checked to the end, so it is not known to be wrong.
    if (fault === TOO_INVOLVED) return unscorable(`what was said is ${fault}`);
    return fault === undefined;
  };
}

function expectedOf(input: GraderInput): Json {
  // An empty list is a JSON value like any other.
  const answer: Json = Array.isArray(input.task.answer) ? input.task.answer : answerOf(input);
  const isJson = typeof answer === 'string' && /^\s*[[{]/.test(answer);
  return isJson ? ((parsedJson(answer) as Json | undefined) ?? answer) : answer;
}

/** Of all fields that are expected or there, those that are right. Undefined where no object is expected. */
function sharesOf(expected: Json, found: Json, how: JsonEquality): Pick<Reward, 'value' | 'parts'> | undefined {
  if (!isObject(expected)) return undefined;
  const given = isObject(found) && !isList(found) ? found : {};
  const names = Object.keys(expected);
  const isRight = (name: string): boolean => Object.hasOwn(given, name) && jsonEqual(expected[name]!, given[name]!, how);
  const right = new Set(names.filter(isRight));
  const extra = Object.keys(given).filter((name) => !Object.hasOwn(expected, name)).length;
  const all = names.length + extra;
  const parts = names.slice(0, MOST_FIELDS).map((name) => [`field.${name}`, right.has(name) ? 1 : 0]);
  return { value: all === 0 ? (isObject(found) ? 1 : 0) : right.size / all, parts: Object.fromEntries(parts) };
}

function* optionFaults({ schema, equals, partial }: JsonMatchOptions): Generator<string> {
  if (schema === undefined && equals === undefined) yield 'expected schema, equals or both, found neither';
  if (partial === true && equals === undefined) yield "partial needs equals: 'answer'";
}

// ── whether a schema can be checked in full ─────────────────────────────────────────────────────────────────────────────

type Kind = (value: unknown) => string | undefined;

const TYPES = ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object'];
const expected =
  (what: string, isIt: (value: unknown) => boolean): Kind =>
  (value) =>
    isIt(value) ? undefined : `expected ${what}`;
const isTexts = (value: unknown): boolean => Array.isArray(value) && value.every((one) => typeof one === 'string');
const isType = (value: unknown): boolean => typeof value === 'string' && TYPES.includes(value);

const anything: Kind = () => undefined;
const number = expected('a number', (value) => typeof value === 'number' && Number.isFinite(value));
const count = expected('a whole number from 0 up', (value) => Number.isSafeInteger(value) && (value as number) >= 0);
const trueOrFalse = expected('true or false', (value) => typeof value === 'boolean');
const types = expected(
  `one or several of ${TYPES.join(', ')}`,
  (value) => isType(value) || (Array.isArray(value) && value.length > 0 && value.every(isType)),
);

const all = (names: string, kind: Kind): Readonly<Record<string, Kind>> =>
  Object.fromEntries(names.split(' ').map((name) => [name, kind]));

/** What stands for itself. The rest holds schemas, and is walked below. */
const PLAIN: Readonly<Record<string, Kind>> = {
  ...all('$schema $id $comment $anchor title description default examples const', anything),
  ...all('deprecated readOnly writeOnly uniqueItems', trueOrFalse),
  ...all('minimum maximum exclusiveMinimum exclusiveMaximum', number),
  ...all('minLength maxLength minItems maxItems minProperties maxProperties', count),
  type: types,
  enum: expected('a list', Array.isArray),
  required: expected('a list of names', isTexts),
  multipleOf: expected('a number above 0', (value) => typeof value === 'number' && value > 0 && Number.isFinite(value)),
  pattern: (value) => (typeof value === 'string' ? patternFault(value) : 'expected a text'),
};
const ONE = ['items', 'additionalProperties', 'not'];
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems'];
const NAMED = ['properties', 'patternProperties', '$defs', 'definitions'];
const MOST_SHOWN = 20;

/**
 * Every keyword is one that is looked at, references lead somewhere, patterns are patterns. A keyword that is silently ignored would let
 * through what its author meant to refuse, and the policy would learn that. Throws GRADER_INVALID with everything that is wrong.
 */
function checkSchema(schema: unknown, whose: string): asserts schema is Schema {
  const text = textOf(schema);
  if (text === undefined) throw invalid(whose, ['the schema: expected plain JSON']);
  if (nestingOf(text) > MAX_NESTING) throw invalid(whose, [`the schema: nested deeper than ${MAX_NESTING} levels`]);
  const faults = [...faultsIn(schema, schema, '#')];
  if (faults.length > 0) throw invalid(whose, faults);
  const loops = [...loopsIn(schema, schema, '#')];
  if (loops.length > 0) throw invalid(whose, loops);
}

function* faultsIn(root: unknown, schema: unknown, at: string): Generator<string> {
  if (typeof schema === 'boolean') return;
  if (!isObject(schema)) {
    yield `${at}: expected a schema: an object, true or false`;
    return;
  }
  for (const [keyword, value] of Object.entries(schema)) yield* keywordFaults(root, keyword, value, `${at}/${keyword}`);
}

function* keywordFaults(root: unknown, keyword: string, value: unknown, at: string): Generator<string> {
  if (Object.hasOwn(PLAIN, keyword)) {
    const fault = PLAIN[keyword]!(value);
    if (fault !== undefined) yield `${at}: ${fault}`;
  } else if (keyword === '$ref') {
    if (typeof value !== 'string' || !leadsSomewhere(root, value))
      yield `${at}: expected a reference into this schema, as #/$defs/name`;
  } else if (LISTS.includes(keyword) || (keyword === 'items' && Array.isArray(value))) {
    if (!Array.isArray(value) || value.length === 0) yield `${at}: expected a list of schemas`;
    else for (const [i, one] of value.entries()) yield* faultsIn(root, one, `${at}/${i}`);
  } else if (ONE.includes(keyword)) yield* faultsIn(root, value, at);
  else if (NAMED.includes(keyword)) yield* namedFaults(root, keyword, value, at);
  else yield `${at}: this keyword is not checked here${keyword === 'format' ? '; use pattern' : ''}`;
}

function* namedFaults(root: unknown, keyword: string, value: unknown, at: string): Generator<string> {
  if (!isObject(value)) {
    yield `${at}: expected an object of schemas`;
    return;
  }
  for (const [name, one] of Object.entries(value)) {
    const fault = keyword === 'patternProperties' ? patternFault(name) : undefined;
    if (fault !== undefined) yield `${at}/${name}: ${fault}`;
    yield* faultsIn(root, one, `${at}/${name}`);
  }
}

function patternFault(pattern: string): string | undefined {
  try {
    new RegExp(pattern, 'u');
    return undefined;
  } catch {
    return 'expected a regular expression (flag u)';
  }
}

function leadsSomewhere(root: unknown, ref: string): boolean {
  const target = referred(root, ref);
  return typeof target === 'boolean' || isObject(target);
}

/** References that lead back to themselves before they look at any part of a value: whatever is said, the check would never end. */
function* loopsIn(root: unknown, schema: unknown, at: string): Generator<string> {
  if (typeof schema !== 'object' || schema === null) return;
  if (isObject(schema) && leadsTo(root, schema, schema, new Set())) yield `${at}: leads back to itself by $ref`;
  for (const [name, one] of Object.entries(schema)) {
    if (!['const', 'enum', 'default', 'examples'].includes(name)) yield* loopsIn(root, one, `${at}/${name}`);
  }
}

function leadsTo(root: unknown, from: unknown, goal: unknown, seen: Set<unknown>): boolean {
  if (!isObject(from) || seen.has(from)) return false;
  seen.add(from);
  const { $ref, allOf, anyOf, oneOf, not } = from;
  const target = typeof $ref === 'string' ? referred(root, $ref) : undefined;
  const next = [target, not, ...[allOf, anyOf, oneOf].flatMap((list) => (Array.isArray(list) ? list : []))];
  return next.some((one) => one === goal || leadsTo(root, one, goal, seen));
}

/** Undefined where the value is not exactly what its JSON says: a class, a Date, a schema of some library. */
function textOf(schema: unknown): string | undefined {
  try {
    const text = JSON.stringify(schema);
    return text !== undefined && isDeepStrictEqual(JSON.parse(text), schema) ? text : undefined;
  } catch {
    return undefined;
  }
}

function invalid(whose: string, faults: readonly string[]): TrainyardError {
  const more = faults.length > MOST_SHOWN ? `; and ${faults.length - MOST_SHOWN} more` : '';
  return new TrainyardError('GRADER_INVALID', `${whose}: ${faults.slice(0, MOST_SHOWN).join('; ')}${more}`, {
    hint: 'docs/reference/graders.md lists the keywords of JSON Schema that are checked',
  });
}
