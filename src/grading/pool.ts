/**
 * The grader pool: child processes that import the user's module and grade one trajectory at a time. Users that ask for the same grader
 * with the same limits share processes, which end with the last user. They inherit the whole environment: a grader is the developer's own
 * code and may need its keys.
 *
 * `grade` never rejects. It returns a failed `Grade`, never a number: GRADER_FAILED for a throw or crash, GRADER_TIMEOUT past the deadline
 * (which starts when a process starts grading, not when the grading is queued), GRADER_BAD_REWARD for an invalid result, CANCELLED if the
 * pool closed first. Failures that may pass are retried in another process.
 */
import { hash } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { linkSignals, orAborted } from '../core/async.ts';
import type { GraderInput, GraderModel, GraderRunner } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';
import { type Answer, type ChildProgram, poolKind, siblingScript } from '../processes/channel.ts';
import { checkedDeadline } from '../processes/limits.ts';
import { moduleUrl, openProcessPool, type ProcessPool, SharedPools } from '../processes/process-pool.ts';
import {
  type Attempt,
  cancelled,
  checkedRetries,
  DEFAULT_DEADLINE_MS,
  failed,
  type GraderCall,
  mayPass,
  timedOut,
  withRetries,
} from './call.ts';

const MOST_DEFAULT_WORKERS = 8;
/** Generous: graders load models and data. */
export const DEFAULT_MEMORY_MB = 2_048;
/** Node itself needs about this much to start. */
const LEAST_MEMORY_MB = 64;

export interface GraderPoolOptions {
  /** Path or file URL of the module. */
  readonly module: string;
  readonly exportName: string;
  /** Number of processes. Default: one per core, up to 8. */
  readonly workers?: number;
  /** Per attempt. Default: 30 s. */
  readonly deadlineMs?: number;
  /** Retries after a failed grading. Default: 0. */
  readonly retries?: number;
  /** Resident memory of one process and its children. Default: 2048. */
  readonly memoryMb?: number;
  /** Closes the pool when it aborts. */
  readonly signal?: AbortSignal;
  readonly sources?: ChildProgram['sources'];
}

const pools = new SharedPools<ProcessPool>();

/** Resolves when every process has imported the module. Rejects with the reason if one cannot. */
export async function openGraderPool(options: GraderPoolOptions): Promise<GraderRunner> {
  const workers = options.workers ?? Math.min(availableParallelism(), MOST_DEFAULT_WORKERS);
  if (poolKind() !== undefined) {
    throw new TrainyardError(
      'USAGE',
      'a grader pool was opened inside a grading process',
      'the module with the grader is imported to grade: start runs only under `if (import.meta.main)`, or from another module',
    );
  }
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  const retries = checkedRetries(options.retries ?? 0);
  const memoryMb = checkedMemory(options.memoryMb ?? DEFAULT_MEMORY_MB);
  const program = { ...graderProgram(options.module, options.exportName, memoryMb), sources: options.sources };
  const user = new PoolUser(keyOf(program, workers, await options.sources?.()), deadlineMs, retries);
  await user.open((signal) => openProcessPool({ program, workers, signal }), options.signal);
  return user;
}

export function graderProgram(module: string, exportName: string, memoryMb: number = DEFAULT_MEMORY_MB): ChildProgram {
  const args = [moduleUrl(module), exportName];
  return { kind: 'grader', script: siblingScript(import.meta.url, 'child'), args, memoryMb, words: WORDS };
}

/** Includes the folder, the environment and the sources, because processes keep those they started with. */
function keyOf({ args, memoryMb }: ChildProgram, workers: number, sources: unknown): string {
  const around = hash('sha256', JSON.stringify([process.cwd(), process.env]), 'hex');
  return JSON.stringify([args, memoryMb, workers, around, sources]);
}

