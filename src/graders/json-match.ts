/**
 * `jsonMatch`: whether the response contains JSON that fits a schema, equals the task's answer, or both. A response without JSON scores 0:
 * that is the policy's mistake. The rollout is unscorable if the task has no answer, a pattern exceeds its time limit, or the value is too
 * large to check.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject, MAX_NESTING, nestingOf, parsedJson } from '../core/json.ts';
import { referred, type Schema, schemaFault, TOO_INVOLVED } from '../core/json-schema.ts';
import type { Json, Reward } from '../core/types.ts';
import { checkOptions, jsonAnswerOf, type OptionKinds, saidBy, type TextOptions } from './answer-text.ts';
import { regexesTogether, regexWithin, statelessRegex } from './text-match.ts';

const FENCE = /```[^\n`]*\n([\s\S]*?)```/g;
/** Most characters scanned in one text: each unclosed bracket scans all the rest of it, which would take quadratic time. */
const MOST_LOOKS = 20_000_000;

type Found = { readonly value: Json } | undefined;

/** The whole text as JSON, else the last fenced block that is JSON, else the last object or list. */
export function jsonInText(text: string): Found {
  const fenced = () => [...text.matchAll(FENCE)].map(([, inside = '']) => parsed(inside.trim()));
  return parsed(text.trim()) ?? fenced().findLast((found) => found !== undefined) ?? [...bracketedIn(text)].at(-1);
}

/** Undefined if the text is not JSON, or nested so deep that comparing the value would overflow the stack. */
export function parsed(text: string): Found {
  try {
    return nestingOf(text) > MAX_NESTING ? undefined : { value: JSON.parse(text) as Json };
  } catch {
    return undefined;
  }
}

/** Yields every outermost object and list of a text, with its source text. */
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
    // Values inside a value are not answers, and neither are the inner levels of one nested too deep.
    if (found !== undefined || isTooDeep) start = end - 1;
  }
}

/** Index after the bracket that closes the one at `start`; undefined if none does. */
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

export interface JsonEquality {
  /** Allowed difference between numbers, relative to the expected one, or absolute if that is below 1. Default 0. */
  readonly tolerance?: number;
  /** Whether an expected whole number must be matched exactly. Default false. */
  readonly wholeExactly?: boolean;
  /** Whether lists are compared as multisets: the same items, equally often, in any order. Default false. */
  readonly anyOrder?: boolean;
  /** Whether objects may have members beyond the expected ones. Default false. */
  readonly moreMembers?: boolean;
}

/** Key order never matters. */
export function jsonEqual(expected: Json, found: Json, how: JsonEquality = {}): boolean {
  if (typeof expected === 'number' && typeof found === 'number') {
    const isExact = how.wholeExactly === true && Number.isInteger(expected);
    const most = isExact ? 0 : (how.tolerance ?? 0) * Math.max(1, Math.abs(expected));
    return expected === found || Math.abs(expected - found) <= most;
  }
  if (isList(expected)) {
    if (!isList(found) || expected.length !== found.length) return false;
    if (!how.anyOrder) return expected.every((one, i) => jsonEqual(one, found[i]!, how));
    return mostPairs(expected.length, found.length, (e, f) => jsonEqual(expected[e]!, found[f]!, how)) === expected.length;
  }
  if (!isObject(expected) || !isObject(found)) return expected === found;
  const keys = Object.keys(expected);
  if (!how.moreMembers && Object.keys(found).length !== keys.length) return false;
  return keys.every((key) => Object.hasOwn(found, key) && jsonEqual(expected[key]!, found[key]!, how));
}

export function isList(value: Json): value is readonly Json[] {
  return Array.isArray(value);
}

/** Size of the largest one-to-one pairing. Not greedy: with a tolerance or subsets, the first fit may be another item's only partner. */
export function mostPairs(left: number, right: number, fits: (left: number, right: number) => boolean): number {
  const fitting = Array.from({ length: left }, (_, l) => Array.from({ length: right }, (_, r) => r).filter((r) => fits(l, r)));
  const partner = new Map<number, number>();
  const place = (l: number, tried: Set<number>) =>
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
  /** A JSON Schema that the value must fit. */
  readonly schema?: Schema;
  /** `answer`: the value must also equal the task's answer. An answer that is the text of an object or list is parsed. */
  readonly equals?: 'answer';
  /** Whether an object earns the share of its members that are right. Default false: all or nothing. */
  readonly partial?: boolean;
}

