/**
 * A window of time that work must keep to. What comes back after its end is late, however it comes: an abort that was swallowed, an
 * event loop that was blocked, an error. The work itself cannot be stopped, only told and left behind.
 */
import type { Semaphore } from '../core/async.ts';
import { linkSignals, orAborted } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';

/** Shorter waits in a queue are not worth a word. */
const WORTH_A_WORD_MS = 100;

/** By the name that every platform gives to what took too long. */
export class DeadlineError extends Error {
  override readonly name = 'TimeoutError';
}

export class Deadline {
  readonly #what: string;
  readonly #seconds: number;
  readonly #startedAt = performance.now();
  #queuedMs = 0;

  /** Begins now. 0 and less: it is over already. */
  constructor(what: 'workflow' | 'grader', seconds: number) {
    this.#what = what;
    this.#seconds = seconds;
  }

  /** Waits for a slot; the wait is part of the window. Without slots there is no wait. */
  async enter(slots: Semaphore | undefined, cancel: AbortSignal): Promise<Disposable | undefined> {
    if (slots === undefined) return undefined;
    let given: Disposable | undefined;
    let left = false;
    const since = performance.now();
    try {
      await this.within(cancel, async (signal) => {
        const slot = await slots.acquire(signal);
        // The slot may come in the very moment in which the window ends.
        if (left) slot[Symbol.dispose]();
        else given = slot;
      });
      return given;
    } catch (thrown) {
      left = true;
      given?.[Symbol.dispose]();
      throw thrown instanceof DeadlineError ? this.#exceeded(performance.now() - since) : thrown;
    } finally {
      this.#queuedMs += performance.now() - since;
    }
  }

  /** Throws a DeadlineError when it is over, the reason of `cancel` when that came first. */
  async within<T>(cancel: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    cancel.throwIfAborted();
    if (this.#isOver()) throw this.#exceeded();
    const end = new AbortController();
    const timer = setTimeout(() => end.abort(this.#exceeded()), this.#leftMs());
    const { signal, release } = linkSignals(cancel, end.signal);
    try {
      const value = await orAborted(work(signal), signal);
      if (this.#isOver()) throw this.#exceeded();
      return value;
    } catch (thrown) {
      if (cancel.aborted) throw cancel.reason;
      throw this.#isOver() ? this.#exceeded() : thrown;
    } finally {
      clearTimeout(timer);
      release();
    }
  }

  #leftMs(): number {
    return this.#startedAt + this.#seconds * 1000 - performance.now();
  }

  #isOver(): boolean {
    return this.#leftMs() <= 0;
  }

  #exceeded(waitingMs = 0): DeadlineError {
    const queued = this.#queuedMs + waitingMs;
    const suffix = queued < WORTH_A_WORD_MS ? '' : ` (${(queued / 1000).toFixed(1)}s of it spent queued)`;
    return new DeadlineError(`${this.#what} exceeded its ${this.#seconds.toFixed(1)}s deadline${suffix}`);
  }
}

/** Seconds from 0 up to a maximum. Throws REQUEST_INVALID for what is no time. */
export function boundedSeconds(given: number | null, most: number, param: string): number {
  if (given !== null && !Number.isFinite(given)) {
    throw new TrainyardError('REQUEST_INVALID', `${param} is ${given}, expected a finite number of seconds or null`, { param });
  }
  return Math.min(given ?? most, most);
}
