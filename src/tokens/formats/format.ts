/**
 * How a model writes tool calls into its text. One file per format; which one a model has is found by find-format.ts.
 *
 * A reader is shown the text that nothing has been said about yet and says what its beginning is. It is a function of the whole
 * response: shown in parts, it must come to the same as shown at once. What is no well-formed call is text. Never throws.
 */

export interface ParsedCall {
  readonly name: string;
  readonly arguments: string;
}

/** Where the reader stands: nothing was said yet, nothing but calls, or other text came before. */
export type Place = 'start' | 'after calls' | 'within text';

/** What the first `length` characters are, at least one; undefined where more text decides. */
export type Step =
  | { readonly kind: 'text'; readonly length: number }
  | { readonly kind: 'calls'; readonly calls: readonly ParsedCall[]; readonly length: number }
  | undefined;

export interface CallFormat {
  readonly name: 'hermes' | 'qwen3-coder' | 'llama' | 'mistral';
  reader(): CallReader;
  /** What stands between a tool's name and its arguments. */
  readonly toArguments: RegExp;
}

/**
 * `text` is never empty, and the text of the last time, or longer, until a step was given; `last`: nothing follows it, and then there
 * is always a step.
 */
export type CallReader = (text: string, last: boolean, place: Place) => Step;

/**
 * For formats whose calls begin with a mark. `read` looks at a text that begins with it: where its calls end, undefined where more text
 * decides, or `no-call`. A mark without a call is text, and so is what follows it, up to the next mark.
 */
export function markedReader(
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

/** Where the mark begins, or what may become one once more text follows; the text's length if neither is there. */
export function startOf(mark: string, text: string, last: boolean): number {
  const whole = text.indexOf(mark);
  if (whole !== -1) return whole;
  return last ? text.length : endLike(mark, text);
}

/** Where the longest end of the text starts that the mark begins with; the text's length if there is none. */
export function endLike(mark: string, text: string): number {
  let at = Math.max(0, text.length - mark.length);
  while (!mark.startsWith(text.slice(at))) at++;
  return at;
}
