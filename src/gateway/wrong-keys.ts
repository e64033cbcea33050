/**
 * How many wrong keys came from where: a bucket per address that holds some and fills up slowly. Only asked when a key was wrong, so a
 * right one is never refused, whoever shares its address.
 */
import type { Clock } from '../core/contracts.ts';
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

  /** Counts one more; false if they are too many. */
  allow(address: string): boolean {
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
