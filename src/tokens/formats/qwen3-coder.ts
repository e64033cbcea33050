/**
 * Calls as Qwen3-Coder writes them: `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`, each tag on
 * a line of its own.
 *
 * The arguments are a JSON object made of the parameters, in their order. A value that is JSON of an object, a list, a number, a
 * boolean or null stands there as it was written; any other is a string, less the one line break at either end that the format puts
 * there. The tool's schema is not asked: so a text that reads `5` becomes the number 5, as the template shows both alike.
 */
import { type CallFormat, markedReader, type ParsedCall } from './format.ts';
import { parseOr, skipSpace } from './json-source.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';
const FUNCTION = '<function=';
const FUNCTION_END = '</function>';
const PARAMETER = '<parameter=';
const PARAMETER_END = '</parameter>';

export const qwen3Coder: CallFormat = {
  name: 'qwen3-coder',
  reader: () => markedReader(OPEN, () => readCall),
};

type Verdict = 'no-call' | undefined;

function readCall(text: string): { readonly calls: readonly ParsedCall[]; readonly length: number } | Verdict {
  const cursor = new Cursor(text, OPEN.length);
  const name = cursor.takes(FUNCTION) ? cursor.name() : undefined;
  if (name === undefined) return cursor.verdict;
  const members: string[] = [];
  while (cursor.takes(PARAMETER)) {
    const key = cursor.name();
    const value = key === undefined ? undefined : cursor.until(PARAMETER_END);
    if (key === undefined || value === undefined) return cursor.verdict;
    members.push(`${JSON.stringify(key)}:${jsonOf(value)}`);
  }
  const parameterMayCome = cursor.verdict === undefined;
  if (!cursor.takes(FUNCTION_END)) return parameterMayCome ? undefined : cursor.verdict;
  if (!cursor.takes(CLOSE)) return cursor.verdict;
  return { calls: [{ name, arguments: `{${members.join(',')}}` }], length: cursor.at };
}

function jsonOf(value: string): string {
  const text = value.replace(/^\n/, '').replace(/\n$/, '');
  const parsed = parseOr(text);
  return parsed === undefined || typeof parsed === 'string' ? JSON.stringify(text) : text.trim();
}

/** Reads on from `at`. Where something cannot be read, `verdict` says whether more text could change that. */
class Cursor {
  readonly #text: string;
  at: number;
  verdict: Verdict;

  constructor(text: string, at: number) {
    this.#text = text;
    this.at = at;
  }

  /** Whether this comes next, after white space. */
  takes(literal: string): boolean {
    const at = skipSpace(this.#text, this.at);
    const found = this.#text.startsWith(literal, at);
    if (found) this.at = at + literal.length;
    else if (!literal.startsWith(this.#text.slice(at))) this.verdict = 'no-call';
    else this.verdict = undefined;
    return found;
  }

  /** The rest of a tag: a name on one line, then `>`. */
  name(): string | undefined {
    const end = /[<>\n]/g;
    end.lastIndex = this.at;
    const found = end.exec(this.#text);
    const closed = found?.[0] === '>' && found.index > this.at;
    this.verdict = found && !closed ? 'no-call' : undefined;
    if (!closed) return undefined;
    const name = this.#text.slice(this.at, found.index);
    this.at = found.index + 1;
    return name;
  }

  until(literal: string): string | undefined {
    const end = this.#text.indexOf(literal, this.at);
    this.verdict = undefined;
    if (end === -1) return undefined;
    const between = this.#text.slice(this.at, end);
    this.at = end + literal.length;
    return between;
  }
}
