/**
 * Copies a value that must be JSON, and is kept exactly as it is: rows given as values may hold anything, and JSON text may hold numbers
 * that no number holds. Each property is read once, so that one that is computed is the same for whoever looks later.
 */
import { messageOf } from '../core/errors.ts';
import { MAX_NESTING } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { MAX_ROW_BYTES, TOO_LARGE } from './rows.ts';

export type Copied =
  /** `bytes`: what the copy takes in memory, about. */
  { readonly value: Json; readonly bytes: number } | { readonly problem: string };

class NotPlain extends Error {}

/** `path` is what the value is called in the problem. A cycle is found as too deep, and what is shared a million times as too large. */
export function plainJson(value: unknown, path: string): Copied {
  const copying = new Copying();
  try {
    return { value: copying.copy(value, path, 0), bytes: copying.bytes };
  } catch (thrown) {
    return { problem: thrown instanceof NotPlain ? thrown.message : `${path}: reading it threw: ${messageOf(thrown)}` };
  }
}

class Copying {
  bytes = 0;

  copy(value: unknown, path: string, depth: number): Json {
    if (depth > MAX_NESTING) throw new NotPlain(`${path.slice(0, 80)}: nested deeper than ${MAX_NESTING} levels`);
    if (typeof value === 'string') return this.#text(value, path);
    this.#grow(16, path);
    if (value === null || typeof value === 'boolean') return value;
    if (typeof value === 'number') return numberIn(value, path);
    if (typeof value !== 'object') throw new NotPlain(`${path}: expected JSON, found ${typeof value}`);
    this.#grow(32, path);
    if (Array.isArray(value)) return this.#list(value, path, depth);
    if (!isPlain(value)) throw new NotPlain(`${path}: expected JSON, found ${classOf(value)}`);
    const entries: [string, Json][] = [];
    for (const [key, item] of Object.entries(value)) {
      entries.push([this.#text(key, path), this.copy(item, `${path}.${key.slice(0, 40)}`, depth + 1)]);
    }
    return Object.fromEntries(entries);
  }

  #list(value: readonly unknown[], path: string, depth: number): Json {
    const items: Json[] = [];
    // By place: a hole in a list is no JSON.
    for (let i = 0; i < value.length; i++) items.push(this.copy(value[i], `${path}.${i}`, depth + 1));
    return items;
  }

  #text(text: string, path: string): string {
    // No file but JSONL can hold half a character, and neither tokens nor the store can.
    if (!text.isWellFormed()) throw new NotPlain(`${path}: expected text, found half of a surrogate pair in it`);
    this.#grow(24 + (NOT_LATIN.test(text) ? 2 : 1) * text.length, path);
    return text;
  }

  #grow(bytes: number, path: string): void {
    this.bytes += bytes;
    if (this.bytes > MAX_ROW_BYTES) throw new NotPlain(`${path}: holds more than ${MAX_ROW_BYTES / 2 ** 20} MiB`);
  }
}

/** Texts without such characters take a byte for each. */
const NOT_LATIN = /[^\0-\xff]/;

function numberIn(value: number, path: string): number {
  if (!Number.isFinite(value)) throw new NotPlain(`${path}: expected a finite number, found ${value}`);
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new NotPlain(`${path}: ${TOO_LARGE}`);
  // JSON text has no other zero.
  return value === 0 ? 0 : value;
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function classOf({ constructor: made }: object): string {
  return typeof made === 'function' && made.name !== '' ? `a ${made.name.slice(0, 40)}` : 'an object of a class';
}
