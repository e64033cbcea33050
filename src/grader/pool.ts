/**
 * The grader pool: a fixed number of child processes that each import the user's module and grade one trajectory at a time,
 * gradings being taken in the order they came.
 *
 * Contract: `grade` never rejects. What a grader does wrong is a failed `Grade`, never a number: GRADER_FAILED for a throw or a
 * crash, GRADER_TIMEOUT past the deadline (counted from when a process begins with it, not from when it was queued),
 * GRADER_BAD_REWARD for a result that is no reward, CANCELLED when the pool was closed first. A process that hung, crashed or
 * died idle is replaced. Closing leaves no process behind, and neither does the death of this process.
 *
 * A grading that failed is not tried again here. A grader that leaves timers or promises behind can crash its process during a
 * later grading, which then bears the failure. The queue is not bounded: its callers are, by the number of rollouts.
 */
import { availableParallelism } from 'node:os';
import { resolve as resolvePath } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { GraderInput, GraderRunner } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';
import { GraderProcess, type GraderSource } from './child-process.ts';
import { cancelled, checkedDeadline, DEFAULT_DEADLINE_MS } from './deadline.ts';
import { insideGraderProcess } from './protocol.ts';

/** For importing the user's module, which may load a lot. */
const START_DEADLINE_MS = 60_000;

/** A slot stays empty after this many processes in a row that could not be started or died without being asked anything. */
const START_TRIES = 3;

/** How long an empty slot stays empty before a grading makes it try again. */
const REST_MS = 1_000;

const MOST_DEFAULT_WORKERS = 8;

export interface GraderPoolOptions {
  /** Path or file URL of the module. */
  readonly module: string;
  readonly exportName: string;
  /** Processes. Default: one per core, up to 8. */
  readonly workers?: number;
  /** Per grading. Default 30 s. */
  readonly deadlineMs?: number;
  /** Closes the pool when it aborts. */
  readonly signal?: AbortSignal;
}

interface Job {
  readonly input: GraderInput;
  readonly settle: (grade: Grade) => void;
}

/** Resolves when every process has imported the module. Rejects with why one could not. */
export async function openGraderPool(options: GraderPoolOptions): Promise<GraderRunner> {
  const workers = options.workers ?? Math.min(availableParallelism(), MOST_DEFAULT_WORKERS);
  if (!(Number.isSafeInteger(workers) && workers >= 1)) {
    throw new TrainyardError('USAGE', `workers is ${workers}, expected a whole number from 1 up`);
  }
  if (insideGraderProcess in globalThis) {
    throw new TrainyardError('USAGE', 'a grader pool was opened inside a grading process', {
      hint: 'the module with the grader is imported to grade: start runs only under `if (import.meta.main)`, or from another module',
    });
  }
  const moduleUrl = options.module.startsWith('file:') ? options.module : pathToFileURL(resolvePath(options.module)).href;
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  const pool = new GraderPool({ moduleUrl, exportName: options.exportName }, workers, deadlineMs);
  await pool.open(options.signal);
  return pool;
}

class GraderPool implements GraderRunner {
  readonly killable = true;
  readonly #source: GraderSource;
  readonly #workers: number;
  readonly #deadlineMs: number;
  /** Every process that is not gone, those being started and killed included. */
  readonly #processes = new Set<GraderProcess>();
  #idle: GraderProcess[] = [];
  readonly #queue: Job[] = [];
  readonly #running = new Set<Job>();
  /** Slots that gave up. A slot is either empty, or busy, idle or starting a process, and then serves the queue sooner or later. */
  #emptySlots = 0;
  #lastFailure: { readonly grade: Grade; readonly at: number } | undefined;
  #closed = false;
  #forgetSignal = (): void => {};

  constructor(source: GraderSource, workers: number, deadlineMs: number) {
    this.#source = source;
    this.#workers = workers;
    this.#deadlineMs = deadlineMs;
  }

