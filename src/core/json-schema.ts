/**
 * Checks a JSON value against a JSON Schema: types, enums, constants, objects, arrays, bounds, combinations, and references within the
 * document. Patterns run only through the caller's `matches`, which must limit time: an untrusted expression on text from the policy can
 * take forever. Formats and unknown or malformed keywords are ignored. The work is bounded for any schema; exceeding the bound is a fault.
 */
import { canonicalJson, isObject, sameJson } from './json.ts';

type Fields = Readonly<Record<string, unknown>>;
export type Schema = boolean | Fields;

/** Bounds the schemas applied to values in one check, plus the comparisons: enum values, required names, parts of references. */
const MOST_STEPS = 100_000;
/** Bounds nesting, including references that lead to references. */
const MOST_DEPTH = 500;

type Matches = (pattern: string, text: string) => boolean;

interface Place {
  readonly path: string;
  readonly depth: number;
}

type Faults = Generator<string, void>;

class TooMuch extends Error {}
/** The fault reported when the check exceeds its bounds. */
export const TOO_INVOLVED = 'too deep or too involved to be checked against the schema';

/** Returns the first fault and its place, or undefined. */
export function schemaFault(schema: Schema, value: unknown, matches?: Matches): string | undefined {
  try {
    return first(new Check(schema, matches).faults(schema, value, { path: '', depth: 0 }));
  } catch (thrown) {
    if (thrown instanceof TooMuch) return TOO_INVOLVED;
    throw thrown;
  }
}

/** Yields faults lazily, so that a caller that needs only the first one does not pay for the rest. */
class Check {
  readonly #root: Schema;
  readonly #matches: Matches | undefined;
  #steps = 0;

  constructor(root: Schema, matches: Matches | undefined) {
    this.#root = root;
    this.#matches = matches;
  }

  *faults(schema: unknown, value: unknown, at: Place): Faults {
    this.#spend(1);
    if (at.depth > MOST_DEPTH) throw new TooMuch();
    if (schema === false) yield fault(at, 'nothing is allowed here');
    if (!isObject(schema)) return;
    yield* this.#reference(schema, value, at);
    yield* this.#choices(schema, value, at);
    yield* bounds(schema, value, at);
    const { pattern } = schema;
    if (typeof pattern === 'string' && typeof value === 'string' && this.#matches?.(pattern, value) === false)
      yield fault(at, `expected a text with ${shown(pattern)}`);
    if (isObject(value)) yield* this.#members(schema, value, at);
    if (Array.isArray(value)) yield* this.#elements(schema, value, at);
    yield* this.#combinations(schema, value, at);
  }

  #spend(steps: number): void {
    this.#steps += steps;
    if (this.#steps > MOST_STEPS) throw new TooMuch();
  }

  *#reference({ $ref: ref }: Fields, value: unknown, at: Place): Faults {
    if (typeof ref !== 'string') return;
    this.#spend(Math.ceil(ref.length / 100));
    const target = referred(this.#root, ref);
    if (target === undefined) yield fault(at, `the schema has no ${shown(ref)}`);
    else yield* this.faults(target, value, deeper(at));
  }

  *#choices(schema: Fields, value: unknown, at: Place): Faults {
    const { type, enum: values } = schema;
    const types = typeof type === 'string' ? [type] : Array.isArray(type) ? type : [];
    if (types.length > 0 && !types.some((name) => isOfType(value, name)))
      yield fault(at, `expected ${types.join(' or ')}, found ${typeName(value)}`);
    if (Array.isArray(values)) {
      this.#spend(values.length);
      if (!values.some((one) => sameJson(one, value))) yield fault(at, `expected one of ${shown(values)}`);
    }
    if (Object.hasOwn(schema, 'const') && !sameJson(schema['const'], value))
      yield fault(at, `expected ${shown(schema['const'])}`);
  }

  *#members({ required, properties, additionalProperties: others, patternProperties }: Fields, value: Fields, at: Place): Faults {
    for (const name of Array.isArray(required) ? required : []) {
      this.#spend(1);
      if (!Object.hasOwn(value, String(name))) yield fault(at, `${shown(name)} is missing`);
    }
    const known = isObject(properties) ? properties : {};
    const patterns = isObject(patternProperties) ? Object.entries(patternProperties) : [];
    // Without `matches`, the names that patterns cover are unknown, so no name counts as additional.
    const knowsOthers = others !== undefined && (patternProperties === undefined || this.#matches !== undefined);
    for (const [name, member] of Object.entries(value)) {
      this.#spend(patterns.length);
      const place = below(at, name);
      const fitting = patterns.filter(([pattern]) => this.#matches?.(pattern, name)).map(([, schema]) => schema);
      const own = [...(Object.hasOwn(known, name) ? [known[name]] : []), ...fitting];
      for (const schema of own) yield* this.faults(schema, member, place);
      if (own.length > 0 || !knowsOthers) continue;
      if (others === false) yield fault(place, 'not one of the properties');
      else yield* this.faults(others, member, place);
    }
  }

  *#elements({ prefixItems, items, uniqueItems }: Fields, value: readonly unknown[], at: Place): Faults {
    const twice = uniqueItems === true ? this.#firstTwice(value) : -1;
    if (twice !== -1) yield fault(below(at, String(twice)), 'is there twice, expected unique items');
    // Older drafts put the leading schemas in `items`.
    const leading = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : [];
    const rest = Array.isArray(items) ? true : items;
    for (const [i, element] of value.entries()) {
      yield* this.faults(i < leading.length ? leading[i] : rest, element, below(at, String(i)));
    }
  }

