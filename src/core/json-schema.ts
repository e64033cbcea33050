/**
 * Checks a JSON value against a JSON Schema: types, enums, constants, objects, arrays, bounds, combinations, and references into the same
 * document.
 *
 * Runs a pattern only with the `matches` that it is given: an expression from outside, on text that a policy made up, can take forever, so
 * whoever wants patterns brings the time limit. Never looks at a format. Keywords that are unknown or malformed say nothing. The work is
 * bounded, whatever the schema: one that takes more is a fault by itself.
 */
import { isDeepStrictEqual } from 'node:util';
import { canonicalJson, isObject } from './json.ts';

export type Schema = boolean | Readonly<Record<string, unknown>>;

/** Schemas applied to values in one check, and what is compared along the way: values of an enum, required names, parts of references. */
const MOST_STEPS = 100_000;
/** References inside references, without any value below them. */
const MOST_DEPTH = 500;

/** Whether a text has the pattern somewhere in it. */
type Matches = (pattern: string, text: string) => boolean;

interface Check {
  readonly root: Schema;
  readonly matches: Matches | undefined;
  steps: number;
}

type Keyword = (check: Check, schema: Readonly<Record<string, unknown>>, value: unknown, at: Place) => string | undefined;

interface Place {
  /** As in `items.0.name`. */
  readonly path: string;
  readonly depth: number;
}

class TooMuch extends Error {}
/** The fault where the work was given up. */
export const TOO_INVOLVED = 'too deep or too involved to be checked against the schema';

/** The first thing that is wrong, and where; undefined if nothing is. */
export function schemaFault(schema: Schema, value: unknown, matches?: Matches): string | undefined {
  try {
    return faultOf({ root: schema, matches, steps: 0 }, schema, value, { path: '', depth: 0 });
  } catch (thrown) {
    if (thrown instanceof TooMuch) return TOO_INVOLVED;
    throw thrown;
  }
}

function faultOf(check: Check, schema: unknown, value: unknown, at: Place): string | undefined {
  spend(check, 1);
  if (at.depth > MOST_DEPTH) throw new TooMuch();
  if (schema === false) return fault(at, 'nothing is allowed here');
  if (!isObject(schema)) return undefined;
  for (const keyword of KEYWORDS) {
    const found = keyword(check, schema, value, at);
    if (found !== undefined) return found;
  }
  return undefined;
}

function spend(check: Check, steps: number): void {
  check.steps += steps;
  if (check.steps > MOST_STEPS) throw new TooMuch();
}

// ── one value ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const type: Keyword = (_, { type: wanted }, value, at) => {
  const types = typeof wanted === 'string' ? [wanted] : Array.isArray(wanted) ? wanted : [];
  if (types.length === 0 || types.some((name) => isOfType(value, name))) return undefined;
  return fault(at, `expected ${types.join(' or ')}, found ${typeName(value)}`);
};

const choice: Keyword = (check, schema, value, at) => {
  const { enum: values } = schema;
  if (Array.isArray(values)) spend(check, values.length);
  if (Array.isArray(values) && !values.some((one) => isSame(one, value))) return fault(at, `expected one of ${shown(values)}`);
  if (Object.hasOwn(schema, 'const') && !isSame(schema['const'], value)) return fault(at, `expected ${shown(schema['const'])}`);
  return undefined;
};

const bounds: Keyword = (_, schema, value, at) => {
  if (typeof value === 'number') {
    const under = numberIn(schema, 'exclusiveMaximum');
    const over = numberIn(schema, 'exclusiveMinimum');
    if (under !== undefined && value >= under) return fault(at, `expected less than ${under}, found ${value}`);
    if (over !== undefined && value <= over) return fault(at, `expected more than ${over}, found ${value}`);
    const step = numberIn(schema, 'multipleOf');
    if (step !== undefined && step > 0 && !isMultiple(value, step))
      return fault(at, `expected a multiple of ${step}, found ${value}`);
    return within(schema, 'minimum', 'maximum', value, 'a number', at);
  }
  // In characters as people count them, not in UTF-16 units.
  if (typeof value === 'string') return within(schema, 'minLength', 'maxLength', [...value].length, 'a length', at);
  if (Array.isArray(value)) return within(schema, 'minItems', 'maxItems', value.length, 'a number of items', at);
  if (isObject(value)) {
    return within(schema, 'minProperties', 'maxProperties', Object.keys(value).length, 'a number of properties', at);
  }
  return undefined;
};

function within(
  schema: Readonly<Record<string, unknown>>,
  low: string,
  high: string,
  found: number,
  what: string,
  at: Place,
): string | undefined {
  const [least, most] = [numberIn(schema, low), numberIn(schema, high)];
  if (least !== undefined && found < least) return fault(at, `expected ${what} of at least ${least}, found ${found}`);
  if (most !== undefined && found > most) return fault(at, `expected ${what} of at most ${most}, found ${found}`);
  return undefined;
}

/** Of decimals: 0.3 is a multiple of 0.1. */
function isMultiple(value: number, step: number): boolean {
  const times = value / step;
  return Math.abs(times - Math.round(times)) <= Number.EPSILON * 4 * Math.max(1, Math.abs(times));
}

const shape: Keyword = ({ matches }, { pattern }, value, at) => {
  if (matches === undefined || typeof pattern !== 'string' || typeof value !== 'string') return undefined;
  return matches(pattern, value) ? undefined : fault(at, `expected a text with ${shown(pattern)}`);
};