  async open(signal: AbortSignal | undefined): Promise<void> {
    const close = (): void => void this[Symbol.asyncDispose]();
    signal?.addEventListener('abort', close, { once: true });
    this.#forgetSignal = () => signal?.removeEventListener('abort', close);
    try {
      signal?.throwIfAborted();
      const started = await Promise.all(Array.from({ length: this.#workers }, () => this.#start()));
      for (const child of started) void this.#keepFilled(child);
    } catch (error) {
      await this[Symbol.asyncDispose]();
      if (signal?.aborted)
        throw new TrainyardError('CANCELLED', 'the grader pool was closed while it was opened', { cause: error });
      throw error;
    }
  }

  grade(input: GraderInput): Promise<Grade> {
    if (this.#closed) return Promise.resolve(cancelled());
    this.#refillAfterRest();
    if (this.#emptySlots === this.#workers && this.#lastFailure !== undefined) return Promise.resolve(this.#lastFailure.grade);
    // The caller's async context needs no care: code awaiting this promise goes on in its own.
    return new Promise((settle) => {
      this.#queue.push({ input, settle });
      this.#pump();
    });
  }

  /** Pending gradings end as CANCELLED at once; resolves when no process is left. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#forgetSignal();
    for (const job of [...this.#running, ...this.#queue.splice(0)]) job.settle(cancelled());
    await Promise.all([...this.#processes].map((child) => child.kill()));
  }

  #pump(): void {
    this.#idle = this.#idle.filter((child) => child.usable);
    while (this.#idle.length > 0 && this.#queue.length > 0) void this.#serve(this.#idle.shift()!, this.#queue.shift()!);
  }

  async #serve(child: GraderProcess, job: Job): Promise<void> {
    this.#running.add(job);
    const grade = await child.grade(job.input, this.#deadlineMs);
    this.#running.delete(job);
    job.settle(grade);
    this.#offer(child);
  }

  #offer(child: GraderProcess): void {
    if (!child.usable) return;
    this.#idle.push(child);
    this.#pump();
  }

  async #start(): Promise<GraderProcess> {
    let child: GraderProcess;
    try {
      child = new GraderProcess(this.#source);
    } catch (cause) {
      throw new TrainyardError('GRADER_FAILED', `the grader's process could not be started: ${describeThrown(cause)}`, { cause });
    }
    this.#processes.add(child);
    void child.gone.then(() => this.#processes.delete(child));
    await child.ready(START_DEADLINE_MS);
    this.#offer(child);
    return child;
  }

  /** Keeps one slot filled until the pool closes or starting is hopeless. */
  async #keepFilled(first?: GraderProcess): Promise<void> {
    let child = first;
    let fruitless = 0;
    while (!this.#closed && fruitless < START_TRIES) {
      try {
        child ??= await this.#start();
        await child.gone;
        fruitless = child.wasAsked ? 0 : fruitless + 1;
        if (!child.wasAsked) this.#noteFailure('GRADER_FAILED', `the grader's process ${child.ending} while it was idle`);
      } catch (error) {
        fruitless += 1;
        const { code, message } = error as TrainyardError;
        this.#noteFailure(code, message);
      }
      child = undefined;
    }
    if (!this.#closed) this.#giveUpSlot();
  }

  #noteFailure(code: string, message: string): void {
    this.#lastFailure = { grade: { kind: 'failed', code, message }, at: performance.now() };
  }

  #giveUpSlot(): void {
    this.#emptySlots += 1;
    if (this.#emptySlots < this.#workers || this.#lastFailure === undefined) return;
    for (const job of this.#queue.splice(0)) job.settle(this.#lastFailure.grade);
  }

  #refillAfterRest(): void {
    if (this.#emptySlots === 0 || this.#lastFailure === undefined) return;
    if (performance.now() - this.#lastFailure.at < REST_MS) return;
    const slots = this.#emptySlots;
    this.#emptySlots = 0;
    for (let slot = 0; slot < slots; slot += 1) void this.#keepFilled();
  }
}
