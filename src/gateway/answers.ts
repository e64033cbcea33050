/**
 * The answers of one session by request, so that a client's retry gets the answer it missed instead of a second turn.
 *
 * A request is in one of four states: `running` (being sampled), `owed` (its sampling failed or was cancelled; nothing was recorded),
 * held (recorded, and given to one attempt or more), `missed` (recorded, and every attempt it was given to missed it). Refused requests are
 * not kept: they would be refused again.
 *
 *     asked ─▶ running ─▶ held ◀─▶ missed
 *                ▲  └──▶ owed
 *                └────────┘
 *
 * Attempts say what they ask, not which request they repeat, so each is matched to the likeliest, in this order: one that was missed; for
 * a marked retry one that is owed, then the oldest running (waited for), then the one given out last. An attempt that matches none is a new
 * sample: asking the same k times is how an agent gets k opinions. A new sample settles what was owed before it, so that a request its client
 * gave up does not become an extra turn later.
 *
 * Identical requests under way at the same time are not told apart; clients do that with an idempotency key, which is part of `key`.
 */
import type { Turn } from '../core/types.ts';
import { newMessagesAfter } from '../tokens/history.ts';
import { gatewayFailure } from './wire-protocol.ts';

/** What was sampled, as given to one attempt. */
export interface Answer<T> {
  readonly value: T;
  /** This attempt did not get it. Counts once; as long as another attempt has it, the request stays answered. */
  miss(): void;
}

interface RequestState<T> {
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
  readonly #requests = new Map<string, RequestState<T>>();

  /** `key`: what is asked, and by whom. */
  async get(key: string, isRetry: boolean, sample: () => Promise<T>): Promise<Answer<T>> {
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
      // It may yet be cancelled with its connection; then one of those who waited samples, and the others wait for that one.
      state.waiting++;
      const value = await oldest.catch(() => undefined).finally(() => state.waiting--);
      if (value !== undefined) return give(state, value);
    }
    state.owed = Math.max(0, state.owed - 1);
    const owes = isRetry || !state.overtaken;
    if (!isRetry) state.overtaken = false;
    // Those who wait for it go on when the state is up to date.
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
      // Refused requests are forgotten, or an agent that goes on asking beyond its limits would fill the memory.
      if (isForgettable(state)) this.#requests.delete(key);
    }
  }

  /** How many different requests are remembered. */
  get size(): number {
    return this.#requests.size;
  }

  /** What was sampled and nobody got. */
  *missed(): Iterable<T> {
    for (const state of this.#requests.values()) yield* state.missed;
  }
}

/** Also a cancelled call: its client may be back. */
function isWorthRetrying(thrown: unknown): boolean {
  const { status } = gatewayFailure(thrown);
  return status >= 500 || status === 429 || status === 410;
}

function newState<T>(): RequestState<T> {
  return { running: new Set(), holders: new Map(), missed: new Set(), owed: 0, overtaken: false, latest: undefined, waiting: 0 };
}

/** Whether the request can be forgotten. */
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

/** Whether the client says that this may not be its first attempt: by its SDK's count, or by naming what it asks. */
export function isMarkedRetry(header: (name: string) => string | undefined): boolean {
  if (header('idempotency-key')) return true;
  return ['x-stainless-retry-count', 'x-retry-count'].some((name) => Number(header(name) ?? 0) > 0);
}

/**
 * Of the turns that no client got, those whose words did not come back in a later request either. A turn came back if another continues it, if
 * the template or the client repeated it in other tokens, or, for a default model's turn, which is never continued, if its words are quoted.
 */
export function lostTurns(turns: readonly Turn[], missed: readonly Turn[]): readonly Turn[] {
  if (missed.length === 0) return [];
  const continued = new Set(turns.map((turn) => turn.after ?? rewordedIn(turn, turns)));
  return missed.filter((turn) => !continued.has(turn.index) && !(turn.model !== undefined && isQuoted(turn, turns)));
}

/** The turn whose answer is in this one's request, though the template or the client wrote it in other tokens. */
function rewordedIn({ fork, request }: Turn, turns: readonly Turn[]): number | undefined {
  const from = fork && turns[fork.from];
  if (from === undefined) return undefined;
  if (newMessagesAfter(from, request.messages) !== undefined) return from.index;
  const isShortened = fork?.cause === 'dropped_reasoning' || fork?.cause === 'dropped_tool_call';
  return isShortened && fork.message === from.request.messages.length ? from.index : undefined;
}

function isQuoted(turn: Turn, turns: readonly Turn[]): boolean {
  return turns.some(({ request }) => newMessagesAfter(turn, request.messages) !== undefined);
}
