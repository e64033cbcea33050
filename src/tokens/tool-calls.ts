/**
 * What the policy said → content and tool calls. The format is `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number
 * of them, with text before, between and after.
 *
 * A call's `arguments` is the source text of that JSON value exactly as sampled, whatever kind of value it is: nothing is
 * re-serialised, unwrapped or repaired. What is not a well-formed call (bad JSON, no name, no arguments, no closing tag) stays in
 * the content, tags included. Never throws.
 */

export interface Assistant {
  /** What the policy thought, where its template keeps that apart. */
  readonly reasoning?: string;
  /** All text outside calls; null if there are calls and nothing but white space around them. */
  readonly content: string | null;
  readonly toolCalls: readonly ParsedCall[];
}

export interface ParsedCall {
  readonly name: string;
  readonly arguments: string;
}

export const OPEN_TAG = '<tool_call>';
export const CLOSE_TAG = '</tool_call>';

export function parseAssistant(text: string): Assistant {
  const toolCalls: ParsedCall[] = [];
  let content = '';
  let at = 0;
  for (let open = text.indexOf(OPEN_TAG); open !== -1; open = text.indexOf(OPEN_TAG, at)) {
    const found = readCall(text, open + OPEN_TAG.length);
    if (found) toolCalls.push(found.call);
    content += text.slice(at, found ? open : open + OPEN_TAG.length);
    at = found ? found.end : open + OPEN_TAG.length;
  }
  content += text.slice(at);
  return { content: toolCalls.length > 0 && content.trim() === '' ? null : content, toolCalls };
}

/** The call whose JSON starts at `from`, and where its closing tag ends. */
export function readCall(text: string, from: number): { readonly call: ParsedCall; readonly end: number } | undefined {
  const start = skipSpace(text, from);
  if (text[start] !== '{') return undefined;
  const end = valueEnd(text, start);
  const close = skipSpace(text, end);
  if (!text.startsWith(CLOSE_TAG, close)) return undefined;
  const call = callOf(text.slice(start, end));
  return call && { call, end: close + CLOSE_TAG.length };
}

function callOf(source: string): ParsedCall | undefined {
  let parsed: { readonly name?: unknown };
  try {
    parsed = JSON.parse(source);
  } catch {
    return undefined;
  }
  const given = memberSource(source, 'arguments');
  if (typeof parsed.name !== 'string' || parsed.name === '' || given === undefined) return undefined;
  return { name: parsed.name, arguments: given };
}

/** Source text of a member of an object that is known to be valid JSON. Of members with one name the last counts, as in JSON.parse. */
function memberSource(object: string, name: string): string | undefined {
  let found: string | undefined;
  let at = skipSpace(object, 1);
  while (object[at] === '"') {
    const keyEnd = valueEnd(object, at);
    const start = skipSpace(object, skipSpace(object, keyEnd) + 1);
    const end = valueEnd(object, start);
    if (JSON.parse(object.slice(at, keyEnd)) === name) found = object.slice(start, end);
    // Past the comma, or past the closing brace and so out of the object.
    at = skipSpace(object, skipSpace(object, end) + 1);
  }
  return found;
}

/** Where the JSON value that starts at `start` ends, if it is valid; for anything else some place after `start`. */
function valueEnd(text: string, start: number): number {
  if (text[start] === '"') return stringEnd(text, start);
  let depth = 0;
  let at = start;
  while (at < text.length) {
    const character = text[at]!;
    if (character === '"') {
      at = stringEnd(text, at);
      continue;
    }
    if (depth === 0 && at > start && /[\s,}\]]/.test(character)) return at;
    if (character === '{' || character === '[') depth++;
    if (character === '}' || character === ']') depth--;
    at++;
    if (depth === 0 && (character === '}' || character === ']')) return at;
  }
  return text.length;
}

function stringEnd(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return Math.min(at + 1, text.length);
}

/** JSON's own white space, not Unicode's. */
export function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && ' \t\n\r'.includes(text[at]!)) at++;
  return at;
}
