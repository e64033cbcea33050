/**
 * The worker threads of one model: calls with results, and failure if a thread dies. A thread that ends unexpectedly fails the whole pool:
 * all current and later calls reject, and none hangs. Threads end with `close()`.
 */
import { Worker } from 'node:worker_threads';
import type { ErrorCode } from '../../core/error-codes.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { CallKind, Calls, FromWorker, StreamedTokens, ToWorker, WorkerSetup } from './worker-messages.ts';

/** One token of a streaming sequence, and the policy version that sampled it. */
export type OnToken = (id: Int32Array, logprob: Float32Array, version: number) => void;

interface PendingCall {
  readonly code: ErrorCode;
  readonly onToken: OnToken | undefined;
  readonly cancel: (error: TrainyardError) => void;
  readonly resolve: (answer: never) => void;
  readonly reject: (error: TrainyardError) => void;
}

/** The compiled package holds `worker.js`, a checkout `worker.ts`. */
const WORKER_URL = new URL(import.meta.url.endsWith('.ts') ? './worker.ts' : './worker.js', import.meta.url);

export class WorkerPool {
  readonly #workers: readonly Worker[];
  readonly #pending = new Map<number, PendingCall>();
  #nextId = 0;
  /** Why no more calls are possible. */
  #ended: string | undefined;

  constructor(setups: readonly WorkerSetup[]) {
    this.#workers = setups.map((setup) => {
      const worker = new Worker(WORKER_URL, { workerData: setup });
      worker.on('message', (message: FromWorker) => this.#receive(message));
      worker.on('error', (error) => this.#end(`worker thread ${setup.index} failed: ${messageOf(error)}`));
      worker.on('exit', () => this.#end(`worker thread ${setup.index} ended`));
      return worker;
    });
  }

  get size(): number {
    return this.#workers.length;
  }

  /** `code` applies to failures that are not TrainyardErrors. */
  call<K extends CallKind>(worker: number, kind: K, ask: Calls[K]['ask'], code: ErrorCode): Promise<Calls[K]['answer']> {
    return this.start(worker, kind, ask, code).answer;
  }

  /** A call that can be cancelled: it then rejects with CANCELLED at once, and no more tokens arrive. */
  start<K extends CallKind>(worker: number, kind: K, ask: Calls[K]['ask'], code: ErrorCode, onToken?: OnToken) {
    const id = this.#nextId++;
    const cancel = (error = new TrainyardError('CANCELLED', `the ${kind} call was cancelled`)) => {
      const pending = this.#pending.get(id);
      if (pending === undefined) return;
      this.#pending.delete(id);
      pending.reject(error);
      this.#workers[worker]!.postMessage({ kind: 'cancel', id } satisfies ToWorker);
    };
    const answer = new Promise<Calls[K]['answer']>((resolve, reject) => {
      if (this.#ended !== undefined) {
        reject(endedError(code, this.#ended));
        return;
      }
      this.#pending.set(id, { code, onToken, cancel, resolve, reject });
      this.#workers[worker]!.postMessage({ kind, id, ...ask });
    });
    return { answer, cancel: () => cancel() };
  }

  /** The same call to every worker. */
  all<K extends CallKind>(kind: K, ask: (worker: number) => Calls[K]['ask'], code: ErrorCode): Promise<Calls[K]['answer'][]> {
    return Promise.all(this.#workers.map((_, worker) => this.call(worker, kind, ask(worker), code)));
  }

  /** Ends the threads; calls in flight reject. Idempotent. */
  async close(): Promise<void> {
    this.#end('the model was closed');
    await Promise.all(this.#workers.map((worker) => worker.terminate()));
  }

  #receive(message: FromWorker): void {
    if ('tokens' in message) this.#stream(message);
    else this.#settle(message);
  }

  /** A callback that throws fails only its own call. */
  #stream({ ids, versions, tokens, logprobs }: StreamedTokens): void {
    ids.forEach((id, i) => {
      const pending = this.#pending.get(id);
      try {
        pending?.onToken?.(tokens.slice(i, i + 1), logprobs.slice(i, i + 1), versions[i]!);
      } catch (cause) {
        pending?.cancel(new TrainyardError('ENGINE_FAILED', `onTokens threw: ${messageOf(cause)}`, { cause }));
      }
    });
  }

  #settle(message: Exclude<FromWorker, StreamedTokens>): void {
    const pending = this.#pending.get(message.id);
    if (pending === undefined) return;
    this.#pending.delete(message.id);
    if ('error' in message) {
      const { code = pending.code, message: found, hint } = message.error;
      pending.reject(new TrainyardError(code, found, hint));
    } else pending.resolve(message.answer as never);
  }

  #end(why: string): void {
    this.#ended ??= why;
    for (const { code, reject } of this.#pending.values()) reject(endedError(code, this.#ended));
    this.#pending.clear();
  }
}

function endedError(code: ErrorCode, why: string): TrainyardError {
  return new TrainyardError(code, why, 'open the model again');
}

/** How many affinities are remembered; the least recently used are forgotten first. */
const REMEMBERED = 4096;

/**
 * Chooses a request's worker: the one its affinity went to before, else the least loaded. This affects how much of a prompt can be reused,
 * never what is sampled.
 */
export class WorkerPlacement {
  readonly #inFlight: number[];
  readonly #workerOf = new Map<string, number>();

  constructor(workers: number) {
    this.#inFlight = Array.from({ length: workers }, () => 0);
  }

  enter(affinity: string | undefined): number {
    const known = affinity === undefined ? undefined : this.#workerOf.get(affinity);
    const worker = known ?? this.#inFlight.indexOf(Math.min(...this.#inFlight));
    if (affinity !== undefined) {
      // Reinserted, so that the map is ordered by last use.
      this.#workerOf.delete(affinity);
      this.#workerOf.set(affinity, worker);
      if (this.#workerOf.size > REMEMBERED) this.#workerOf.delete(this.#workerOf.keys().next().value!);
    }
    this.#inFlight[worker]!++;
    return worker;
  }

  leave(worker: number): void {
    this.#inFlight[worker]!--;
  }

  /** Caches were dropped, so staying with a worker gains nothing. */
  forget(): void {
    this.#workerOf.clear();
  }
}
