/**
 * Parses the policy's text into reasoning, content and tool calls, and emits each piece as soon as no later text can change it.
 *
 * Held back until then: what may become a tag or a call, and white space that may belong to the template (between text and a call, and
 * around calls that no text follows). If the template separates reasoning, a response that begins with `<think>` is reasoning up to `</think>`
 * or to its end; line breaks around the two parts are the template's. Otherwise these tags are text, but a call inside them was only thought
 * of, so it stays text.
 *
 * However the text is split, the pieces add up to those of the whole text.
 */
import { type CallFormat, type CallReader, endLike, hermes, type ParsedCall, type Place, startOf } from './tool-calls.ts';

export interface Assistant {
  /** The reasoning, if the template separates it and the policy wrote some. */
  readonly reasoning?: string;
  /** Text outside calls, such that the template writes it again the same way. Null if there are only calls. */
  readonly content: string | null;
  readonly toolCalls: readonly ParsedCall[];
}

export type Piece =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly call: ParsedCall };

/** How a model writes calls and reasoning. `prompted`: the generation prompt has already opened the reasoning. */
export interface ResponseFormat {
  readonly format: CallFormat;
  readonly thinks: 'unmarked' | 'tagged' | 'prompted';
  /** White space that the template writes between text and a call. */
  readonly beforeCalls: string;
}

export const PLAIN_FORMAT: ResponseFormat = { format: hermes, thinks: 'unmarked', beforeCalls: '' };

const THINK = '<think>';
const THINK_END = '</think>';

export function parseAssistant(text: string, responseFormat: ResponseFormat = PLAIN_FORMAT): Assistant {
  const parser = new ResponseParser(responseFormat);
  parser.push(text, true);
  return parser.said;
}

/** A whole response as pieces. */
export function piecesOf({ reasoning, content, toolCalls }: Assistant): readonly Piece[] {
  const thought = reasoning ? [{ kind: 'reasoning' as const, text: reasoning }] : [];
  const text = content ? [{ kind: 'text' as const, text: content }] : [];
  return [...thought, ...text, ...toolCalls.map((call, index) => ({ kind: 'call' as const, index, call }))];
}

/** `opening`: before the first word. `gap`: after the reasoning. `aside`: inside `<think>` tags that are text. */
type Part = 'opening' | 'reasoning' | 'gap' | 'speaking' | 'aside';

export class ResponseParser {
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
  readonly #beforeCalls: string;
  /** White space that is content only if a word follows, or no call does. */
  #space = '';
  /** Whether no word came yet, or none after the last call. */
  #silent = true;
  #content: string | null = null;
  readonly #calls: ParsedCall[] = [];

  constructor({ format, thinks, beforeCalls }: ResponseFormat) {
    this.#read = format.reader();
    this.#beforeCalls = beforeCalls;
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
    if (last && (this.#calls.length === 0 || !this.#silent)) this.#give(this.#space);
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
      if (!this.#silent && this.#space !== this.#beforeCalls) this.#give(this.#space);
      this.#silent = true;
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
    const words = this.#space + text;
    this.#silent &&= text.trim() === '';
    const end = this.#silent ? 0 : endLike(this.#beforeCalls, words);
    if (end > 0) this.#give(words.slice(0, end));
    this.#space = words.slice(end);
  }

  #give(text: string): void {
    this.#space = '';
    this.#content = (this.#content ?? '') + text;
    if (text !== '') this.#pieces.push({ kind: 'text', text });
  }
}

function leadingBreaks(text: string): number {
  let at = 0;
  while (text[at] === '\n') at++;
  return at;
}

/** The text before the first stop text; undefined if it contains none. */
export function beforeStop(text: string, stopTexts: readonly string[]): string | undefined {
  const places = stopTexts.filter((stop) => stop !== '').map((stop) => text.indexOf(stop));
  const found = places.filter((place) => place !== -1);
  return found.length === 0 ? undefined : text.slice(0, Math.min(...found));
}
