/**
 * A fixed number of child processes that each answer one call at a time, calls being taken in the order they came.
 *
 * Contract: `call` never rejects; whatever happens is an `Answer`. A process that hung, crashed or died idle is replaced. A slot whose
 * processes cannot be started rests before it is tried again. Closing leaves no process behind, and neither does the death of this
 * process.
 *
 * A call that failed is not tried again here. Code that leaves timers or promises behind can crash its process during a later call, which
 * then bears the failure. The queue is not bounded: its callers are.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Answer, CallOptions, ChildProgram, StartFailure } from './answer.ts';
import { PooledProcess } from './pooled-process.ts';

/** For importing the user's module, which may load a lot. */
const START_DEADLINE_MS = 60_000;

/** A slot stays empty after this many processes in a row that could not be started or died without being asked anything. */
const START_TRIES = 3;

/** How long an empty slot stays empty before a call makes it try again. */
const REST_MS = 1_000;

export interface ProcessPoolOptions {
  readonly program: ChildProgram;
  /** Processes. */
  readonly workers: number;
  /** Per call, where the call says none. */
  readonly deadlineMs?: number;
  /** Closes the pool when it aborts. */
  readonly signal?: AbortSignal | undefined;
}

export interface ProcessPool extends AsyncDisposable {
  call(input: unknown, options?: CallOptions): Promise<Answer>;
}

/** Why a pool could not be opened. */
export class UnusableProcess extends Error {
  override readonly name = 'UnusableProcess';
  readonly failure: StartFailure;

  constructor(failure: StartFailure) {
    super(`a process could not be started: ${JSON.stringify(failure)}`);
    this.failure = failure;
  }
}

/** Resolves when every process is ready. Rejects with UnusableProcess where one is not, with CANCELLED where the signal came first. */
export async function openProcessPool(options: ProcessPoolOptions): Promise<ProcessPool> {
  const { workers } = options;
  if (!(Number.isSafeInteger(workers) && workers >= 1)) {
    throw new TrainyardError('USAGE', `workers is ${workers}, expected a whole number from 1 up`);
  }
  const pool = new Pool(options);
  await pool.open(options.signal);
  return pool;
}

interface Job {
  readonly input: unknown;
  readonly options: CallOptions;
  readonly settle: (answer: Answer) => void;
  /** To be called when a process begins with it: from then on the process listens to its signal. */
  readonly begun: () => void;
}

class Pool implements ProcessPool {
  readonly #program: ChildProgram;
  readonly #workers: number;
  readonly #deadlineMs: number | undefined;
  /** Every process that is not gone, those being started and killed included. */
  readonly #processes = new Set<PooledProcess>();
  #idle: PooledProcess[] = [];
  readonly #queue: Job[] = [];
  readonly #running = new Set<Job>();
  /** Slots that gave up. A slot is either empty, or busy, idle or starting a process, and then serves the queue sooner or later. */
  #emptySlots = 0;
  #lastFailure: { readonly failure: StartFailure; readonly at: number } | undefined;
  #closed = false;
  /** As they were when the pool was opened. */
  #sources: Readonly<Record<string, string>> | undefined;
  #forgetSignal = (): void => {};

  constructor({ program, workers, deadlineMs }: ProcessPoolOptions) {
    this.#program = program;
    this.#workers = workers;
    this.#deadlineMs = deadlineMs;
  }

