/**
 * Parses a response while it is sampled: ids go in; pieces of reasoning and content and whole tool calls come out as soon as they are decided.
 *
 * The pieces add up to exactly what is read from all ids at once. `end` compares the two and throws if they differ, so that no client keeps
 * text that the recorded turn does not have.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { type Assistant, beforeStop, type Piece, PLAIN_FORMAT, type ResponseFormat, ResponseParser } from './response-parser.ts';

export { type Piece, piecesOf } from './response-parser.ts';

export class ResponseStream {
  readonly #text: TextStream;
  readonly #parser: ResponseParser;
  readonly #watch: StopWatch | undefined;
  /** What was said before the first sampled token, until that comes. */
  #opening: string;
  #seen = 0;
  #stoppedAt: number | undefined;

  /** `begun`: ids before the sampled ones that are part of what is said; no stop text is looked for in them. */
  constructor(
    decode: (ids: readonly number[]) => string,
    stopIds: readonly number[],
    responseFormat: ResponseFormat = PLAIN_FORMAT,
    stopTexts: readonly string[] = [],
    begun: Iterable<number> = [],
  ) {
    this.#text = new TextStream(decode, stopIds);
    this.#parser = new ResponseParser(responseFormat);
    this.#watch = stopTexts.length > 0 ? new StopWatch(stopTexts) : undefined;
    this.#opening = this.#text.push(begun);
  }

  /** After how many ids a stop text was complete, where one was; the ids after them are not part of the turn. */
  get stoppedAt(): number | undefined {
    return this.#stoppedAt;
  }

  push(ids: Int32Array): readonly Piece[] {
    return this.#parser.push(this.#opened() + this.#settled(ids), false);
  }

  /** The rest. `sampledIds` are all ids of the turn, those that were pushed first among them; `response` is what they say. */
  end(sampledIds: Int32Array, response: Assistant): readonly Piece[] {
    const settled = this.#settled(sampledIds.subarray(this.#seen));
    const rest = this.#text.end();
    const watched = this.#watch ? this.#watch.push(rest) + this.#watch.end() : rest;
    const pieces = this.#parser.push(this.#opened() + settled + watched, true);
    if (!isDeepStrictEqual(this.#parser.said, response)) {
      throw new TrainyardError(
        'TOKENIZER_INVALID',
        'what was streamed is not what the sampled tokens say as a whole',
        'this tokenizer decodes tokens differently one by one than together; ask without `stream`',
      );
    }
    return pieces;
  }

  #opened(): string {
    const opening = this.#opening;
    this.#opening = '';
    return opening;
  }

  /** One id at a time where texts can end the turn, so that it ends with the very id that completes one. */
  #settled(ids: Int32Array): string {
    if (!this.#watch) {
      this.#seen += ids.length;
      return this.#text.push(ids);
    }
    let settled = '';
    for (const id of ids) {
      if (this.#stoppedAt !== undefined) break;
      this.#seen++;
      settled += this.#watch.push(this.#text.push([id]));
      if (this.#watch.stopped) this.#stoppedAt = this.#seen;
    }
    return settled;
  }
}

// ── ids → text ────────────────────────────────────────────────────────────────────────────────────────────────────────

// Decodes ids as they are sampled and emits text as soon as no later id can change it. Held back: the bytes of an incomplete character, and an
// id that ends the turn (it is text only if something follows). Some tokenizers decode a token differently at the start of a text, so a few
// earlier ids are decoded along. All texts together are the decoding of all ids.

/** What decoders write for bytes that are not, or not yet, a character. */
const BROKEN = '\uFFFD';
/** A character has at most four bytes, so three may wait for the last; decoders write them as one or three broken characters. */
const MOST_WAITING = 3;
/** When more than MANY ids wait, all but the last ENOUGH are dropped: enough to find the next character boundary. */
const MANY = 64;
const ENOUGH = 16;

export class TextStream {
  readonly #decode: (ids: readonly number[]) => string;
  readonly #stopIds: readonly number[];
  /** Ids whose text was given out last, then those whose text was not, or not all of it. */
  #ids: number[] = [];
  #given = 0;
  /** How much of the text of all these ids was given out; at least the text of the first `#given` of them. */
  #givenLength = 0;

  constructor(decode: (ids: readonly number[]) => string, stopIds: readonly number[]) {
    this.#decode = decode;
    this.#stopIds = stopIds;
  }

  /** The text that these ids settle, possibly none. */
  push(ids: Iterable<number>): string {
    for (const id of ids) this.#ids.push(id);
    return this.#give(false);
  }

  /** The rest: nothing follows. */
  end(): string {
    return this.#give(true);
  }

  #give(last: boolean): string {
    const end = this.#stopIds.includes(this.#ids.at(-1) ?? -1) ? this.#ids.length - 1 : this.#ids.length;
    if (end <= this.#given) return '';
    const text = this.#decode(this.#ids.slice(0, end));
    let length = text.length;
    const least = last ? text.length : Math.max(this.#givenLength, text.length - MOST_WAITING);
    while (length > least && text[length - 1] === BROKEN) length--;
    const settled = text.slice(this.#givenLength, length);
    if (length < text.length) {
      this.#givenLength = length;
      if (end - this.#given > MANY) this.#forget(text, end);
      return settled;
    }
    this.#ids = this.#ids.slice(this.#given);
    this.#given = end - this.#given;
    this.#givenLength = this.#decode(this.#ids.slice(0, this.#given)).length;
    return settled;
  }
  /** In a long run of bytes that form no character the first are decided, so only the last are decoded again. */
  #forget(text: string, end: number): void {
    const kept = this.#ids.slice(end - ENOUGH);
    const tail = this.#decode(kept.slice(0, ENOUGH));
    const waiting = text.length - this.#givenLength;
    if (!text.endsWith(tail) || tail.length < waiting) return;
    this.#ids = kept;
    this.#given = 0;
    this.#givenLength = tail.length - waiting;
  }
}

// ── stop texts ────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Cuts a text before the first stop text that the client named. What may become a stop text is held back. */
class StopWatch {
  readonly #stopTexts: readonly string[];
  #held = '';
  /** Whether a stop text is complete; nothing after it counts. */
  stopped = false;

  constructor(stopTexts: readonly string[]) {
    this.#stopTexts = stopTexts;
  }

  /** The text that this settles. */
  push(text: string): string {
    if (this.stopped) return '';
    this.#held += text;
    const before = beforeStop(this.#held, this.#stopTexts);
    this.stopped = before !== undefined;
    const given = before ?? this.#held.slice(0, this.#heldFrom());
    this.#held = this.#held.slice(given.length);
    return given;
  }

  /** The rest: nothing follows. */
  end(): string {
    return this.stopped ? '' : this.#held;
  }

  #heldFrom(): number {
    const longest = Math.max(0, ...this.#stopTexts.map((stop) => stop.length - 1));
    for (let at = Math.max(0, this.#held.length - longest); at < this.#held.length; at++) {
      if (this.#stopTexts.some((stop) => stop.length > this.#held.length - at && stop.startsWith(this.#held.slice(at))))
        return at;
    }
    return this.#held.length;
  }
}