class PoolUser implements GraderRunner {
  readonly #key: string;
  readonly #deadlineMs: number;
  readonly #retries: number;
  readonly #closing = new AbortController();
  #pool: ProcessPool | undefined;
  #forgetSignal = () => {};

  constructor(key: string, deadlineMs: number, retries: number) {
    this.#key = key;
    this.#deadlineMs = deadlineMs;
    this.#retries = retries;
  }

  async open(open: (signal: AbortSignal) => Promise<ProcessPool>, signal: AbortSignal | undefined): Promise<void> {
    if (signal?.aborted) throw closedEarly();
    const close = () => void this[Symbol.asyncDispose]();
    signal?.addEventListener('abort', close, { once: true });
    this.#forgetSignal = () => signal?.removeEventListener('abort', close);
    try {
      this.#pool = await orAborted(pools.use(this.#key, this, open), this.#closing.signal);
    } catch (error) {
      await this[Symbol.asyncDispose]();
      throw error;
    }
  }

  async grade(input: GraderInput, model?: GraderModel, print?: (text: string) => void): Promise<Grade> {
    if (this.#closing.signal.aborted) return cancelled();
    using given = linkSignals(this.#closing.signal);
    return await orAborted(this.#graded({ input, model }, given.signal, print), given.signal).catch(cancelled);
  }

  /** Cancels pending gradings at once. Resolves when all processes have ended, unless others use them. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#forgetSignal();
    this.#closing.abort(closedEarly());
    await pools.leave(this.#key, this);
  }

  #graded(call: GraderCall, signal: AbortSignal, print?: (text: string) => void): Promise<Grade> {
    let process: number | undefined;
    return withRetries(this.#retries, async () => {
      const answer = await this.#pool!.call(call, {
        deadlineMs: this.#deadlineMs,
        signal,
        notBy: process,
        onNote: (text) => print?.(String(text)),
        onBegun: (number) => {
          process = number;
        },
      });
      return attemptOf(answer);
    });
  }
}

function closedEarly(): TrainyardError {
  return new TrainyardError('CANCELLED', 'closed while its processes were started');
}

function checkedMemory(memoryMb: number): number {
  if (Number.isSafeInteger(memoryMb) && memoryMb >= LEAST_MEMORY_MB) return memoryMb;
  throw new TrainyardError(
    'USAGE',
    `memoryMb is ${memoryMb}, expected a whole number from ${LEAST_MEMORY_MB} up`,
    'a process that grades needs about 50 MB before it grades anything',
  );
}

function attemptOf(answer: Answer): Attempt {
  const grade = gradeOf(answer);
  const isLost = answer.kind === 'late' || answer.kind === 'ended' || answer.kind === 'threw';
  return { grade, mayPass: isLost || (answer.kind === 'answered' && mayPass(grade)) };
}

function gradeOf(answer: Answer): Grade {
  switch (answer.kind) {
    case 'answered':
      // Already validated by `callGrader` in the child.
      return answer.value as Grade;
    case 'late':
      return timedOut(answer.deadlineMs);
    case 'closed':
    case 'aborted':
      return cancelled();
    case 'unusable':
      return { kind: 'failed', code: answer.error.code, message: answer.error.message };
    case 'threw':
      return failed(`grading threw ${answer.thrown.description}`);
    case 'unsendable':
      return failed(`the input cannot be sent to the grader: ${answer.message}`);
    case 'ended':
      return failed(`the grader's process ${answer.how} before it answered${likely(answer.how)}`);
  }
}

/** An uncaught failure never exits with 0. */
function likely(how: string): string {
  return /^exited with code 0\b/.test(how) ? '; did it call process.exit?' : '';
}

const WORDS = {
  whose: 'the grader',
  starting: 'while importing its module',
  code: 'GRADER_FAILED',
  late: { code: 'GRADER_TIMEOUT', what: 'module was not imported' },
  hint: 'the module that exports the grader is imported by every grading process: check that it can be imported on its own',
} as const;
