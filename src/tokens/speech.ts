/**
 * What the policy says, as text → reasoning, content and tool calls, each piece as soon as no later text can change it.
 *
 * Held back until then: what may become a tag or a call, and white space that may turn out to be all there is around calls or
 * thoughts. Where the template keeps thoughts apart, a response that begins with `<think>` is reasoning up to `</think>`, or to its end;
 * line breaks around the two parts are the template's and belong to neither. Elsewhere such tags are text; but a call inside them is
 * something thought of, not something done: it stays text.
 *
 * Shown in any parts, the pieces put together are those of the text shown at once. Tokens and their ids are others' business.
 */
import { type CallFormat, type CallReader, type ParsedCall, type Place, startOf } from './formats/format.ts';
import { hermes } from './formats/hermes.ts';

export interface Assistant {
  /** What the policy thought, where its template keeps that apart and the policy did. */
  readonly reasoning?: string;
  /** All text outside calls; null if there are calls and nothing but white space around them. */
  readonly content: string | null;
  readonly toolCalls: readonly ParsedCall[];
}

export type Piece =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly call: ParsedCall };

/** How a model writes what is not plain text. `prompted`: the generation prompt has opened the thoughts already. */
export interface Manner {
  readonly format: CallFormat;
  readonly thinks: 'unmarked' | 'tagged' | 'prompted';
}

export const PLAIN_MANNER: Manner = { format: hermes, thinks: 'unmarked' };

const THINK = '<think>';
const THINK_END = '</think>';

export function parseAssistant(text: string, manner: Manner = PLAIN_MANNER): Assistant {
  const speech = new Speech(manner);
  speech.push(text, true);
  return speech.said;
}

/** What a whole response is in pieces. */
export function piecesOf({ reasoning, content, toolCalls }: Assistant): readonly Piece[] {
  const thought = reasoning ? [{ kind: 'reasoning' as const, text: reasoning }] : [];
  const text = content ? [{ kind: 'text' as const, text: content }] : [];
  return [...thought, ...text, ...toolCalls.map((call, index) => ({ kind: 'call' as const, index, call }))];
}

/** `opening`: before the first word. `gap`: behind the thoughts. `aside`: inside tags that are text here. */
type Part = 'opening' | 'reasoning' | 'gap' | 'speaking' | 'aside';

export class Speech {
  readonly #read: CallReader;
  #part: Part;
  #place: Place = 'start';
  #undecided = '';
  /** White space that it begins with, before the first word. */
  #blank = 0;
  #pieces: Piece[] = [];
  #reasoning: string | undefined;
  /** Line breaks at the end of the thoughts so far. */
  #breaks = '';
  /** White space with nothing but calls before it. */
  #space = '';
  #content: string | null = null;
  readonly #calls: ParsedCall[] = [];

  constructor({ format, thinks }: Manner) {
    this.#read = format.reader();
    this.#part = thinks === 'prompted' ? 'reasoning' : thinks === 'tagged' ? 'opening' : 'speaking';
    if (thinks === 'prompted') this.#reasoning = '';
  }

  /** All that was said, once the last text was pushed. */
  get said(): Assistant {
    const rest = { content: this.#content, toolCalls: this.#calls };
    return this.#reasoning === undefined ? rest : { reasoning: this.#reasoning, ...rest };
  }

  push(text: string, last: boolean): readonly Piece[] {
    this.#pieces = [];
    this.#undecided += text;
    while (this.#undecided !== '' && this.#advance(last));
    if (last && this.#calls.length === 0 && this.#content === null) {
      this.#content = this.#space;
      if (this.#space !== '') this.#pieces.push({ kind: 'text', text: this.#space });
    }
    return this.#pieces;
  }

  /** Takes some of the undecided text, or steps into another part; false where more text is needed. */
  #advance(last: boolean): boolean {
    switch (this.#part) {
      case 'opening':
        return this.#open(last);
      case 'reasoning':
        return this.#within(THINK_END, last, (text) => this.#think(text));
      case 'gap':
        this.#take(leadingBreaks(this.#undecided));
        if (this.#undecided !== '') this.#part = 'speaking';
        return true;
      case 'speaking':
        return this.#speak(last);
      case 'aside':
        return this.#within(THINK_END, last, (text) => this.#say(text));
    }
  }

  #open(last: boolean): boolean {
    while (this.#undecided[this.#blank]?.trim() === '') this.#blank++;
    const words = this.#undecided.slice(this.#blank);
    if (words.startsWith(THINK)) {
      this.#take(this.#blank + THINK.length);
      this.#reasoning = '';
      this.#part = 'reasoning';
    } else if (last || !THINK.startsWith(words)) this.#part = 'speaking';
    else return false;
    return true;
  }

  /** Gives text to `to`, up to the tag; the tag itself is given only where it is text. */
  #within(tag: string, last: boolean, to: (text: string) => void): boolean {
    const end = startOf(tag, this.#undecided, last);
    to(this.#take(end));
    if (!this.#undecided.startsWith(tag)) return false;
    const ended = this.#take(tag.length);
    if (this.#part === 'aside') to(ended);
    this.#part = this.#part === 'aside' ? 'speaking' : 'gap';
    return true;
  }

  #speak(last: boolean): boolean {
    const step = this.#read(this.#undecided, last, this.#place);
    if (step?.kind === 'calls') {
      this.#take(step.length);
      for (const call of step.calls) this.#pieces.push({ kind: 'call', index: this.#calls.push(call) - 1, call });
      if (this.#place === 'start') this.#place = 'after calls';
      return true;
    }
    if (step === undefined) return false;
    // No further than a tag that begins in this text can reach, or a text of many steps would be searched whole in each.
    const near = this.#undecided.slice(0, step.length + THINK.length - 1);
    const length = Math.min(step.length, startOf(THINK, near, last || near.length < this.#undecided.length));
    if (length > 0) {
      this.#place = 'within text';
      this.#say(this.#take(length));
    } else if (this.#undecided.startsWith(THINK)) {
      this.#place = 'within text';
      this.#part = 'aside';
      this.#say(this.#take(THINK.length));
    } else return false;
    return true;
  }

  #take(length: number): string {
    const taken = this.#undecided.slice(0, length);
    this.#undecided = this.#undecided.slice(length);
    return taken;
  }

  #think(text: string): void {
    const words = this.#breaks + text;
    const start = this.#reasoning === '' ? leadingBreaks(words) : 0;
    let end = words.length;
    while (end > start && words[end - 1] === '\n') end--;
    this.#breaks = words.slice(end);
    if (end === start) return;
    this.#reasoning += words.slice(start, end);
    this.#pieces.push({ kind: 'reasoning', text: words.slice(start, end) });
  }

  #say(text: string): void {
    if (text === '') return;
    if (this.#content === null && text.trim() === '') {
      this.#space += text;
      return;
    }
    const said = this.#content === null ? this.#space + text : text;
    this.#content = (this.#content ?? '') + said;
    this.#pieces.push({ kind: 'text', text: said });
  }
}

function leadingBreaks(text: string): number {
  let at = 0;
  while (text[at] === '\n') at++;
  return at;
}
