/**
 * What the policy says, while it says it: sampled ids in, pieces of reasoning and content and whole tool calls out, each as soon as it
 * is decided.
 *
 * The pieces put together are exactly what is read from all ids at once, which stays the truth: `end` compares, and throws rather than
 * let a client keep words that the recorded turn does not have.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { type Assistant, type Manner, type Piece, PLAIN_MANNER, Speech } from './speech.ts';
import { StopWatch } from './stop-texts.ts';
import { TextStream } from './text-stream.ts';

export { type Piece, piecesOf } from './speech.ts';

export class ResponseStream {
  readonly #text: TextStream;
  readonly #speech: Speech;
  readonly #watch: StopWatch | undefined;
  /** What was said before the first sampled token, until that comes. */
  #opening: string;
  #seen = 0;
  #stoppedAt: number | undefined;

  /** `begun`: ids before the sampled ones that are part of what is said; no stop text is looked for in them. */
  constructor(
    decode: (ids: readonly number[]) => string,
    stopIds: readonly number[],
    manner: Manner = PLAIN_MANNER,
    stopTexts: readonly string[] = [],
    begun: Iterable<number> = [],
  ) {
    this.#text = new TextStream(decode, stopIds);
    this.#speech = new Speech(manner);
    this.#watch = stopTexts.length > 0 ? new StopWatch(stopTexts) : undefined;
    this.#opening = this.#text.push(begun);
  }

  /** After how many ids a stop text was complete, where one was; the ids after them are not part of the turn. */
  get stoppedAt(): number | undefined {
    return this.#stoppedAt;
  }

  push(ids: Int32Array): readonly Piece[] {
    return this.#speech.push(this.#opened() + this.#settled(ids), false);
  }

  /** The rest. `sampledIds` are all ids of the turn, those that were pushed first among them; `response` is what they say. */
  end(sampledIds: Int32Array, response: Assistant): readonly Piece[] {
    const settled = this.#settled(sampledIds.subarray(this.#seen));
    const rest = this.#text.end();
    const watched = this.#watch ? this.#watch.push(rest) + this.#watch.end() : rest;
    const pieces = this.#speech.push(this.#opened() + settled + watched, true);
    if (!isDeepStrictEqual(this.#speech.said, response)) {
      throw new TrainyardError('TOKENIZER_INVALID', 'what was streamed is not what the sampled tokens say as a whole', {
        hint: 'this tokenizer decodes tokens differently one by one than together; ask without `stream`',
      });
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
