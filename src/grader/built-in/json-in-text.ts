/**
 * The JSON value that a text gives as its answer: the whole text, or the last fenced block that is JSON, or the last object or list in it.
 *
 * The work is bounded: a text of nothing but opening brackets would otherwise take time by the square of its length. Values nested deeper
 * than any honest one are none, because whoever compares them would run out of stack.
 */
import { MAX_NESTING, nestingOf } from '../../core/json.ts';
import type { Json } from '../../core/types.ts';

const FENCE = /```[^\n`]*\n([\s\S]*?)```/g;
/** Characters looked at; each of some hundred brackets that are never closed costs the rest of the text. */
const MOST_LOOKS = 20_000_000;

export type Found = { readonly value: Json } | undefined;

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
