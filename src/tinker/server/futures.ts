/**
 * Results that are not there yet. A request that takes a while is answered with an id at once; what comes of it is asked for by the id,
 * as often as one likes, for as long as it is kept.
 *
 * Results are kept for a time and up to a number of bytes, the oldest going first; those that are not there yet are always kept. Ids
 * begin with a name of this process's life, so that one of an earlier life is told from one that never was.
 */
import { randomBytes } from 'node:crypto';
import type { PassResult, SampleReply } from '../wire/messages.ts';
import { ApiError, type FutureFailure, futureFailureOf } from './api-error.ts';

export type Outcome =
  | { readonly kind: 'reply'; readonly value: object }
  | { readonly kind: 'pass'; readonly result: PassResult }
  | { readonly kind: 'sample'; readonly reply: SampleReply }
  | { readonly kind: 'failed'; readonly failure: FutureFailure };

/** Light: whoever holds on to one does not hold on to its result. */
export interface Future {
  readonly id: string;
  /** Whose it is, where it is a session's. */
  readonly sessionId: string | undefined;
  /** Whether a client was told the outcome. */
  delivered: boolean;
  /** Stops what it waits for, where that can be stopped. */
  cancel(): void;
}

interface Kept {
  readonly future: Future;
  readonly outcome: Promise<Outcome>;
  bytes: number;
  /** When it was settled, by `performance.now()`. */
  at: number;
}

const FORM = /^([0-9a-f]{12})-\d+$/;
/** Of a small reply and its entry here. */
const SMALL = 500;

export class Futures {
  readonly #boot = randomBytes(6).toString('hex');
  readonly #maxBytes: number;
  readonly #maxAge: number;
  readonly #pending = new Map<string, Kept>();
  /** Oldest first. */
  readonly #settled = new Map<string, Kept>();
  #bytes = 0;
  #made = 0;

  constructor(limits: { readonly bytes: number; readonly ageMs: number }) {
    this.#maxBytes = limits.bytes;
    this.#maxAge = limits.ageMs;
  }

  /** `work` must not be what throws first: it is begun here, and whatever it throws is the outcome. */
  start(work: () => Promise<Outcome>, sessionId?: string, cancel: () => void = () => {}): Future {
    const id = `${this.#boot}-${++this.#made}`;
    const outcome = Promise.resolve()
      .then(work)
      .catch((thrown): Outcome => ({ kind: 'failed', failure: futureFailureOf(thrown) }));
    const future: Future = { id, sessionId, delivered: false, cancel };
    const kept: Kept = { future, outcome, bytes: 0, at: 0 };
    this.#pending.set(id, kept);
    void outcome.then((settled) => this.#settle(id, kept, settled));
    return future;
  }

  /** Throws `unknown_future` for what never was, `future_gone` for what is no longer kept. */
  find(id: string): Future {
    this.#forgetOld();
    const kept = this.#pending.get(id) ?? this.#settled.get(id);
    if (kept !== undefined) return kept.future;
    const [, boot] = FORM.exec(id) ?? [];
    if (boot === undefined) throw new ApiError('unknown_future', `there is no future ${JSON.stringify(id.slice(0, 80))}`);
    const why = boot === this.#boot ? 'its result is no longer kept' : 'it is of an earlier life of this server';
    throw new ApiError('future_gone', `future ${id} is gone: ${why}`, { hint: 'send the request again' });
  }

  /** The outcome, or undefined where it did not come in time. Throws `future_gone` where it is no longer kept. */
  async wait({ id }: Future, ms: number, signal?: AbortSignal): Promise<Outcome | undefined> {
    this.find(id);
    const { outcome } = (this.#pending.get(id) ?? this.#settled.get(id))!;
    const over = Promise.withResolvers<undefined>();
    const timer = setTimeout(over.resolve, ms, undefined);
    const hangUp = (): void => over.resolve(undefined);
    signal?.addEventListener('abort', hangUp, { once: true });
    try {
      return await Promise.race([outcome, over.promise]);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', hangUp);
    }
  }

  /** When there is nothing left to do for it. Never throws. */
  async done({ id }: Future): Promise<void> {
    await this.#pending.get(id)?.outcome;
  }

  #settle(id: string, kept: Kept, outcome: Outcome): void {
    kept.bytes = sizeOf(outcome);
    kept.at = performance.now();
    // Whoever holds on to the future does not hold on to what could have been stopped.
    kept.future.cancel = () => {};
    this.#pending.delete(id);
    this.#settled.set(id, kept);
    this.#bytes += kept.bytes;
    this.#forgetOld();
  }

  #forgetOld(): void {
    const oldest = performance.now() - this.#maxAge;
    for (const [id, kept] of this.#settled) {
      // The newest stays, however large: somebody is about to ask for it.
      if (kept.at >= oldest && (this.#bytes <= this.#maxBytes || this.#settled.size === 1)) return;
      this.#settled.delete(id);
      this.#bytes -= kept.bytes;
    }
  }
}

function sizeOf(outcome: Outcome): number {
  if (outcome.kind === 'pass') {
    return outcome.result.outputs.reduce(
      (sum, tensors) => sum + Object.values(tensors).reduce((bytes, { data }) => bytes + data.byteLength, SMALL),
      SMALL,
    );
  }
  if (outcome.kind === 'sample') {
    const { sequences, promptLogprobs } = outcome.reply;
    return sequences.reduce((sum, { tokens }) => sum + tokens.byteLength * 2 + SMALL, (promptLogprobs?.byteLength ?? 0) + SMALL);
  }
  return SMALL;
}
