/**
 * The formats in which models write tool calls into their text, and which result belongs to which call. `extension.ts` finds out which
 * format a model uses.
 *
 * A reader gets the text that is still undecided and says what it begins with: text or calls. Reading a response in parts must give the
 * same result as reading it whole. Anything that is not a well-formed call is text. Never throws.
 */
import { parsedJson } from '../core/json.ts';
import type { Message, ToolCall } from '../core/types.ts';

export interface ParsedCall {
  /** Of a model that names its calls itself. */
  readonly id?: string;
  readonly name: string;
  readonly arguments: string;
}

/** What came before the undecided text: nothing, only calls, or other text. */
export type Place = 'start' | 'after calls' | 'within text';

/** What the first `length` characters (at least one) are; undefined if that depends on text still to come. */
type Step =
  | { readonly kind: 'text'; readonly length: number }
  | { readonly kind: 'calls'; readonly calls: readonly ParsedCall[]; readonly length: number }
  | undefined;

export interface CallFormat {
  readonly name: 'hermes' | 'qwen3-coder' | 'llama' | 'mistral';
  reader(): CallReader;
  /** Matches what separates a tool's name from its arguments. */
  readonly toArguments: RegExp;
}

/**
 * `text` is never empty; until a step is returned, each call gets the same text or a longer one. `last`: no more text will come, so a step
 * must be returned.
 */
export type CallReader = (text: string, last: boolean, place: Place) => Step;

/**
 * A reader for formats whose calls begin with a mark. `read` gets a text that begins with the mark and returns its calls, undefined if it
 * needs more text, or `no-call`. A mark without a call is text, and so is everything up to the next mark.
 */
function markedReader(
  mark: string,
  newReading: () => (text: string) => { readonly calls: readonly ParsedCall[]; readonly length: number } | 'no-call' | undefined,
): CallReader {
  let read = newReading();
  return (text, last) => {
    const start = startOf(mark, text, last);
    if (start > 0) return { kind: 'text', length: start };
    const found = text.startsWith(mark) ? read(text) : undefined;
    if (found === undefined && !last) return undefined;
    read = newReading();
    return typeof found === 'object' ? { kind: 'calls', ...found } : { kind: 'text', length: mark.length };
  };
}

/** Where the mark begins, or a beginning of it that more text may complete; the text's length if there is neither. */
export function startOf(mark: string, text: string, last: boolean): number {
  const whole = text.indexOf(mark);
  if (whole !== -1) return whole;
  return last ? text.length : endLike(mark, text);
}

/** Where the longest suffix of the text starts that is a prefix of the mark; the text's length if there is none. */
export function endLike(mark: string, text: string): number {
  let at = Math.max(0, text.length - mark.length);
  while (!mark.startsWith(text.slice(at))) at++;
  return at;
}

// ── JSON in a text ────────────────────────────────────────────────────────────────────────────────────────────────────

// Finds JSON values in a text and the source of their parts, as the policy wrote them; nothing is re-serialised. Finding where a value ends
// does not validate it: only what `JSON.parse` accepts counts as JSON.

/** Reads an object's source as a call; the source of the named member becomes its arguments. */
function callOf(source: string, argumentsName: string): ParsedCall | undefined {
  const parsed = parsedJson(source) as { readonly name?: unknown } | undefined;
  if (parsed === undefined || parsed === null || typeof parsed.name !== 'string' || parsed.name === '') return undefined;
  const given = source[skipSpace(source, 0)] === '{' ? memberSource(source, argumentsName) : undefined;
  return given === undefined ? undefined : { name: parsed.name, arguments: given };
}

/** The parsed value; undefined if the source is not JSON. */

/** Source of a member of an object that is known to be valid JSON. If a name occurs twice, the last one counts, as in JSON.parse. */
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

