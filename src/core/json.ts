/**
 * How deep JSON text is nested. Deep nesting parses without complaint and then overflows the stack of whatever walks it: a schema,
 * a copy, a serialiser. Text from outside is measured before it is used.
 */
import type { Json } from './types.ts';

/** Levels that no honest message, schema or task needs. */
export const MAX_NESTING = 200;

/** Of valid JSON; brackets inside strings do not count. */
export function nestingOf(json: string): number {
  let depth = 0;
  let deepest = 0;
  let inString = false;
  for (let i = 0; i < json.length; i++) {
    const character = json[i];
    if (inString) {
      if (character === '\\') i++;
      else if (character === '"') inString = false;
    } else if (character === '"') inString = true;
    else if (character === '[' || character === '{') deepest = Math.max(deepest, ++depth);
    else if (character === ']' || character === '}') depth--;
  }
  return deepest;
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