/** Members beyond this many count toward the value but are not reported as parts. */
const MOST_FIELDS = 200;

/** Throws GRADER_INVALID for invalid options, and for a schema that cannot be checked in full. */
export function jsonMatch(options: JsonMatchOptions): Grader {
  const { schema, equals, partial = false, of } = options ?? {};
  const kinds = {
    schema: 'any',
    equals: ['answer'],
    partial: 'boolean',
    tolerance: 'amount',
    anyOrder: 'boolean',
    of: 'function',
  };
  const hint = 'write jsonMatch({ schema }), or jsonMatch({ equals: "answer" })';
  checkOptions('jsonMatch', options, kinds as OptionKinds, [], hint);
  if (schema === undefined && equals === undefined) throw invalid(['expected schema, equals or both, found neither'], hint);
  if (partial && equals === undefined) throw invalid(["partial needs equals: 'answer'"], hint);
  if (schema !== undefined) checkSchema(schema);
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
      if (partial && isObject(expected.value)) {
        const shares = sharesOf(expected.value, found.value, options);
        return scored(shares.value, { ...parts, ...shares.parts });
      }
      const equal = jsonEqual(expected.value, found.value, options) ? 1 : 0;
      return scored(equal, { ...parts, equal });
    },
  });
}

function scored(value: number, parts: NonNullable<Reward['parts']>): Reward {
  return { value, success: value === 1, parts };
}

/** Compiles each pattern once: the schema is applied to every rollout. */
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
    // The check was cut short, so the value is not known to be wrong.
    return fault === TOO_INVOLVED ? unscorable(`what was said is ${fault}`) : fault === undefined;
  };
}

