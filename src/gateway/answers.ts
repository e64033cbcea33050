/**
 * The completions of one session, keyed by request, so that a client's retry gets the response it missed instead of a second turn.
 *
 * A request is `running` (being sampled), `owed` (sampling failed or was cancelled; nothing was recorded), held (recorded and given to an
 * attempt) or `missed` (recorded, but missed by every attempt that was given it). Refused requests are not kept: a retry is refused again.
 *
 *     asked ─▶ running ─▶ held ◀─▶ missed
 *                ▲  └──▶ owed
 *                └────────┘
 *
 * An attempt states what it asks, not which request it repeats. It is matched in this order: a missed completion; then, for a marked retry,
 * an owed request, the oldest running one (awaited), the completion given out last. Any other attempt is a new sample: an agent may ask k
 * times to get k opinions. A new sample settles one owed request, so a request its client gave up does not become an extra turn later.
 * Identical concurrent requests are indistinguishable unless the client sends an idempotency key, which is part of `key`.
 */
import type { Turn } from '../core/types.ts';
import { newMessagesAfter } from '../tokens/history.ts';
import { gatewayFailure } from './wire-protocol.ts';

export interface Answer<T> {
  readonly value: T;
  /** Reports, once, that this attempt did not receive the value. The request stays answered while another attempt holds it. */
  miss(): void;
}

interface RequestState<T> {
  /** Oldest first. */
  readonly running: Set<Promise<T>>;
  /** Number of attempts that were given the value and did not miss it. */
  readonly holders: Map<T, number>;
  readonly missed: Set<T>;
  owed: number;
  /** A retry arrived before its first attempt. If the first attempt then arrives and is cancelled, nothing is owed. */
  overtaken: boolean;
  latest: T | undefined;
  waiting: number;
}

export class Answers<T extends object> {
  readonly #requests = new Map<string, RequestState<T>>();
  readonly #keep: ((key: string, value: T) => Promise<void>) | undefined;

  /** `keep`: a value is given out once this resolves. If it throws, the value counts as missed, and the next attempt tries again. */
  constructor(keep?: (key: string, value: T) => Promise<void>) {
    this.#keep = keep;
  }

  /** `key` identifies the request and its caller. */
  async get(key: string, isRetry: boolean, sample: () => Promise<T>): Promise<Answer<T>> {
    const answer = await this.#answer(key, isRetry, sample);
    if (this.#keep === undefined) return answer;
    try {
      await this.#keep(key, answer.value);
    } catch (thrown) {
      answer.miss();
      throw thrown;
    }
    return answer;
  }

  /** A value that an earlier process gave out. */
  recall(key: string, value: T): void {
    const state = this.#requests.get(key) ?? newState<T>();
    this.#requests.set(key, state);
    give(state, value);
  }

  async #answer(key: string, isRetry: boolean, sample: () => Promise<T>): Promise<Answer<T>> {
    const state = this.#requests.get(key) ?? newState<T>();
    this.#requests.set(key, state);
    for (;;) {
      const [missed] = state.missed;
      if (missed !== undefined) return give(state, missed);
      if (!isRetry || state.owed > 0) break;
      const [oldest] = state.running;
      if (oldest === undefined) {
        if (state.latest !== undefined) return give(state, state.latest);
        state.overtaken = true;
        break;
      }
      // The running attempt may still be cancelled with its connection. Then one waiter samples, and the others wait for that one.
      state.waiting++;
      const value = await oldest.catch(() => undefined).finally(() => state.waiting--);
      if (value !== undefined) return give(state, value);
    }
    state.owed = Math.max(0, state.owed - 1);
    const owes = isRetry || !state.overtaken;
    if (!isRetry) state.overtaken = false;
    // Waiters resume only after these handlers have updated the state.
    const running: Promise<T> = sample()
      .catch((thrown) => {
        if (owes && isWorthRetrying(thrown)) state.owed++;
        throw thrown;
      })
      .finally(() => state.running.delete(running));
    state.running.add(running);
    try {
      return give(state, await running);
    } finally {
      // Refused requests are forgotten. Otherwise an agent that keeps asking beyond its limits would fill the memory.
      if (isForgettable(state)) this.#requests.delete(key);
    }
  }

  get size(): number {
    return this.#requests.size;
  }

  /** Values that were sampled but reached no client. */
  *missed(): Iterable<T> {
    for (const state of this.#requests.values()) yield* state.missed;
  }
}

/** A cancelled call counts too: its client may come back. */
function isWorthRetrying(thrown: unknown): boolean {
  const { status } = gatewayFailure(thrown);
  return status >= 500 || status === 429 || status === 410;
}

function newState<T>(): RequestState<T> {
  return { running: new Set(), holders: new Map(), missed: new Set(), owed: 0, overtaken: false, latest: undefined, waiting: 0 };
}

function isForgettable({ running, owed, overtaken, latest, waiting }: RequestState<object>): boolean {
  return running.size === 0 && owed === 0 && !overtaken && latest === undefined && waiting === 0;
}

function give<T>(state: RequestState<T>, value: T): Answer<T> {
  state.holders.set(value, (state.holders.get(value) ?? 0) + 1);
  state.missed.delete(value);
  state.latest = value;
  let isMissed = false;
  const miss = (): void => {
    if (isMissed) return;
    isMissed = true;
    const left = (state.holders.get(value) ?? 0) - 1;
    state.holders.set(value, left);
    if (left === 0) state.missed.add(value);
  };
  return { value, miss };
}

/** Whether this may not be the client's first attempt: its SDK counts retries, or it sent an idempotency key. */
export function isMarkedRetry(header: (name: string) => string | undefined): boolean {
  if (header('idempotency-key')) return true;
  return ['x-stainless-retry-count', 'x-retry-count'].some((name) => Number(header(name) ?? 0) > 0);
}

/**
 * The missed turns whose text no later request contains. A turn does come back if another turn continues it, if the template or the client
 * repeats it in other tokens, or, for a default model's turn, which is never continued, if a request quotes it.
 */
export function lostTurns(turns: readonly Turn[], missed: readonly Turn[]): readonly Turn[] {
  if (missed.length === 0) return [];
  const continued = new Set(turns.map((turn) => turn.after ?? rewordedIn(turn, turns)));
  return missed.filter((turn) => !continued.has(turn.index) && !(turn.model !== undefined && isQuoted(turn, turns)));
}

/** The turn whose response this turn's request contains, rewritten in other tokens by the template or the client. */
function rewordedIn({ fork, request }: Turn, turns: readonly Turn[]): number | undefined {
  const from = fork && turns[fork.from];
  if (from === undefined) return undefined;
  if (newMessagesAfter(from, request.messages) !== undefined) return from.index;
  const isEdited = fork?.also?.includes('edited_message') ?? false;
  const isShortened = !isEdited && (fork?.cause === 'dropped_reasoning' || fork?.cause === 'dropped_tool_call');
  return isShortened && fork.message === from.request.messages.length ? from.index : undefined;
}

function isQuoted(turn: Turn, turns: readonly Turn[]): boolean {
  return turns.some(({ request }) => newMessagesAfter(turn, request.messages) !== undefined);
}
