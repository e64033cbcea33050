/**
 * JSON tools: what kind of value something is, how much JSON text holds, whether two values are the same JSON, one text and one digest for
 * equal values, and deep copies.
 *
 * Deep nesting parses without complaint and then overflows the stack of whatever walks it; millions of tiny values cost a schema seconds and
 * gigabytes. So text from outside is measured (`sizeOfJson`) before it is used.
 */
import { createHash } from 'node:crypto';
import { shortened } from './describe.ts';
import { TrainyardError } from './errors.ts';
import type { Json } from './types.ts';

/** An object as JSON has them: neither null nor a list. */
export function isObject(value: Json | undefined): value is { readonly [key: string]: Json };
export function isObject(value: unknown): value is Readonly<Record<string, unknown>>;
export function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Whether an object is of no class: `{}` or without a prototype. */
export function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

/** Without the fields that are undefined, for types that tell absent from undefined. */
export function defined<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

/** Undefined where it is no JSON. */
export function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

// ── size of text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Levels that no honest message, schema or task needs. */
export const MAX_NESTING = 200;

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
/** In ASCII the braces are the brackets with one bit set. */
const [OPENING, CLOSING, BRACE_BIT, COMMA, COLON] = [0x5b, 0x5d, 0x20, 0x2c, 0x3a];

/**
 * Of valid JSON; what is inside strings does not count. `values`: lists, objects and what is in them, within a factor of two. `keys`: as often
 * as they are written.
 */
export function sizeOfJson(json: string): { readonly nesting: number; readonly values: number; readonly keys: number } {
  let [depth, nesting, values, keys] = [0, 0, 1, 0];
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (code === QUOTE) i = endOfString(json, i + 1);
    else if (code === COMMA) values++;
    else if (code === COLON) keys++;
    else if ((code & ~BRACE_BIT) === OPENING) {
      values++;
      nesting = Math.max(nesting, ++depth);
    } else if ((code & ~BRACE_BIT) === CLOSING) depth--;
  }
  return { nesting, values, keys };
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

// ── equality ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

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

/**
 * The same text for the same JSON, whatever the order of its keys; a key whose value is undefined is not there. Typed arrays count by their
 * bytes. The ids of tasks without an id are made of it, so it never changes.
 */
export function canonicalJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  if (ArrayBuffer.isView(value)) {
    return JSON.stringify(Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64'));
  }
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  const fields = Object.entries(value).filter(([, field]) => field !== undefined);
  fields.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonicalJson(field)}`).join(',')}}`;
}

/** SHA-256. Each piece goes in with its length first, so that bytes cannot move from one piece into the next unnoticed. */
export function digestBytes(pieces: readonly (string | Uint8Array)[]): Buffer {
  const hash = createHash('sha256');
  for (const piece of pieces) hash.update(`${piece.length}:`).update(piece);
  return hash.digest();
}

export const digestOf = (pieces: readonly (string | Uint8Array)[]): string => digestBytes(pieces).toString('hex');

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Characters of texts and values together. */
const MOST_JSON = 1_000_000;

/**
 * A copy of what a workflow returned as JSON holds it. Throws WORKFLOW_BAD_RESULT where JSON would drop or change something: the rollout would
 * be graded for what it never returned. What has a `toJSON` is what that gives; a property that is undefined is none.
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

/**
 * `structuredClone` for what is nearly always plain data: the same copy, several times faster. Where anything inside is neither a plain object
 * nor a list, `structuredClone` copies the whole value, or throws.
 */
export function deepCopy<T>(value: T): T {
  const notPlain = (): never => {
    throw NOT_PLAIN;
  };
  try {
    return copyPlain(value, new Map(), notPlain) as T;
  } catch (thrown) {
    if (thrown !== NOT_PLAIN) throw thrown;
    return structuredClone(value);
  }
}

const NOT_PLAIN = new Error('not plain');

/**
 * A config as each rollout gets it: plain objects and lists are copied, however deep, and of an instance at the top its own fields, so that
 * what one rollout changes no other sees. Functions, tools, clients and models are shared: they are not data and may cost a lot.
 */
export function copyConfig<T>(config: T): T {
  const copies = new Map<object, unknown>();
  const cloneOrShare = (value: object): unknown => {
    if (Object.getPrototypeOf(value) === null) return copyFields(value, Object.create(null) as object, copies, cloneOrShare);
    try {
      return isBuiltIn(value) ? structuredClone(value) : value;
    } catch {
      return value;
    }
  };
  const copy = copyPlain(config, copies, cloneOrShare);
  if (copy !== config || typeof config !== 'object' || config === null || isBuiltIn(config)) return copy as T;
  return copyFields(config, Object.create(Object.getPrototypeOf(config) as object) as object, copies, cloneOrShare) as T;
}

/** Data that is not in fields. */
function isBuiltIn(value: object): boolean {
  return [Date, Map, Set, Array].some((Class) => value instanceof Class);
}

/** Copies plain objects and lists, one that stands in several places once; `other` decides about everything else that is no plain value. */
function copyPlain(value: unknown, copies: Map<object, unknown>, other: (value: object) => unknown): unknown {
  if (typeof value === 'function' || typeof value === 'symbol') return other(value as object);
  if (typeof value !== 'object' || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype === Object.prototype) return copyFields(value, {}, copies, other);
  // Not lists with gaps, or with names beside their places.
  if (prototype !== Array.prototype || Object.keys(value).length !== (value as readonly unknown[]).length) return other(value);
  const list: unknown[] = [];
  copies.set(value, list);
  for (const item of value as readonly unknown[]) list.push(copyPlain(item, copies, other));
  return list;
}

function copyFields(from: object, to: object, copies: Map<object, unknown>, other: (value: object) => unknown): object {
  copies.set(from, to);
  for (const key of Object.keys(from)) {
    const value = copyPlain((from as Readonly<Record<string, unknown>>)[key], copies, other);
    // Assigned, it would set the prototype.
    if (key === '__proto__') Object.defineProperty(to, key, { value, enumerable: true, writable: true, configurable: true });
    else (to as Record<string, unknown>)[key] = value;
  }
  return to;
}