function expectedOf(input: GraderInput): Json {
  const answer = jsonAnswerOf(input);
  const isJson = typeof answer === 'string' && /^\s*[[{]/.test(answer);
  return isJson ? ((parsedJson(answer) as Json | undefined) ?? answer) : answer;
}

/** The value is the share of right members among all that are expected or present. */
function sharesOf(expected: Members, found: Json, how: JsonEquality) {
  const given: Members = isObject(found) ? found : {};
  const names = Object.keys(expected);
  const isRight = (name: string) => Object.hasOwn(given, name) && jsonEqual(expected[name]!, given[name]!, how);
  const right = new Set(names.filter(isRight));
  const all = new Set([...names, ...Object.keys(given)]).size;
  const parts = names.slice(0, MOST_FIELDS).map((name) => [`field.${name}`, right.has(name) ? 1 : 0]);
  return { value: all === 0 ? Number(isObject(found)) : right.size / all, parts: Object.fromEntries(parts) };
}

type Members = { readonly [name: string]: Json };

type Check = readonly [expected: string, fits: (value: unknown, root: unknown) => boolean];

const TYPES = ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object'];
const isNumber = Number.isFinite as (value: unknown) => value is number;
const isSchema = (value: unknown) => typeof value === 'boolean' || isObject(value);
const isTexts = (value: unknown) => Array.isArray(value) && value.every((one) => typeof one === 'string');
const areTypes = (value: unknown) => [value].flat().length > 0 && [value].flat().every((one) => TYPES.includes(one as string));

const PATTERN: Check = [
  'a regular expression (flag u)',
  (value) => {
    try {
      return typeof value === 'string' && new RegExp(value, 'u') !== undefined;
    } catch {
      return false;
    }
  },
];
const all = (names: string, check: Check) => Object.fromEntries(names.split(' ').map((name) => [name, check]));

/** Keywords whose value is not a schema. `keywordFaults` recurses into the others. */
const PLAIN: Readonly<Record<string, Check>> = {
  ...all('$schema $id $comment $anchor title description default examples const', ['anything', () => true]),
  ...all('deprecated readOnly writeOnly uniqueItems', ['true or false', (value) => typeof value === 'boolean']),
  ...all('minimum maximum exclusiveMinimum exclusiveMaximum', ['a number', isNumber]),
  ...all('minLength maxLength minItems maxItems minProperties maxProperties', [
    'a whole number from 0 up',
    (value) => Number.isSafeInteger(value) && (value as number) >= 0,
  ]),
  type: [`one or several of ${TYPES.join(', ')}`, areTypes],
  enum: ['a list', Array.isArray],
  required: ['a list of names', isTexts],
  multipleOf: ['a number above 0', (value) => isNumber(value) && value > 0],
  pattern: PATTERN,
  $ref: [
    'a reference into this schema, as #/$defs/name',
    (value, root) => typeof value === 'string' && isSchema(referred(root, value)),
  ],
};
const ONE = ['items', 'additionalProperties', 'not'];
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems'];
const NAMED = ['properties', 'patternProperties', '$defs', 'definitions'];
const MOST_SHOWN = 20;

/** Throws GRADER_INVALID with all faults. Unsupported keywords are faults: ignoring one would accept what its author meant to refuse. */
function checkSchema(schema: unknown): asserts schema is Schema {
  const hint = 'trainyard help graders lists the keywords of JSON Schema that are checked';
  const text = textOf(schema);
  if (text === undefined) throw invalid(['the schema: expected plain JSON'], hint);
  if (nestingOf(text) > MAX_NESTING) throw invalid([`the schema: nested deeper than ${MAX_NESTING} levels`], hint);
  const faults = [...faultsIn(schema, schema, '#')];
  if (faults.length > 0) throw invalid(faults, hint);
  const loops = [...loopsIn(schema, schema, '#')];
  if (loops.length > 0) throw invalid(loops, hint);
}

function* faultsIn(root: unknown, schema: unknown, at: string): Generator<string> {
  if (!isSchema(schema)) yield `${at}: expected a schema: an object, true or false`;
  if (!isObject(schema)) return;
  for (const [keyword, value] of Object.entries(schema)) yield* keywordFaults(root, keyword, value, `${at}/${keyword}`);
}

function* keywordFaults(root: unknown, keyword: string, value: unknown, at: string): Generator<string> {
  const isNamed = NAMED.includes(keyword);
  const isMany = LISTS.includes(keyword) || (keyword === 'items' && Array.isArray(value));
  if (Object.hasOwn(PLAIN, keyword)) {
    const [expected, fits] = PLAIN[keyword]!;
    if (!fits(value, root)) yield `${at}: expected ${expected}`;
  } else if (isNamed && !isObject(value)) yield `${at}: expected an object of schemas`;
  else if (isMany && !(Array.isArray(value) && value.length > 0)) yield `${at}: expected a list of schemas`;
  else if (isNamed || isMany) {
    for (const [name, one] of Object.entries(value as object)) {
      if (keyword === 'patternProperties' && !PATTERN[1](name, root)) yield `${at}/${name}: expected ${PATTERN[0]}`;
      yield* faultsIn(root, one, `${at}/${name}`);
    }
  } else if (ONE.includes(keyword)) yield* faultsIn(root, value, at);
  else yield `${at}: this keyword is not checked here${keyword === 'format' ? '; use pattern' : ''}`;
}

/** References that reach themselves without descending into the value: the check would never end. */
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

/** Undefined if the schema is not plain JSON: a class, a Date, a schema object of some library. */
function textOf(schema: unknown): string | undefined {
  try {
    const text = JSON.stringify(schema);
    return text !== undefined && isDeepStrictEqual(JSON.parse(text), schema) ? text : undefined;
  } catch {
    return undefined;
  }
}

function invalid(faults: readonly string[], hint: string): TrainyardError {
  const more = faults.length > MOST_SHOWN ? `; and ${faults.length - MOST_SHOWN} more` : '';
  return new TrainyardError('GRADER_INVALID', `jsonMatch: ${faults.slice(0, MOST_SHOWN).join('; ')}${more}`, hint);
}
