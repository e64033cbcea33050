/**
 * Ids as they are sampled → text as soon as no later id can change it.
 *
 * What is held back: the bytes of a character that is not complete yet, and an id that ends the turn (it is text only if something
 * follows it). Some tokenizers write a token differently at the start of a text, so the ids before are decoded along; never more
 * than a few, so the cost does not grow with the text. All texts put together are the decoding of all ids.
 */

/** How decoders show bytes that are no character, or not yet one. */
const BROKEN = '\uFFFD';

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
    while (!last && length > this.#givenLength && text[length - 1] === BROKEN) length--;
    const settled = text.slice(this.#givenLength, length);
    if (length < text.length) {
      this.#givenLength = length;
      return settled;
    }
    this.#ids = this.#ids.slice(this.#given);
    this.#given = end - this.#given;
    this.#givenLength = this.#decode(this.#ids.slice(0, this.#given)).length;
    return settled;
  }
}
