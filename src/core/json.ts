/**
 * How deep JSON text is nested. Deep nesting parses without complaint and then overflows the stack of whatever walks it: a schema,
 * a copy, a serialiser. Text from outside is measured before it is used.
 */
import type { Json } from './types.ts';

/** Levels that no honest message, schema or task needs. */
export const MAX_NESTING = 200;

const [QUOTE, BACKSLASH] = [0x22, 0x5c];
/** In ASCII the braces are the brackets with one bit set. */
const [OPENING, CLOSING, BRACE_BIT] = [0x5b, 0x5d, 0x20];

/** Of valid JSON; brackets inside strings do not count. */
export function nestingOf(json: string): number {
  let depth = 0;
  let deepest = 0;
  let inString = false;
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (inString) {
      if (code === BACKSLASH) i++;
      else if (code === QUOTE) inString = false;
    } else if (code === QUOTE) inString = true;
    else if ((code & ~BRACE_BIT) === OPENING) deepest = Math.max(deepest, ++depth);
    else if ((code & ~BRACE_BIT) === CLOSING) depth--;
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
