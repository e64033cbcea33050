/**
 * JSON utilities: kinds of values, size of JSON text, equality, canonical text and digests, and deep copies. Deeply nested JSON parses
 * fine, then overflows the stack of code that walks it; millions of tiny values cost a schema seconds and gigabytes. So text from outside
 * is measured (`sizeOfJson`) before it is used.
 */
import { createHash } from 'node:crypto';
import { shortened } from './describe.ts';
import { TrainyardError } from './errors.ts';
import type { ByName, Json } from './types.ts';

export function isObject(value: Json | undefined): value is { readonly [key: string]: Json };
export function isObject(value: unknown): value is ByName<unknown>;
export function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Whether an object is `{}`-like, or has no prototype. */
export function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

/** Drops undefined fields, for types that distinguish absent from undefined. */
export function defined<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

/** Undefined if the text is not JSON. */
export function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** More levels than any legitimate message, schema or task needs. */
export const MAX_NESTING = 200;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
/** In ASCII, a brace is the matching bracket with one bit set. */
const OPENING = 0x5b;
const CLOSING = 0x5d;
const BRACE_BIT = 0x20;
const COMMA = 0x2c;
const COLON = 0x3a;

/** Ignores the contents of strings. `values` counts arrays, objects and their items, within a factor of two; `keys`, every occurrence. */
export function sizeOfJson(json: string): { readonly nesting: number; readonly values: number; readonly keys: number } {
  let depth = 0;
  let nesting = 0;
  let values = 1;
  let keys = 0;
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

/** Index of the closing quote. Most of a request is strings, and `indexOf` is far cheaper than looking at each character. */
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

/** Whether two values are equal as JSON. Ignores key order and keys whose value is undefined. */
export function sameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const ofA = a as ByName<unknown>;
  const ofB = b as ByName<unknown>;
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
 * Equal text for equal JSON: ignores key order and keys whose value is undefined. Typed arrays are encoded by their bytes. The ids of tasks
 * without an id derive from it, so this encoding must never change.
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

/** SHA-256. Each piece is prefixed with its length, so that moving bytes between pieces changes the digest. */
export function digestBytes(pieces: readonly (string | Uint8Array)[]): Buffer {
  const hash = createHash('sha256');
  for (const piece of pieces) hash.update(`${piece.length}:`).update(piece);
  return hash.digest();
}

export const digestOf = (pieces: readonly (string | Uint8Array)[]): string => digestBytes(pieces).toString('hex');

/** In characters of strings, plus one per value. */
const MOST_JSON = 1_000_000;

/**
 * Copies a workflow's result as JSON. Throws WORKFLOW_BAD_RESULT if JSON would drop or change something, because the grader would then see
 * a result that the workflow never returned. Honours `toJSON`; omits undefined properties.
 */
export function exactJson(given: unknown, name: string, most: number = MOST_JSON): Json {
  const around: object[] = [];
  let room = most + 1;
  const copyOf = (value: unknown, at: string): Json => {
    // A shared value is copied at each place it appears, so without this bound a small value could take forever.
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
    // The `toJSON` of an invalid Date returns null.
    if (typeof toJSON === 'function' && !ArrayBuffer.isView(value)) return copyOf(toJSON.call(value, '') ?? undefined, at);
    // A class instance has a longer prototype chain than a plain object.
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

export function asJson(value: unknown, most?: number): Json | undefined {
  try {
    return exactJson(value, '', most);
  } catch {
    return undefined;
  }
}

/** Like `structuredClone` but several times faster for plain data; falls back to it if anything inside is not plain. */
export function deepCopy<T>(value: T): T {
  const copies = new Map<object, unknown>();
  // Token ids and log-probabilities are in every trajectory.
  const numbersOnly = (found: object): unknown => {
    if (!(found instanceof Int32Array || found instanceof Float32Array)) throw NOT_PLAIN;
    const copy = found.slice();
    copies.set(found, copy);
    return copy;
  };
  try {
    return copyPlain(value, copies, numbersOnly) as T;
  } catch (thrown) {
    if (thrown !== NOT_PLAIN) throw thrown;
    return structuredClone(value);
  }
}

const NOT_PLAIN = new Error('not plain');

/**
 * Copies a config for one rollout, so that a rollout's changes are invisible to others. Copies plain objects and arrays at any depth, and
 * the own fields of an instance at the top. Shares functions, tools, clients and models: they are not data and may be expensive.
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

/** Classes whose data is not in own fields. */
function isBuiltIn(value: object): boolean {
  return [Date, Map, Set, Array].some((Class) => value instanceof Class);
}

/** Copies plain objects and arrays, preserving shared references. `other` handles everything else that is not a primitive. */
function copyPlain(value: unknown, copies: Map<object, unknown>, other: (value: object) => unknown): unknown {
  if (typeof value === 'function' || typeof value === 'symbol') return other(value as object);
  if (typeof value !== 'object' || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype === Object.prototype) return copyFields(value, {}, copies, other);
  // Sparse arrays and arrays with named properties are not plain.
  if (prototype !== Array.prototype || Object.keys(value).length !== (value as readonly unknown[]).length) return other(value);
  const list: unknown[] = [];
  copies.set(value, list);
  for (const item of value as readonly unknown[]) list.push(copyPlain(item, copies, other));
  return list;
}

function copyFields(from: object, to: object, copies: Map<object, unknown>, other: (value: object) => unknown): object {
  copies.set(from, to);
  for (const key of Object.keys(from)) {
    const value = copyPlain((from as ByName<unknown>)[key], copies, other);
    // Assignment would set the prototype.
    if (key === '__proto__') Object.defineProperty(to, key, { value, enumerable: true, writable: true, configurable: true });
    else (to as Record<string, unknown>)[key] = value;
  }
  return to;
}
