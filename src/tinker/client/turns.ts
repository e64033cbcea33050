/**
 * Things that arrive together are gone on with one per turn of the event loop: a hundred messages at once must not stop everything else.
 */
export class Turns {
  readonly #line: (() => void)[] = [];

  /** First come, first served. */
  enter(go: () => void): void {
    if (this.#line.push(go) === 1) setImmediate(this.#next);
  }

  readonly #next = (): void => {
    const go = this.#line.shift()!;
    if (this.#line.length > 0) setImmediate(this.#next);
    go();
  };
}
