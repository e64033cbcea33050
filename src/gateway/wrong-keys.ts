/**
 * How many wrong keys came from where: a bucket per address that holds some and fills up slowly. Only asked when a key was wrong, so a
 * right one is never refused, whoever shares its address.
 */
import type { Clock } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { Refusal } from './http-errors.ts';
import { GATEWAY_LIMITS } from './limits.ts';

interface Bucket {
  left: number;
  at: number;
}

/** Addresses remembered. */
const MOST_ADDRESSES = 1000;

export class WrongKeys {
  readonly #clock: Clock;
  readonly #buckets = new Map<string, Bucket>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** What to answer instead of a failure: who sends many wrong keys is told to slow down, and nobody else is. */
  count(thrown: unknown, address: string | undefined): unknown {
    const isWrongKey = thrown instanceof TrainyardError && thrown.code === 'SESSION_UNKNOWN';
    if (!isWrongKey || address === undefined || this.#take(address)) return thrown;
    return new Refusal('too_many_wrong_keys', 'too many requests with a wrong key came from this address');
  }

  #take(address: string): boolean {
    const now = this.#clock.now();
    const known = this.#buckets.get(address);
    const gained = known ? (Math.max(0, now - known.at) / 1000) * GATEWAY_LIMITS.wrongKeysPerSecond : 0;
    const left = Math.min(GATEWAY_LIMITS.wrongKeys, (known?.left ?? GATEWAY_LIMITS.wrongKeys) + gained);
    this.#buckets.delete(address);
    this.#buckets.set(address, { left: Math.max(0, left - 1), at: now });
    const [oldest] = this.#buckets.keys();
    if (this.#buckets.size > MOST_ADDRESSES && oldest !== undefined) this.#buckets.delete(oldest);
    return left >= 1;
  }
}
