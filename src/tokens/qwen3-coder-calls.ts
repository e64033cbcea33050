/**
 * Calls as Qwen3-Coder writes them: `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`, each tag on
 * a line of its own.
 *
 * The arguments are a JSON object made of the parameters, in their order. A value that is JSON of an object, a list, a number, a
 * boolean or null stands there as it was written; any other is a string, less the one line break at either end that the format puts
 * there. The tool's schema is not asked: so a text that reads `5` becomes the number 5, as the template shows both alike.
 */
import { type CallFormat, markedReader, type ParsedCall, parseOr, skipSpace } from './tool-calls.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';
const FUNCTION = '<function=';
const FUNCTION_END = '</function>';
const PARAMETER = '<parameter=';
const PARAMETER_END = '</parameter>';

export const qwen3Coder: CallFormat = {
  name: 'qwen3-coder',
  toArguments: /^>/,
  reader: () => markedReader(OPEN, () => new CallReading().read),
};

type Verdict = 'no-call' | undefined;

/** One call. Goes on behind the last parameter that was complete, so that more text does not mean starting over. */
class CallReading {
  readonly #cursor = new Cursor(OPEN.length);
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
    if (!cursor.takes(CLOSE)) {
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
  const parsed = parseOr(text);
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
