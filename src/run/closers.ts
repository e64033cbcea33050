/** What was opened, closed in reverse, all of it, whatever fails on the way. For what must be closed if opening the rest fails, and later as one. */
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
    const failures: unknown[] = [];
    for (const close of this.#open.splice(0).toReversed()) {
      try {
        await close();
      } catch (thrown) {
        failures.push(thrown);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}

/** Opens with these closers; if that fails, closes what was opened and throws. */
export async function openingWith<T>(open: (closers: Closers) => Promise<T>): Promise<T> {
  const closers = new Closers();
  try {
    return await open(closers);
  } catch (thrown) {
    // Why opening failed says more than what failed because of it.
    await closers[Symbol.asyncDispose]().catch(() => {});
    throw thrown;
  }
}
