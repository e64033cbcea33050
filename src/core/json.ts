/**
 * How deep JSON text is nested and how much it holds, and whether two values are the same JSON. Deep nesting parses without complaint
 * and then overflows the stack of whatever walks it: a schema, a copy, a serialiser. Millions of tiny values parse in no time and then
 * cost a schema seconds and gigabytes. Text from outside is measured before it is used.
 */
import type { Json } from './types.ts';

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

/** A value as JSON, or undefined where it is none, is nested too deeply, or is longer than `maxLength` characters. */
export function asJson(value: unknown, maxLength: number): Json | undefined {
  try {
    const text = JSON.stringify(value);
    if (text === undefined || text.length > maxLength || nestingOf(text) > MAX_NESTING) return undefined;
    return JSON.parse(text) as Json;
  } catch {
    return undefined;
  }
}