/** Sources of the elements of a list that is known to be valid JSON. */
function elementSources(list: string): readonly string[] {
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

/** Where the JSON value at `start` ends; some place after `start` if it is not valid. */
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
/** Every character that JSON allows outside strings. */
const OUTSIDE_STRINGS = new Set(`${SPACE}[]{},:0123456789+-.Eaeflnrstu`);

/** Looks for the end of one object or list and remembers how far it got, so that it need not start over when more text comes. */
export class ValueScan {
  #at: number | undefined;
  #depth = 0;
  #inString = false;
  #end: number | 'no-value' | undefined;

  /**
   * Where the value at `start` ends; undefined if the text ends first; `no-value` at the first character that JSON does not allow, so a text
   * with many opening braces is not read to its end for each of them. Each call gets the same text and start, or a longer text.
   */
  endOf(text: string, start: number): number | 'no-value' | undefined {
    let at = this.#at ?? start;
    while (this.#end === undefined && at < text.length) {
      const character = text[at]!;
      // If the character after a backslash is still to come, it is skipped then.
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

// ── Hermes and Qwen ───────────────────────────────────────────────────────────────────────────────────────────────────

// `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of them, with text before, between and after. A call's arguments are the
// source of that JSON value, whatever its type.

const TOOL_CALL = '<tool_call>';
const TOOL_CALL_END = '</tool_call>';

export const hermes: CallFormat = {
  name: 'hermes',
  toArguments: /^"\s*,\s*"arguments"\s*:/,
  reader: () =>
    markedReader(TOOL_CALL, () => {
      const scan = new ValueScan();
      let start = TOOL_CALL.length;
      let close = 0;
      return (text) => {
        start = skipSpace(text, start);
        if (start === text.length) return undefined;
        if (text[start] !== '{') return 'no-call';
        const end = scan.endOf(text, start);
        if (end === undefined || end === 'no-value') return end && 'no-call';
        close = skipSpace(text, Math.max(close, end));
        if (!text.startsWith(TOOL_CALL_END, close)) return TOOL_CALL_END.startsWith(text.slice(close)) ? undefined : 'no-call';
        const call = callOf(text.slice(start, end), 'arguments');
        return call ? { calls: [call], length: close + TOOL_CALL_END.length } : 'no-call';
      };
    }),
};

// ── Mistral ───────────────────────────────────────────────────────────────────────────────────────────────────────────

// `[TOOL_CALLS]` and one JSON list of `{"name": …, "arguments": …, "id": …}`. The policy made up these ids, so they are ignored. If one
// element is not a call, the whole list is text.

const TOOL_CALLS = '[TOOL_CALLS]';

export const mistral: CallFormat = {
  name: 'mistral',
  toArguments: /^"\s*,\s*"arguments"\s*:/,
  reader: () =>
    markedReader(TOOL_CALLS, () => {
      const scan = new ValueScan();
      let start = TOOL_CALLS.length;
      return (text) => {
        start = skipSpace(text, start);
        if (start === text.length) return undefined;
        if (text[start] !== '[') return 'no-call';
        const length = scan.endOf(text, start);
        if (length === undefined || length === 'no-value') return length && 'no-call';
        const source = text.slice(start, length);
        if (!Array.isArray(parsedJson(source))) return 'no-call';
        const calls = elementSources(source).map((element) => callOf(element, 'arguments'));
        const wellFormed = calls.filter((call) => call !== undefined);
        return calls.length > 0 && wellFormed.length === calls.length ? { calls: wellFormed, length } : 'no-call';
      };
    }),
};

// ── Llama 3.1 ─────────────────────────────────────────────────────────────────────────────────────────────────────────

// The response begins with `{"name": …, "parameters": …}`, possibly after `<|python_tag|>`; several calls are separated by `;` or white space.
// Text may follow them. JSON after other text is text, because nothing marks it as a call.

const PYTHON_TAG = '<|python_tag|>';

export const llama: CallFormat = {
  name: 'llama',
  toArguments: /^"\s*,\s*"parameters"\s*:/,
  reader() {
    let scan = new ValueScan();
    let space = 0;
    const decided = (step: Step): Step => {
      scan = new ValueScan();
      space = 0;
      return step;
    };
    return (text, last, place) => {
      const plain: Step = { kind: 'text', length: text.length };
      if (place === 'within text') return plain;
      space = skipSpace(text, space, place === 'start' ? '' : ';');
      const start = place === 'start' ? afterTag(text, space) : space;
      if (start === undefined || start === text.length) return last ? decided(plain) : undefined;
      if (text[start] !== '{') return decided(plain);
      const end = scan.endOf(text, start);
      if (end === undefined && !last) return undefined;
      if (typeof end !== 'number') return decided(plain);
      const call = callOf(text.slice(start, end), 'parameters');
      return decided(call ? { kind: 'calls', calls: [call], length: end } : plain);
    };
  },
};

/** The position after the tag at `at` and its white space; `at` if there is no tag; undefined if more text may complete one. */
function afterTag(text: string, at: number): number | undefined {
  if (text.startsWith(PYTHON_TAG, at)) return skipSpace(text, at + PYTHON_TAG.length);
  return at < text.length && PYTHON_TAG.startsWith(text.slice(at)) ? undefined : at;
}

// ── Qwen3-Coder ───────────────────────────────────────────────────────────────────────────────────────────────────────

// `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`, each tag on its own line.
//
// The arguments become a JSON object of the parameters, in order. A value that is a JSON object, list, number, boolean or null is copied as
// written; any other becomes a string, without the one line break that the format puts at either end. The tool's schema is not consulted:
// the text `5` becomes the number 5, because the template writes both alike.

const FUNCTION = '<function=';
const FUNCTION_END = '</function>';
const PARAMETER = '<parameter=';
const PARAMETER_END = '</parameter>';

export const qwen3Coder: CallFormat = {
  name: 'qwen3-coder',
  toArguments: /^>/,
  reader: () => markedReader(TOOL_CALL, () => new CallReading().read),
};

type Verdict = 'no-call' | undefined;

/** Reads one call. Continues after the last complete parameter when more text comes. */
class CallReading {
  readonly #cursor = new Cursor(TOOL_CALL.length);
  readonly #members: string[] = [];
  #name: string | undefined;
  #key: string | undefined;

  readonly read = (text: string): { readonly calls: readonly ParsedCall[]; readonly length: number } | Verdict => {
    const cursor = this.#cursor;
    cursor.text = text;
    this.#name ??= cursor.tag(FUNCTION);
    if (this.#name === undefined) return cursor.verdict;
    if (!this.#readParameters()) return cursor.verdict;
    const parameterMayCome = cursor.verdict === undefined;
    const end = cursor.at;
    if (!cursor.takes(FUNCTION_END)) return parameterMayCome ? undefined : cursor.verdict;
    if (!cursor.takes(TOOL_CALL_END)) {
      cursor.at = end;
      return cursor.verdict;
    }
    return { calls: [{ name: this.#name, arguments: `{${this.#members.join(',')}}` }], length: cursor.at };
  };

  /** False where one of them is not complete. */
  #readParameters(): boolean {
    const cursor = this.#cursor;
    for (;;) {
      this.#key ??= cursor.tag(PARAMETER);
      if (this.#key === undefined) return !cursor.inTag;
      const value = cursor.until(PARAMETER_END);
      if (value === undefined) return false;
      this.#members.push(`${JSON.stringify(this.#key)}:${jsonOf(value)}`);
      this.#key = undefined;
    }
  }
}

function jsonOf(value: string): string {
  const text = value.replace(/^\n/, '').replace(/\n$/, '');
  const parsed = parsedJson(text);
  return parsed === undefined || typeof parsed === 'string' ? JSON.stringify(text) : text.trim();
}

/** Reads on from `at`, which stays where it is if something cannot be read; `verdict` says whether more text could change that. */
class Cursor {
  text = '';
  at: number;
  verdict: Verdict;
  /** Whether the last tag that was looked for had begun. */
  inTag = false;
  #searched = 0;

  constructor(at: number) {
    this.at = at;
  }

  /** Whether this comes next, after white space. */
  takes(literal: string): boolean {
    this.at = skipSpace(this.text, this.at);
    const found = this.text.startsWith(literal, this.at);
    if (found) this.at += literal.length;
    else this.verdict = literal.startsWith(this.text.slice(this.at, this.at + literal.length)) ? undefined : 'no-call';
    return found;
  }

  /** The name in a tag that begins like this: on one line, then `>`. */
  tag(beginning: string): string | undefined {
    this.inTag = this.takes(beginning);
    if (!this.inTag) return undefined;
    const end = /[<>\n]/g;
    end.lastIndex = this.at;
    const found = end.exec(this.text);
    const closed = found?.[0] === '>' && found.index > this.at;
    this.verdict = found && !closed ? 'no-call' : undefined;
    const name = closed ? this.text.slice(this.at, found.index) : undefined;
    this.at = closed ? found.index + 1 : this.at - beginning.length;
    return name;
  }

  until(literal: string): string | undefined {
    const end = this.text.indexOf(literal, Math.max(this.at, this.#searched));
    this.verdict = undefined;
    this.#searched = this.text.length - literal.length + 1;
    if (end === -1) return undefined;
    const between = this.text.slice(this.at, end);
    this.at = end + literal.length;
    this.#searched = this.at;
    return between;
  }
}

// ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────

// Which result belongs to which call. Most chat templates write no ids, so the policy takes the first result for that of the first call;
// clients, and the APIs, go by ids, and may send results as they come in. Results are moved and named only among those that stand together:
// nothing moves past a user's or an assistant's message.

/**
 * Puts results that stand together in the order of the calls before them, which may be those of several assistant messages in a row. One
 * without an id counts as the result of the call that `withResultIds` gives it; one of no known call keeps its place.
 */
export function inCallOrder(messages: readonly Message[]): readonly Message[] {
  const ordered = [...messages];
  const named = withResultIds(messages);
  let calls: ToolCall[] = [];
  for (let at = 0; at < messages.length; at++) {
    const { role, tool_calls: made = [] } = messages[at]!;
    if (role === 'assistant' && messages[at - 1]?.role !== 'assistant') calls = [];
    if (role === 'assistant') calls.push(...made);
    if (role !== 'tool') continue;
    const unanswered = Map.groupBy(calls.keys(), (call) => calls[call]!.id);
    const known: { readonly place: number; readonly call: number; readonly result: Message }[] = [];
    for (; messages[at]?.role === 'tool'; at++) {
      const own = unanswered.get(named[at]!.tool_call_id ?? '') ?? [];
      // Of calls with one id, the first result is the first call's.
      const call = own.length > 1 ? own.shift() : own[0];
      if (call !== undefined) known.push({ place: at, call, result: messages[at]! });
    }
    at--;
    const sorted = known.toSorted((a, b) => a.call - b.call);
    for (const [i, { place }] of known.entries()) ordered[place] = sorted[i]!.result;
  }
  return ordered;
}

/** Gives each result without an id that of the first call, in the assistant's messages just before, that has no result yet. */
export function withResultIds(messages: readonly Message[]): readonly Message[] {
  let unanswered = new Set<string>();
  return messages.map((message, i) => {
    const before = messages[i - 1]?.role;
    if (message.role !== 'tool') {
      if (message.role !== 'assistant' || before !== 'assistant') unanswered = new Set();
      for (const { id } of message.tool_calls ?? []) unanswered.add(id);
      return message;
    }
    // Other results, also later ones, may name their calls.
    for (let at = i; before !== 'tool' && messages[at]?.role === 'tool'; at++)
      unanswered.delete(messages[at]!.tool_call_id ?? '');
    const [id] = unanswered;
    if (message.tool_call_id !== undefined || id === undefined) return message;
    unanswered.delete(id);
    return { ...message, tool_call_id: id };
  });
}
