/**
 * JSON in answers: the value that a text gives (the whole text, or the last fenced block that is JSON, or the last object or list in it), and
 * whether it equals another.
 *
 * The work is bounded: a text of nothing but opening brackets would otherwise take time by the square of its length. Values nested deeper
 * than any honest one are none, because whoever compares them would run out of stack.
 */
import { isObject, MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Json } from '../core/types.ts';

const FENCE = /```[^\n`]*\n([\s\S]*?)```/g;
/** Characters looked at; each of some hundred brackets that are never closed costs the rest of the text. */
const MOST_LOOKS = 20_000_000;

type Found = { readonly value: Json } | undefined;

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