// ── what is inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

const members: Keyword = (check, schema, value, at) => {
  if (!isObject(value)) return undefined;
  const { required, properties, additionalProperties: others, patternProperties } = schema;
  if (Array.isArray(required)) spend(check, required.length);
  const missing = Array.isArray(required) ? required.find((name) => !Object.hasOwn(value, String(name))) : undefined;
  if (missing !== undefined) return fault(at, `${shown(missing)} is missing`);
  const known = isObject(properties) ? properties : {};
  const patterns = isObject(patternProperties) ? Object.entries(patternProperties) : [];
  for (const [name, member] of Object.entries(value)) {
    spend(check, patterns.length);
    const place = below(at, name);
    const fitting = patterns.filter(([pattern]) => check.matches?.(pattern, name)).map(([, pattern]) => pattern);
    const own = [...(Object.hasOwn(known, name) ? [known[name]] : []), ...fitting];
    const found = firstOf(own, (one) => faultOf(check, one, member, place));
    if (found !== undefined) return found;
    // Where patterns cannot be tried, which names they take is not known, so nothing is additional.
    const isOther = own.length === 0 && others !== undefined && (patternProperties === undefined || check.matches !== undefined);
    if (!isOther) continue;
    const strange = others === false ? fault(place, 'not one of the properties') : faultOf(check, others, member, place);
    if (strange !== undefined) return strange;
  }
  return undefined;
};

const elements: Keyword = (check, { prefixItems, items, uniqueItems }, value, at) => {
  if (!Array.isArray(value)) return undefined;
  const twice = uniqueItems === true ? firstTwice(check, value) : -1;
  if (twice !== -1) return fault(below(at, String(twice)), 'is there twice, expected unique items');
  // Older drafts have the first ones in `items`.
  const first = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : [];
  const rest = Array.isArray(items) ? true : items;
  for (const [i, element] of value.entries()) {
    const found = faultOf(check, i < first.length ? first[i] : rest, element, below(at, String(i)));
    if (found !== undefined) return found;
  }
  return undefined;
};

/** Place of the first item that was there before, or -1. */
function firstTwice(check: Check, items: readonly unknown[]): number {
  const seen = new Set<string>();
  return items.findIndex((item) => {
    const text = canonicalJson(item);
    spend(check, 1 + text.length / 1000);
    return seen.size === seen.add(text).size;
  });
}

// ── other schemas for the same value ─────────────────────────────────────────────────────────────────────────────────────

const reference: Keyword = (check, { $ref: ref }, value, at) => {
  if (typeof ref !== 'string') return undefined;
  spend(check, Math.ceil(ref.length / 100));
  const target = referred(check.root, ref);
  if (target === undefined) return fault(at, `the schema has no ${shown(ref)}`);
  return faultOf(check, target, value, deeper(at));
};

const combinations: Keyword = (check, { allOf, anyOf, oneOf, not }, value, at) => {
  const of = (schema: unknown): string | undefined => faultOf(check, schema, value, deeper(at));
  const inAll = Array.isArray(allOf) ? firstOf(allOf, of) : undefined;
  if (inAll !== undefined) return inAll;
  if (Array.isArray(anyOf) && anyOf.length > 0) {
    const faults = anyOf.map(of);
    if (!faults.includes(undefined)) return faults.length === 1 ? faults[0] : fault(at, `fits none of anyOf (${faults[0]})`);
  }
  if (Array.isArray(oneOf)) {
    const fitting = oneOf.filter((schema) => of(schema) === undefined).length;
    if (fitting !== 1) return fault(at, `fits ${fitting} of oneOf, expected one`);
  }
  if (not !== undefined && of(not) === undefined) return fault(at, 'fits what it should not');
  return undefined;
};

const KEYWORDS: readonly Keyword[] = [reference, type, choice, bounds, shape, members, elements, combinations];

/** Where a JSON pointer into the document leads, as `#/$defs/name`. */
export function referred(root: unknown, ref: string): unknown {
  if (!/^#(?:\/|$)/.test(ref)) return undefined;
  let at: unknown = root;
  for (const step of ref.split('/').slice(1)) {
    const name = decoded(step).replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return undefined;
    at = (at as Record<string, unknown>)[name];
  }
  return at;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function firstOf(schemas: readonly unknown[], of: (schema: unknown) => string | undefined): string | undefined {
  for (const schema of schemas) {
    const found = of(schema);
    if (found !== undefined) return found;
  }
  return undefined;
}

// ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────────

const below = ({ path, depth }: Place, name: string): Place => ({
  path: path === '' ? name : `${path}.${name}`,
  depth: depth + 1,
});
const deeper = ({ path, depth }: Place): Place => ({ path, depth: depth + 1 });
const fault = ({ path }: Place, what: string): string => `${path.slice(0, 200) || 'the value'}: ${what}`;
const shown = (value: unknown): string => JSON.stringify(value).slice(0, 80);

function isOfType(value: unknown, name: unknown): boolean {
  if (name === 'integer') return Number.isInteger(value);
  return typeName(value) === name;
}

function typeName(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'array' : typeof value;
}

function isSame(a: unknown, b: unknown): boolean {
  return a === b || isDeepStrictEqual(a, b);
}

function numberIn(schema: Readonly<Record<string, unknown>>, name: string): number | undefined {
  const value = schema[name];
  return typeof value === 'number' ? value : undefined;
}
