/**
 * A number of places that many want: who finds none free waits in line. First come, first served.
 */
import { TrainyardError } from '../../core/errors.ts';

export class Places {
  #free: number;
  readonly #line: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** Runs `work` in a place; rejects with CANCELLED where the signal aborts before it has one. */
  async within<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    await this.#enter(signal);
    try {
      return await work();
    } finally {
      const next = this.#line.shift();
      if (next === undefined) this.#free++;
      else next();
    }
  }

  async #enter(signal: AbortSignal | undefined): Promise<void> {
    if (signal?.aborted) throw cancelled();
    if (this.#free > 0) {
      this.#free--;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leave = (): void => {
      const place = this.#line.indexOf(resolve);
      if (place < 0) return;
      this.#line.splice(place, 1);
      reject(cancelled());
    };
    this.#line.push(resolve);
    signal?.addEventListener('abort', leave, { once: true });
    await promise.finally(() => signal?.removeEventListener('abort', leave));
  }
}

export function cancelled(): TrainyardError {
  return new TrainyardError('CANCELLED', 'the request to the server of the policy was cancelled');
}
