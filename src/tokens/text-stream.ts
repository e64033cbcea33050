/**
 * Ids as they are sampled → text as soon as no later id can change it.
 *
 * What is held back: the bytes of a character that is not complete yet, and an id that ends the turn (it is text only if something
 * follows it). Some tokenizers write a token differently at the start of a text, so the ids before are decoded along; never more
 * than a few, so the cost does not grow with the text. All texts put together are the decoding of all ids.
 */

/** How decoders show bytes that are no character, or not yet one. */
const BROKEN = '\uFFFD';
/** A character has four bytes at most, so three may wait for the last; decoders show them as one or as three. */
const MOST_WAITING = 3;
/** Ids that wait before some are forgotten, and those kept then: more than enough to find where characters begin again. */
const [MANY, ENOUGH] = [64, 16];

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
  /** Where bytes that make no character go on and on, the first of them are decided: only the last are decoded again. */
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
