/**
 * JSON as the policy wrote it: where a value begins and ends in a text, and the source of its parts. Nothing is re-serialised.
 *
 * Finding an end is not checking: only what `JSON.parse` accepts counts as JSON.
 */
import type { ParsedCall } from './format.ts';

/** The call that an object's source is, with the source of the named member as its arguments. */
export function callOf(source: string, argumentsName: string): ParsedCall | undefined {
  const parsed = parseOr(source) as { readonly name?: unknown } | undefined;
  if (parsed === undefined || parsed === null || typeof parsed.name !== 'string' || parsed.name === '') return undefined;
  const given = source[skipSpace(source, 0)] === '{' ? memberSource(source, argumentsName) : undefined;
  return given === undefined ? undefined : { name: parsed.name, arguments: given };
}

/** Undefined for what is not JSON. */
export function parseOr(source: string): unknown {
  try {
    return JSON.parse(source);
  } catch {
    return undefined;
  }
}

/** Source text of a member of an object that is known to be valid JSON. Of members with one name the last counts, as in JSON.parse. */
function memberSource(object: string, name: string): string | undefined {
  let found: string | undefined;
  let at = skipSpace(object, skipSpace(object, 0) + 1);
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

/** Source texts of the elements of a list that is known to be valid JSON. */
export function elementSources(list: string): readonly string[] {
  const found: string[] = [];
  let at = skipSpace(list, 1);
  while (at < list.length && list[at] !== ']') {
    const end = valueEnd(list, at);
    found.push(list.slice(at, end));
    const next = skipSpace(list, end);
    if (list[next] !== ',') break;
    at = skipSpace(list, next + 1);
  }
  return found;
}

/** Where the JSON value that starts at `start` ends, if it is valid; for anything else some place after `start`. */
function valueEnd(text: string, start: number): number {
  if (text[start] === '{' || text[start] === '[') {
    const end = new ValueScan().endOf(text, start);
    return typeof end === 'number' ? end : text.length;
  }
  if (text[start] === '"') return stringEnd(text, start);
  let at = start + 1;
  while (at < text.length && !/[\s,}\]]/.test(text[at]!)) at++;
  return at;
}

function stringEnd(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return Math.min(at + 1, text.length);
}

/** JSON's own white space, not Unicode's. */
export function skipSpace(text: string, from: number, alsoSkipped = ''): number {
  let at = from;
  while (at < text.length && (SPACE.includes(text[at]!) || alsoSkipped.includes(text[at]!))) at++;
  return at;
}

const SPACE = ' \t\n\r';
/** All that can stand outside strings: marks, numbers, and the letters of `true`, `false` and `null`. */
const OUTSIDE_STRINGS = new Set(`${SPACE}[]{},:0123456789+-.Eaeflnrstu`);

/** Looks for the end of one object or list, and remembers how far it got, so that more text does not mean starting over. */
export class ValueScan {
  #at: number | undefined;
  #depth = 0;
  #inString = false;
  #end: number | 'no-value' | undefined;

  /**
   * Where the value at `start` ends; undefined if the text ends first. The same text and start as the last time, or longer.
   * `no-value` as soon as something comes that no JSON has: so a text of many beginnings is not read to its end for each of them.
   */
  endOf(text: string, start: number): number | 'no-value' | undefined {
    let at = this.#at ?? start;
    while (this.#end === undefined && at < text.length) {
      const character = text[at]!;
      // The character after a backslash may not be there yet; then it is skipped when it comes.
      if (this.#inString && character === '\\') at++;
      else if (character === '"') this.#inString = !this.#inString;
      else if (!this.#inString) this.#stepOver(character);
      at++;
      if (this.#depth === 0 && !this.#inString) this.#end ??= at;
    }
    this.#at = at;
    return this.#end;
  }

  #stepOver(character: string): void {
    if (character === '{' || character === '[') this.#depth++;
    else if (character === '}' || character === ']') this.#depth--;
    else if (!OUTSIDE_STRINGS.has(character)) this.#end = 'no-value';
  }
}
