/**
 * The requests of one model, one after another: by seq_id where they have one, else as they arrive.
 *
 * A seq_id is also what tells a repetition from a new request: the same one with the same body is the same future, with another body
 * it is refused. A request whose predecessors are not there yet waits for them. If they do not come in time, everything that waits
 * fails, nothing of it is carried out, and the order goes on behind it: what was missing is then refused, should it still come.
 */
import { ApiError } from './api-error.ts';
import type { Future, Outcome } from './futures.ts';

export interface Turn {
  readonly seqId: number | undefined;
  /** Of the whole body. */
  readonly digest: string;
  run(): Promise<Outcome>;
  /** In place of `run`, in its turn: the request failed without having been carried out. */
  skipped(why: string): void | Promise<void>;
}

interface Seen {
  readonly digest: string;
  readonly future: Future;
}

/** Digests and ids of requests that were carried out; a client asks again for the latest ones only. */
const MOST_SEEN = 10_000;
/** A client that is so far ahead of itself is lost. */
const MOST_AHEAD = 10_000;

export class Order {
  readonly #start: (work: () => Promise<Outcome>) => Future;
  readonly #gapMs: number;
  readonly #seen = new Map<number, Seen>();
  /** By seq_id: begun when all before them are. */
  readonly #waiting = new Map<number, { readonly go: () => void; readonly giveUp: (missing: number) => void }>();
  #next = 1;
  #gapTimer: NodeJS.Timeout | undefined;
  /** The end of the last turn. */
  #last: Promise<unknown> = Promise.resolve();
  #closed: string | undefined;

  constructor(start: (work: () => Promise<Outcome>) => Future, gapMs: number) {
    this.#start = start;
    this.#gapMs = gapMs;
  }

  /** The future of this request, made now or when it came for the first time. */
  submit(turn: Turn): Future {
    const { seqId, digest } = turn;
    if (seqId === undefined) return this.#start(() => this.#inTurn(turn));
    const seen = this.#seen.get(seqId);
    if (seen !== undefined && seen.digest === digest) return seen.future;
    if (seen !== undefined) {
      throw new ApiError('seq_id_reused', `seq_id ${seqId} was used before, for another request`, { param: 'seq_id' });
    }
    if (seqId < this.#next) throw tooLate(seqId, this.#next);
    if (seqId > this.#next + MOST_AHEAD) {
      throw new ApiError('invalid_request', `seq_id is ${seqId}, expected ${this.#next} or little more`, { param: 'seq_id' });
    }
    const future = this.#start(() => this.#waitThenRun(turn, seqId));
    this.#seen.set(seqId, { digest, future });
    for (const old of this.#seen.keys()) {
      if (this.#seen.size <= MOST_SEEN) break;
      this.#seen.delete(old);
    }
    return future;
  }

  /** A request that was refused before it could have a future uses up its seq_id too: clients do not send that one again. */
  skip(seqId: number, digest: string, skipped: Turn['skipped'], why: string): void {
    if (this.#seen.has(seqId) || seqId < this.#next || seqId > this.#next + MOST_AHEAD) return;
    const refused = async (): Promise<Outcome> => {
      await skipped(why);
      throw new ApiError('invalid_request', why);
    };
    this.submit({ seqId, digest, run: refused, skipped });
  }

  /** Whatever waits fails, and so does what still comes. Resolves when nothing runs any more. */
  async close(why: string): Promise<void> {
    this.#closed = why;
    clearTimeout(this.#gapTimer);
    for (const { go } of this.#waiting.values()) go();
    this.#waiting.clear();
    await this.#last;
  }

  #inTurn(turn: Turn): Promise<Outcome> {
    const outcome = this.#last.then(() => {
      if (this.#closed !== undefined) throw new ApiError('unknown_model', this.#closed);
      return turn.run();
    });
    this.#last = outcome.then(
      () => undefined,
      () => undefined,
    );
    return outcome;
  }

  #waitThenRun(turn: Turn, seqId: number): Promise<Outcome> {
    if (this.#closed !== undefined) return this.#inTurn(turn);
    return new Promise((resolve, reject) => {
      this.#waiting.set(seqId, {
        go: () => this.#inTurn(turn).then(resolve, reject),
        giveUp: (missing) => {
          const seconds = Math.round(this.#gapMs / 1000);
          const why = `seq_id ${missing} did not come within ${seconds} s, so the request with seq_id ${seqId} was not carried out`;
          reject(new ApiError('invalid_request', why, { param: 'seq_id' }));
          this.#last = this.#last.then(() => turn.skipped(why));
        },
      });
      this.#advance();
    });
  }

  #advance(): void {
    const before = this.#next;
    for (let ready = this.#waiting.get(this.#next); ready !== undefined; ready = this.#waiting.get(this.#next)) {
      this.#waiting.delete(this.#next);
      this.#next++;
      ready.go();
    }
    if (this.#next !== before) this.#stopClock();
    if (this.#waiting.size > 0) this.#gapTimer ??= setTimeout(() => this.#giveUp(), this.#gapMs).unref();
  }

  #giveUp(): void {
    this.#stopClock();
    const missing = this.#next;
    const given = [...this.#waiting].sort(([a], [b]) => a - b);
    this.#waiting.clear();
    this.#next = (given.at(-1)?.[0] ?? missing - 1) + 1;
    for (const [, { giveUp }] of given) giveUp(missing);
  }

  #stopClock(): void {
    clearTimeout(this.#gapTimer);
    this.#gapTimer = undefined;
  }
}

function tooLate(seqId: number, next: number): ApiError {
  const message = `seq_id ${seqId} came too late or too often: the next one is ${next}`;
  return new ApiError('seq_id_reused', message, {
    hint: 'give each request of a model a seq_id of its own: 1, 2, 3 …',
    param: 'seq_id',
  });
}
