/** Who may call a server: addresses beyond loopback require a secret; secrets are compared safely; wrong keys are rate-limited. */
import { hash, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { HttpRequest } from './message.ts';
import { httpRefusal } from './refusal.ts';

export const HTTP_LIMITS = {
  headers: 200,
  headerBytes: 16 * 1024,
  /** Wrong keys from one address: burst size, and rate afterwards. */
  wrongKeys: 100,
  wrongKeysPerSecond: 20,
} as const;

const LOOPBACK = /^(?:localhost|[\w-]+\.localhost|127(?:\.\d{1,3}){3}|::1|\[::1\])$/i;

export const isLoopback = (host: string): boolean => LOOPBACK.test(host);

/** What callers must send to a server that is bound beyond loopback. */
export interface Secret {
  /** The user's name for it, for error messages. */
  readonly name: string;
  readonly value: string | undefined;
}

/** Shorter secrets can be guessed. */
const SHORTEST_SECRET = 16;

/** Throws USAGE if an address beyond loopback has no secret, or the secret is weak. */
export function checkSecret(host: string, { name, value }: Secret): void {
  if (value === undefined && !isLoopback(host)) {
    throw new TrainyardError(
      'USAGE',
      `${JSON.stringify(host)} is not loopback, and no ${name} was given`,
      `anyone who can reach the port could try keys: give a ${name}, or bind 127.0.0.1`,
    );
  }
  if (value !== undefined && (value.length < SHORTEST_SECRET || !/^[\x21-\x7e]+$/.test(value))) {
    throw new TrainyardError(
      'USAGE',
      `the ${name} is not ${SHORTEST_SECRET} or more printable ASCII characters`,
      'make one: openssl rand -hex 16',
    );
  }
}

/** Compares digests: the time it takes reveals neither length nor content of a secret. */
export function isSameSecret(secret: string, given: string | undefined): boolean {
  const digest = (text: string): Buffer => hash('sha256', text, 'buffer');
  return given !== undefined && timingSafeEqual(digest(secret), digest(given));
}

/** The key of a request; undefined if it carries none. */
export function bearerOf({ header }: Pick<HttpRequest, 'header'>): string | undefined {
  return /^Bearer +(\S+)$/i.exec(header('authorization')?.trim() ?? '')?.[1];
}

const MOST_ADDRESSES = 1000;

/** A token bucket per address. Consulted only after a wrong key, so a valid key is never refused, even from a shared address. */
export class WrongKeys {
  readonly #clock: Clock;
  readonly #buckets = new Map<string, { readonly left: number; readonly at: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Returns the error to answer with: `thrown`, or `too_many_wrong_keys` if the address sent too many wrong keys (SESSION_UNKNOWN). */
  count(thrown: unknown, address: string | undefined): unknown {
    const isWrongKey = thrown instanceof TrainyardError && thrown.code === 'SESSION_UNKNOWN';
    if (!isWrongKey || address === undefined || this.#take(address)) return thrown;
    return httpRefusal('too_many_wrong_keys', 'too many requests with a wrong key came from this address');
  }

  #take(address: string): boolean {
    const { wrongKeys: most, wrongKeysPerSecond } = HTTP_LIMITS;
    const now = this.#clock.now();
    const known = this.#buckets.get(address);
    const gained = known ? (Math.max(0, now - known.at) / 1000) * wrongKeysPerSecond : 0;
    const left = Math.min(most, (known?.left ?? most) + gained);
    this.#buckets.delete(address);
    this.#buckets.set(address, { left: Math.max(0, left - 1), at: now });
    const [oldest] = this.#buckets.keys();
    if (this.#buckets.size > MOST_ADDRESSES) this.#buckets.delete(oldest!);
    return left >= 1;
  }
}
