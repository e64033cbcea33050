/**
 * The answers of one session by request, so that a client's retry gets the answer it missed instead of a second turn.
 *
 * A question is in one of four states: `running` (being sampled), `owed` (its sampling failed or was cancelled; nothing was recorded),
 * held (recorded, and given to one attempt or more), `missed` (recorded, and every attempt it was given to missed it). A question that
 * was refused is none: asking it again would be refused again.
 *
 *     asked ─▶ running ─▶ held ◀─▶ missed
 *                ▲  └──▶ owed
 *                └────────┘
 *
 * Attempts say what they ask, not which question they belong to, so each is matched to the likeliest, in this order: one that was
 * missed; for a marked retry one that is owed, then the oldest running (waited for), then the one given out last. Whatever matches
 * none is a new sample: asking the same question k times is how an agent gets k opinions. A new sample settles what was owed before
 * it, so that a question its client gave up does not become an extra turn later.
 *
 * Does not tell apart identical questions under way at the same time; clients do, by an idempotency key in `key`.
 */

import { gatewayFailure } from './wire-protocol.ts';

/** What was sampled, as given to one attempt. */
export interface Answer<T> {
  readonly value: T;
  /** This attempt did not get it. Counts once; as long as another attempt has it, the question stays answered. */
  miss(): void;
}

interface Asked<T> {
  /** Oldest first. */
  readonly running: Set<Promise<T>>;
  /** How many attempts were given this value and did not miss it. */
  readonly holders: Map<T, number>;
  readonly missed: Set<T>;
  owed: number;
  /** A retry came before its first attempt. That one, when it comes, asks nothing new: if it is cancelled, nothing is owed. */
  overtaken: boolean;
  latest: T | undefined;
  /** Attempts that wait for one that runs. */
  waiting: number;
}

export class Answers<T extends object> {
  readonly #asked = new Map<string, Asked<T>>();

  /** `key`: what is asked, and by whom. */
  async get(key: string, isRetry: boolean, sample: () => Promise<T>): Promise<Answer<T>> {
    const asked = this.#asked.get(key) ?? nothingAsked<T>();
    this.#asked.set(key, asked);
    for (;;) {
      const [missed] = asked.missed;
      if (missed !== undefined) return give(asked, missed);
      if (!isRetry || asked.owed > 0) break;
      const [oldest] = asked.running;
      if (oldest === undefined) {
        if (asked.latest !== undefined) return give(asked, asked.latest);
        asked.overtaken = true;
        break;
      }
      // It may yet be cancelled with its connection; then one of those who waited samples, and the others wait for that one.
      asked.waiting++;
      const value = await oldest.catch(() => undefined).finally(() => asked.waiting--);
      if (value !== undefined) return give(asked, value);
    }
    asked.owed = Math.max(0, asked.owed - 1);
    const owes = isRetry || !asked.overtaken;
    if (!isRetry) asked.overtaken = false;
    // Those who wait for it go on when the state is up to date.
    const running: Promise<T> = sample()
      .catch((thrown) => {
        if (owes && isWorthRetrying(thrown)) asked.owed++;
        throw thrown;
      })
      .finally(() => asked.running.delete(running));
    asked.running.add(running);
    try {
      return give(asked, await running);
    } finally {
      // What was refused is forgotten, or an agent that goes on asking beyond its limits would fill the memory.
      if (isNothing(asked)) this.#asked.delete(key);
    }
  }

  /** How many different questions are remembered. */
  get size(): number {
    return this.#asked.size;
  }

  /** What was sampled and nobody got. */
  *missed(): Iterable<T> {
    for (const asked of this.#asked.values()) yield* asked.missed;
  }
}

/** A cancelled call is: its client may be back. */
function isWorthRetrying(thrown: unknown): boolean {
  const { status } = gatewayFailure(thrown);
  return status >= 500 || status === 429 || status === 410;
}

function nothingAsked<T>(): Asked<T> {
  return { running: new Set(), holders: new Map(), missed: new Set(), owed: 0, overtaken: false, latest: undefined, waiting: 0 };
}

/** Whether it makes no difference that this was asked. */
function isNothing({ running, owed, overtaken, latest, waiting }: Asked<object>): boolean {
  return running.size === 0 && owed === 0 && !overtaken && latest === undefined && waiting === 0;
}

function give<T>(asked: Asked<T>, value: T): Answer<T> {
  asked.holders.set(value, (asked.holders.get(value) ?? 0) + 1);
  asked.missed.delete(value);
  asked.latest = value;
  let isMissed = false;
  const miss = (): void => {
    if (isMissed) return;
    isMissed = true;
    const left = (asked.holders.get(value) ?? 0) - 1;
    asked.holders.set(value, left);
    if (left === 0) asked.missed.add(value);
  };
  return { value, miss };
}

/** Whether the client says that this may not be its first attempt: by its SDK's count, or by naming what it asks. */
export function isMarkedRetry(header: (name: string) => string | undefined): boolean {
  if (header('idempotency-key')) return true;
  return ['x-stainless-retry-count', 'x-retry-count'].some((name) => Number(header(name) ?? 0) > 0);
}