  /** Index of the first repeated item, or -1. */
  #firstTwice(items: readonly unknown[]): number {
    const seen = new Set<string>();
    return items.findIndex((item) => {
      const text = canonicalJson(item);
      this.#spend(1 + text.length / 1000);
      return seen.size === seen.add(text).size;
    });
  }

  *#combinations({ allOf, anyOf, oneOf, not }: Fields, value: unknown, at: Place): Faults {
    const faultOf = (schema: unknown) => first(this.faults(schema, value, deeper(at)));
    for (const schema of Array.isArray(allOf) ? allOf : []) yield* this.faults(schema, value, deeper(at));
    const faults = Array.isArray(anyOf) ? anyOf.map(faultOf) : [];
    if (faults.length > 0 && !faults.includes(undefined))
      yield faults.length === 1 ? faults[0]! : fault(at, `fits none of anyOf (${faults[0]})`);
    const fitting = Array.isArray(oneOf) ? oneOf.filter((schema) => faultOf(schema) === undefined).length : 1;
    if (fitting !== 1) yield fault(at, `fits ${fitting} of oneOf, expected one`);
    if (not !== undefined && faultOf(not) === undefined) yield fault(at, 'fits what it should not');
  }
}

function* bounds(schema: Fields, value: unknown, at: Place): Faults {
  const bound = (name: string) => (typeof schema[name] === 'number' ? schema[name] : Number.NaN);
  const within = function* (low: string, high: string, found: number, what: string): Faults {
    if (found < bound(low)) yield fault(at, `expected ${what} of at least ${bound(low)}, found ${found}`);
    if (found > bound(high)) yield fault(at, `expected ${what} of at most ${bound(high)}, found ${found}`);
  };
  if (typeof value === 'number') {
    const under = bound('exclusiveMaximum');
    const over = bound('exclusiveMinimum');
    const step = bound('multipleOf');
    if (value >= under) yield fault(at, `expected less than ${under}, found ${value}`);
    if (value <= over) yield fault(at, `expected more than ${over}, found ${value}`);
    if (step > 0 && !isMultiple(value, step)) yield fault(at, `expected a multiple of ${step}, found ${value}`);
    yield* within('minimum', 'maximum', value, 'a number');
  }
  // Counts code points, not UTF-16 units.
  if (typeof value === 'string') yield* within('minLength', 'maxLength', [...value].length, 'a length');
  if (Array.isArray(value)) yield* within('minItems', 'maxItems', value.length, 'a number of items');
  if (isObject(value)) yield* within('minProperties', 'maxProperties', Object.keys(value).length, 'a number of properties');
}

/** Tolerates decimal rounding: 0.3 is a multiple of 0.1. */
function isMultiple(value: number, step: number): boolean {
  const times = value / step;
  return Math.abs(times - Math.round(times)) <= Number.EPSILON * 4 * Math.max(1, Math.abs(times));
}

/** Resolves a JSON pointer into the document, such as `#/$defs/name`. */
export function referred(root: unknown, ref: string): unknown {
  if (!/^#(?:\/|$)/.test(ref)) return undefined;
  let at: unknown = root;
  for (const step of ref.split('/').slice(1)) {
    const name = decoded(step).replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return undefined;
    at = (at as Fields)[name];
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

const first = (faults: Faults) => faults.next().value ?? undefined;
const below = ({ path, depth }: Place, name: string): Place => ({
  path: path === '' ? name : `${path}.${name}`,
  depth: depth + 1,
});
const deeper = ({ path, depth }: Place): Place => ({ path, depth: depth + 1 });
const fault = ({ path }: Place, what: string) => `${path.slice(0, 200) || 'the value'}: ${what}`;
const shown = (value: unknown) => JSON.stringify(value).slice(0, 80);
const typeName = (value: unknown) => (value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value);
const isOfType = (value: unknown, name: unknown) => (name === 'integer' ? Number.isInteger(value) : typeName(value) === name);