  async open(signal: AbortSignal | undefined): Promise<void> {
    const close = (): void => void this[Symbol.asyncDispose]();
    signal?.addEventListener('abort', close, { once: true });
    this.#forgetSignal = () => signal?.removeEventListener('abort', close);
    try {
      signal?.throwIfAborted();
      this.#sources = await this.#program.sources?.();
      const started = await Promise.all(Array.from({ length: this.#workers }, () => this.#start()));
      for (const child of started) void this.#keepFilled(child);
    } catch (error) {
      await this[Symbol.asyncDispose]();
      if (signal?.aborted) throw new TrainyardError('CANCELLED', 'closed while its processes were started', { cause: error });
      throw error;
    }
  }

  call(input: unknown, options: CallOptions = {}): Promise<Answer> {
    if (this.#closed) return Promise.resolve({ kind: 'closed' });
    if (options.signal?.aborted) return Promise.resolve({ kind: 'aborted' });
    this.#refillAfterRest();
    const last = this.#lastFailure;
    if (this.#emptySlots === this.#workers && last !== undefined) {
      return Promise.resolve({ kind: 'unusable', failure: last.failure });
    }
    // The caller's async context needs no care: code awaiting this promise goes on in its own.
    return new Promise((settle) => {
      const job: Job = {
        input,
        options: { deadlineMs: this.#deadlineMs, ...options },
        settle,
        begun: this.#leavingOnAbort(options, () => job),
      };
      this.#queue.push(job);
      this.#pump();
    });
  }

  /** Pending calls end as `closed` at once; resolves when no process is left. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#forgetSignal();
    for (const job of [...this.#running, ...this.#queue.splice(0)]) job.settle({ kind: 'closed' });
    await Promise.all([...this.#processes].map((child) => child.close()));
  }

  /** What no process has begun with need not be begun. */
  #leavingOnAbort({ signal }: CallOptions, job: () => Job): () => void {
    const leave = (): void => {
      const place = this.#queue.indexOf(job());
      if (place === -1) return;
      this.#queue.splice(place, 1);
      job().settle({ kind: 'aborted' });
    };
    signal?.addEventListener('abort', leave, { once: true });
    return () => signal?.removeEventListener('abort', leave);
  }

  #pump(): void {
    this.#idle = this.#idle.filter((child) => child.usable);
    for (let place = 0; place < this.#queue.length && this.#idle.length > 0; ) {
      const child = this.#idleFor(this.#queue[place]!);
      if (child === undefined) place += 1;
      else void this.#serve(child, this.#queue.splice(place, 1)[0]!);
    }
  }

  /** Takes one that may have it, where there is one. */
  #idleFor({ options: { notBy } }: Job): PooledProcess | undefined {
    const onlyOne = this.#workers - this.#emptySlots === 1;
    const index = onlyOne ? 0 : this.#idle.findIndex(({ number }) => number !== notBy);
    return index === -1 ? undefined : this.#idle.splice(index, 1)[0];
  }

  async #serve(child: PooledProcess, job: Job): Promise<void> {
    this.#running.add(job);
    job.begun();
    job.options.onBegun?.(child.number);
    const answer = await child.ask(job.input, job.options);
    this.#running.delete(job);
    job.settle(answer);
    this.#offer(child);
  }

  #offer(child: PooledProcess): void {
    if (!child.usable) return;
    this.#idle.push(child);
    this.#pump();
  }

  async #start(): Promise<PooledProcess> {
    let child: PooledProcess;
    try {
      child = new PooledProcess(this.#program);
    } catch (cause) {
      throw new UnusableProcess({ kind: 'unstartable', message: messageOf(cause) });
    }
    this.#processes.add(child);
    void child.gone.then(() => this.#processes.delete(child));
    const failure = await child.ready(START_DEADLINE_MS);
    if (failure !== undefined) throw new UnusableProcess(failure);
    const changed = await this.#changedSource();
    if (changed !== undefined) {
      await child.close();
      const message = `${changed} has changed since the run began; put it back as it was, or begin a new run`;
      throw new UnusableProcess({ kind: 'unstartable', message });
    }
    this.#offer(child);
    return child;
  }

  /** Looked for when a process has imported them: what it imported is then either what the others did, or named. */
  async #changedSource(): Promise<string | undefined> {
    const [before, now] = [this.#sources ?? {}, (await this.#program.sources?.()) ?? {}];
    return [...Object.keys(before), ...Object.keys(now)].find((file) => before[file] !== now[file]);
  }

  /** Keeps one slot filled until the pool closes or starting is hopeless. */
  async #keepFilled(first?: PooledProcess): Promise<void> {
    let child = first;
    let fruitless = 0;
    while (!this.#closed && fruitless < START_TRIES) {
      try {
        child ??= await this.#start();
        await child.gone;
        fruitless = child.wasAsked ? 0 : fruitless + 1;
        if (!child.wasAsked) this.#noteFailure({ kind: 'ended', how: child.ending ?? 'ended', when: 'idle' });
      } catch (error) {
        fruitless += 1;
        this.#noteFailure((error as UnusableProcess).failure);
      }
      child = undefined;
    }
    if (!this.#closed) this.#giveUpSlot();
  }

  #noteFailure(failure: StartFailure): void {
    this.#lastFailure = { failure, at: performance.now() };
  }

  #giveUpSlot(): void {
    this.#emptySlots += 1;
    this.#pump();
    if (this.#emptySlots < this.#workers || this.#lastFailure === undefined) return;
    const { failure } = this.#lastFailure;
    for (const job of this.#queue.splice(0)) job.settle({ kind: 'unusable', failure });
  }

  #refillAfterRest(): void {
    if (this.#emptySlots === 0 || this.#lastFailure === undefined) return;
    if (performance.now() - this.#lastFailure.at < REST_MS) return;
    const slots = this.#emptySlots;
    this.#emptySlots = 0;
    for (let slot = 0; slot < slots; slot += 1) void this.#keepFilled();
  }
}
