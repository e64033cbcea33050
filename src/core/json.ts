/**
 * How deep JSON text is nested and how much it holds, and whether two values are the same JSON. Deep nesting parses without complaint
 * and then overflows the stack of whatever walks it: a schema, a copy, a serialiser. Millions of tiny values parse in no time and then
 * cost a schema seconds and gigabytes. Text from outside is measured before it is used.
 */
import { shortened } from './describe.ts';
import { TrainyardError } from './errors.ts';
import type { Json } from './types.ts';

/** An object as JSON has them: neither null nor a list. */
export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Levels that no honest message, schema or task needs. */
export const MAX_NESTING = 200;

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
/** In ASCII the braces are the brackets with one bit set. */
const [OPENING, CLOSING, BRACE_BIT, COMMA, COLON] = [0x5b, 0x5d, 0x20, 0x2c, 0x3a];

export interface JsonSize {
  /** Levels. */
  readonly nesting: number;
  /** Lists, objects and what is in them, within a factor of two. */
  readonly values: number;
  /** Keys of objects, as often as they are written. */
  readonly keys: number;
}

/** Of valid JSON; what is inside strings does not count. */
export function sizeOfJson(json: string): JsonSize {
  let depth = 0;
  let deepest = 0;
  let values = 1;
  let keys = 0;
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (code === QUOTE) i = endOfString(json, i + 1);
    else if (code === COMMA) values++;
    else if (code === COLON) keys++;
    else if ((code & ~BRACE_BIT) === OPENING) {
      values++;
      deepest = Math.max(deepest, ++depth);
    } else if ((code & ~BRACE_BIT) === CLOSING) depth--;
  }
  return { nesting: deepest, values, keys };
}

export const nestingOf = (json: string): number => sizeOfJson(json).nesting;

/** Place of the quote that ends a string. Most of a request is strings, and finding a character costs far less than looking at each. */
function endOfString(json: string, start: number): number {
  for (let from = start; ; ) {
    const quote = json.indexOf('"', from);
    if (quote === -1) return json.length;
    let backslashes = 0;
    while (quote - backslashes > start && json.charCodeAt(quote - backslashes - 1) === BACKSLASH) backslashes++;
    if (backslashes % 2 === 0) return quote;
    from = quote + 1;
  }
}

/** Whether two values are the same JSON. The order of keys does not count; a key whose value is undefined is not there. */
export function sameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const [ofA, ofB] = [a as Readonly<Record<string, unknown>>, b as Readonly<Record<string, unknown>>];
  let more = 0;
  for (const key of Object.keys(a)) {
    if (ofA[key] === undefined) continue;
    if (!Object.hasOwn(b, key) || !sameJson(ofA[key], ofB[key])) return false;
    more++;
  }
  for (const key of Object.keys(b)) if (ofB[key] !== undefined) more--;
  return more === 0;
}

/** Characters of texts and values together. */
const MOST_JSON = 1_000_000;

/**
 * A copy of what a workflow returned as JSON holds it. Throws WORKFLOW_BAD_RESULT where JSON would drop or change something: graded without
 * it, a rollout would be graded for what it never returned. What has a `toJSON` is what that gives; a property that is undefined is none.
 */
export function exactJson(given: unknown, name: string, most: number = MOST_JSON): Json {
  const around: object[] = [];
  let room = most + 1;
  const copyOf = (value: unknown, at: string): Json => {
    // What stands in many places is written as often: without an end to it, a small value could take for ever.
    room -= typeof value === 'string' ? value.length + 1 : 1;
    if (room < 0) throw noJson(`${name} is longer than ${most} characters`);
    if (value === null || typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value)) return value as Json;
    if (typeof value !== 'object') throw noJson(`${at} is ${typeof value === 'number' ? value : `of type ${typeof value}`}`);
    if (around.includes(value)) throw noJson(`${at} contains itself`);
    if (around.length === MAX_NESTING) throw noJson(`${name} is nested deeper than ${MAX_NESTING} levels`);
    around.push(value);
    const copy = Array.isArray(value) ? Array.from(value, (item, i) => copyOf(item, `${at}[${i}]`)) : copyOfObject(value, at);
    around.pop();
    return copy;
  };
  const copyOfObject = (value: object, at: string): Json => {
    const { toJSON } = value as { readonly toJSON?: unknown };
    // An invalid Date gives null.
    if (typeof toJSON === 'function' && !ArrayBuffer.isView(value)) return copyOf(toJSON.call(value, '') ?? undefined, at);
    // Above an instance there is more than what every object has.
    if (Object.getPrototypeOf(Object.getPrototypeOf(value) ?? Object.prototype) !== null)
      throw noJson(`${at} is an instance of ${value.constructor?.name}`);
    const held = Object.entries(value).filter(([, item]) => item !== undefined);
    return Object.fromEntries(held.map(([key, item]) => [copyOf(key, at), copyOf(item, `${at}.${key}`)]));
  };
  return copyOf(given, name);
}

function noJson(found: string): TrainyardError {
  const expected = 'return texts, finite numbers, booleans, null, and lists and plain objects of them';
  return new TrainyardError('WORKFLOW_BAD_RESULT', `run returned what JSON cannot hold: ${shortened(found, 400)}; ${expected}`);
}

/** As `exactJson`; undefined where it is no JSON. */
export function asJson(value: unknown, most?: number): Json | undefined {
  try {
    return exactJson(value, '', most);
  } catch {
    return undefined;
  }
}
