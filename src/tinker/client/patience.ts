/**
 * Waiting for a server that is away or busy: longer and longer, at most half a minute at a time, and not for ever.
 *
 * `Trouble` is one for a connection and tells its owner once when trouble begins and once when it is over, however many requests are
 * in it. `Patience` is one for a request and runs from its first failure, or from when the server was last heard of by anyone: requests
 * that are given up and made anew do not begin to wait anew. Neither knows what is being asked.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Downtime } from '../../core/async.ts';
import { cancelled } from './places.ts';

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 30_000;

export class Trouble {
  readonly #tell: (message: string) => void;
  readonly #downtime: Downtime | undefined;
  readonly #requests = new Set<Patience>();
  #since = 0;
  #silentSince: number | undefined;

  /** `downtime` runs as long as trouble lasts. */
  constructor(tell: (message: string) => void, downtime?: Downtime) {
    this.#tell = tell;
    this.#downtime = downtime;
  }

  /** The first failure since the server last answered anything. */
  get silentSince(): number | undefined {
    return this.#silentSince;
  }

  begins(request: Patience, message: string): void {
    this.#silentSince ??= performance.now();
    if (this.#requests.size === 0) {
      this.#since = performance.now();
      this.#downtime?.begin();
      this.#tell(message);
    }
    this.#requests.add(request);
  }

  /** The request was answered, or has given up. Trouble is over when no request is in it any more. */
  ends(request: Patience, answered: boolean): void {
    if (answered) this.#silentSince = undefined;
    if (!this.#requests.delete(request) || this.#requests.size > 0) return;
    this.#downtime?.end();
    if (!answered) return;
    this.#tell(`the server answers again, after ${Math.round((performance.now() - this.#since) / 1000)} s`);
  }
}

export class Patience {
  readonly #limitMs: number;
  readonly #signal: AbortSignal;
  #until: number | undefined;
  #tries = 0;

  constructor(limitMs: number, signal: AbortSignal) {
    this.#limitMs = limitMs;
    this.#signal = signal;
  }

  /** Waits before the next try; false where patience has run out, or would before the server wants to be asked again. */
  async wait(retryAfterMs = 0, silentSince?: number): Promise<boolean> {
    const now = performance.now();
    this.#until ??= (silentSince ?? now) + this.#limitMs;
    const left = this.#until - now;
    if (left <= 0 || retryAfterMs > left) return false;
    const ceiling = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#tries++);
    const backoff = ceiling * (0.5 + Math.random() / 2);
    await pause(Math.min(Math.max(backoff, retryAfterMs), left), this.#signal);
    return true;
  }
}

/** Rejects with CANCELLED as soon as the signal aborts. */
export async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await sleep(milliseconds, undefined, { signal }).catch(() => {
    throw cancelled();
  });
}

/** Milliseconds that a Retry-After header asks for: seconds, or a date. */
export function retryAfterMs(header: string | undefined): number {
  if (header === undefined) return 0;
  const seconds = Number(header);
  const wait = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(wait) ? Math.max(0, wait) : 0;
}
