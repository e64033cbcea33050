/**
 * What the policy says, while it says it: sampled ids in, pieces of content and whole tool calls out, each as soon as it is decided.
 *
 * Held back until then: half a character, text that may yet become a tool call, and white space that may turn out to be all there is
 * around calls. The pieces put together are exactly what `parseAssistant` reads from all ids at once, which stays the truth: `end`
 * compares, and throws rather than let a client keep words that the recorded turn does not have.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { TextStream } from './text-stream.ts';
import { type Assistant, CLOSE_TAG, OPEN_TAG, type ParsedCall, readCall, skipSpace } from './tool-calls.ts';

export type Piece =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly call: ParsedCall };

export class ResponseStream {
  readonly #text: TextStream;
  #seen = 0;
  /** Not decided yet: the start of a tag, or a tag and what follows it. */
  #undecided = '';
  #scan = new CallScan();
  /** White space with nothing but calls before it. */
  #space = '';
  #content: string | null = null;
  readonly #calls: ParsedCall[] = [];

  /** After how many ids a stop text was complete, where one was; the ids after them are not part of the turn. */
  get stoppedAt(): number | undefined {
    return undefined;
  }

  constructor(decode: (ids: readonly number[]) => string, stopIds: readonly number[]) {
    this.#text = new TextStream(decode, stopIds);
  }

  push(ids: Int32Array): readonly Piece[] {
    this.#seen += ids.length;
    return this.#read(this.#text.push(ids), false);
  }

  /** The rest. `sampledIds` are all ids of the turn, those that were pushed first among them; `response` is what they say. */
  end(sampledIds: Int32Array, response: Assistant): readonly Piece[] {
    const rest = this.#text.push(sampledIds.subarray(this.#seen)) + this.#text.end();
    const pieces = this.#read(rest, true);
    if (!isDeepStrictEqual({ content: this.#content, toolCalls: this.#calls }, response)) {
      throw new TrainyardError('TOKENIZER_INVALID', 'what was streamed is not what the sampled tokens say as a whole', {
        hint: 'this tokenizer decodes tokens differently one by one than together; ask without `stream`',
      });
    }
    return pieces;
  }

  #read(text: string, last: boolean): readonly Piece[] {
    const pieces: Piece[] = [];
    this.#undecided += text;
    while (this.#undecided !== '') {
      const tag = tagStart(this.#undecided, last);
      this.#say(this.#undecided.slice(0, tag), pieces);
      this.#undecided = this.#undecided.slice(tag);
      if (!this.#undecided.startsWith(OPEN_TAG) || !(this.#scan.isDecided(this.#undecided) || last)) break;
      this.#call(pieces);
    }
    if (last && this.#calls.length === 0 && this.#content === null) {
      this.#content = this.#space;
      if (this.#space !== '') pieces.push({ kind: 'text', text: this.#space });
    }
    return pieces;
  }

  /** The undecided text starts with a tag, and no more text can change what it is. */
  #call(pieces: Piece[]): void {
    const found = readCall(this.#undecided, OPEN_TAG.length);
    if (found) pieces.push({ kind: 'call', index: this.#calls.push(found.call) - 1, call: found.call });
    else this.#say(OPEN_TAG, pieces);
    this.#undecided = this.#undecided.slice(found ? found.end : OPEN_TAG.length);
    this.#scan = new CallScan();
  }

  #say(text: string, pieces: Piece[]): void {
    if (text === '') return;
    if (this.#content === null && text.trim() === '') {
      this.#space += text;
      return;
    }
    const said = this.#content === null ? this.#space + text : text;
    this.#content = (this.#content ?? '') + said;
    pieces.push({ kind: 'text', text: said });
  }
}

/** What a whole response is in pieces. */
export function piecesOf({ reasoning, content, toolCalls }: Assistant): readonly Piece[] {
  const thought = reasoning ? [{ kind: 'reasoning' as const, text: reasoning }] : [];
  const text = content ? [{ kind: 'text' as const, text: content }] : [];
  return [...thought, ...text, ...toolCalls.map((call, index) => ({ kind: 'call' as const, index, call }))];
}

/** Where the first opening tag begins, or what may become one; the text's length if nothing in it can. */
function tagStart(text: string, last: boolean): number {
  const whole = text.indexOf(OPEN_TAG);
  if (whole !== -1) return whole;
  if (!last) {
    for (let at = Math.max(0, text.length - OPEN_TAG.length + 1); at < text.length; at++) {
      if (OPEN_TAG.startsWith(text.slice(at))) return at;
    }
  }
  return text.length;
}

/** How far a text that starts with an opening tag has been looked through, so that more text does not mean starting over. */
class CallScan {
  #at = OPEN_TAG.length;
  #depth = 0;
  #inString = false;
  #closed = false;

  /** Whether more text could not change what `readCall` finds in this one. The text is the one of the last time, or longer. */
  isDecided(text: string): boolean {
    if (this.#depth === 0) this.#at = skipSpace(text, this.#at);
    if (this.#depth === 0 && !this.#closed && this.#at < text.length && text[this.#at] !== '{') return true;
    if (!this.#closed) this.#scanObject(text);
    if (!this.#closed) return false;
    this.#at = skipSpace(text, this.#at);
    const after = text.slice(this.#at, this.#at + CLOSE_TAG.length);
    return after === CLOSE_TAG || !CLOSE_TAG.startsWith(after);
  }

  /** To the end of the object, or of the text. */
  #scanObject(text: string): void {
    while (this.#at < text.length) {
      const character = text[this.#at]!;
      // The character after a backslash may not be there yet; then it is skipped when it comes.
      if (this.#inString && character === '\\') this.#at++;
      else if (character === '"') this.#inString = !this.#inString;
      else if (!this.#inString && (character === '{' || character === '[')) this.#depth++;
      else if (!this.#inString && (character === '}' || character === ']')) this.#depth--;
      this.#at++;
      if (this.#depth === 0 && !this.#inString) {
        this.#closed = true;
        return;
      }
    }
  }
}
