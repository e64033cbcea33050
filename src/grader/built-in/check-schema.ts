/**
 * Whether a JSON Schema can be checked in full: every keyword is one that is looked at, references lead somewhere, patterns are patterns.
 *
 * A keyword that is silently ignored would let through what its author meant to refuse, and the policy would learn that. So all such
 * mistakes are found when the grader is defined, and told together.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../../core/errors.ts';
import { MAX_NESTING, nestingOf } from '../../core/json.ts';
import { referred, type Schema } from '../../core/json-schema.ts';

type Kind = (value: unknown) => string | undefined;

const TYPES = ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object'];
const expected =
  (what: string, isIt: (value: unknown) => boolean): Kind =>
  (value) =>
    isIt(value) ? undefined : `expected ${what}`;
const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
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

/** What stands for itself. The rest holds schemas, and is walked below. */
const PLAIN: Readonly<Record<string, Kind>> = {
  ...Object.fromEntries(
    ['$schema', '$id', '$comment', '$anchor', 'title', 'description', 'default', 'examples', 'const'].map((name) => [
      name,
      anything,
    ]),
  ),
  ...Object.fromEntries(['deprecated', 'readOnly', 'writeOnly', 'uniqueItems'].map((name) => [name, trueOrFalse])),
  ...Object.fromEntries(['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'].map((name) => [name, number])),
  ...Object.fromEntries(
    ['minLength', 'maxLength', 'minItems', 'maxItems', 'minProperties', 'maxProperties'].map((name) => [name, count]),
  ),
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

/** Throws GRADER_INVALID with everything that is wrong. */
export function checkSchema(schema: unknown, whose: string): asserts schema is Schema {
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
