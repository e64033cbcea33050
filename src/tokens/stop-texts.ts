/**
 * Where a text ends because the client named a text that ends it. Before the first of them, in a whole text or in one that is still
 * being said; what may yet become one is held back.
 */

/** The text before the first stop text in it; undefined if none is. */
export function beforeStop(text: string, stopTexts: readonly string[]): string | undefined {
  const places = stopTexts.filter((stop) => stop !== '').map((stop) => text.indexOf(stop));
  const found = places.filter((place) => place !== -1);
  return found.length === 0 ? undefined : text.slice(0, Math.min(...found));
}

export class StopWatch {
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
