/** What was opened, closed in reverse. For what must be closed if opening the rest fails, and later as one. */
export class Closers implements AsyncDisposable {
  #open: (() => unknown)[] = [];

  add<T extends AsyncDisposable>(opened: T): T {
    this.#open.push(() => opened[Symbol.asyncDispose]());
    return opened;
  }

  defer(close: () => unknown): void {
    this.#open.push(close);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const close of this.#open.splice(0).toReversed()) await close();
  }
}

/** Opens with these closers; if that fails, closes what was opened and throws. */
export async function openingWith<T>(open: (closers: Closers) => Promise<T>): Promise<T> {
  const closers = new Closers();
  try {
    return await open(closers);
  } catch (thrown) {
    await closers[Symbol.asyncDispose]();
    throw thrown;
  }
}
