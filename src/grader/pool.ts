/**
 * The grader pool: child processes that each import the user's module and grade one trajectory at a time.
 *
 * Contract: `grade` never rejects. What a grader does wrong is a failed `Grade`, never a number: GRADER_FAILED for a throw or a
 * crash, GRADER_TIMEOUT past the deadline (counted from when a process begins with it, not from when it was queued),
 * GRADER_BAD_REWARD for a result that is no reward, CANCELLED when the pool was closed first. The processes have this process's
 * environment, whole: a grader is the developer's own code and may need its keys.
 */
import { availableParallelism } from 'node:os';
import type { GraderRunner } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';
import type { Answer, ChildProgram, StartFailure } from '../processes/answer.ts';
import { checkedDeadline } from '../processes/deadline.ts';
import { moduleUrl } from '../processes/imported-module.ts';
import { lineage } from '../processes/lineage.ts';
import { openProcessPool, type ProcessPool, UnusableProcess } from '../processes/process-pool.ts';
import { siblingScript } from '../processes/protocol.ts';
import { startError } from '../processes/start-error.ts';
import type { GraderCall } from './call.ts';
import { cancelled, DEFAULT_DEADLINE_MS, timedOut } from './deadline.ts';

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

/** Resolves when every process has imported the module. Rejects with why one could not. */
export async function openGraderPool(options: GraderPoolOptions): Promise<GraderRunner> {
  const workers = options.workers ?? Math.min(availableParallelism(), MOST_DEFAULT_WORKERS);
  if (lineage().includes('grader')) {
    throw new TrainyardError('USAGE', 'a grader pool was opened inside a grading process', {
      hint: 'the module with the grader is imported to grade: start runs only under `if (import.meta.main)`, or from another module',
    });
  }
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  const program = graderProgram(options.module, options.exportName);
  const pool = await opened(openProcessPool({ program, workers, deadlineMs, signal: options.signal }));
  return {
    killable: true,
    grade: async (input, model) => gradeOf(await pool.call({ input, model } satisfies GraderCall)),
    [Symbol.asyncDispose]: () => pool[Symbol.asyncDispose](),
  };
}

export function graderProgram(module: string, exportName: string): ChildProgram {
  return { kind: 'grader', script: siblingScript(import.meta.url, 'child'), args: [moduleUrl(module), exportName] };
}

async function opened(opening: Promise<ProcessPool>): Promise<ProcessPool> {
  try {
    return await opening;
  } catch (error) {
    throw error instanceof UnusableProcess ? startFailure(error.failure) : error;
  }
}

function gradeOf(answer: Answer): Grade {
  switch (answer.kind) {
    case 'answered':
      return answer.value as Grade;
    case 'late':
      return timedOut(answer.deadlineMs);
    case 'closed':
    case 'aborted':
      return cancelled();
    case 'unusable': {
      const { code, message } = startFailure(answer.failure);
      return { kind: 'failed', code, message };
    }
    case 'threw':
      return failed(`grading threw ${answer.thrown.description}`);
    case 'unsendable':
      return failed(`the input cannot be sent to the grader: ${answer.message}`);
    case 'ended':
      return failed(`the grader's process ${answer.how} before it answered`);
  }
}

function failed(message: string): Grade {
  return { kind: 'failed', code: 'GRADER_FAILED', message };
}

export function startFailure(failure: StartFailure): TrainyardError {
  return startError(failure, {
    whose: 'the grader',
    starting: 'while importing its module',
    code: 'GRADER_FAILED',
    late: { code: 'GRADER_TIMEOUT', what: 'module was not imported' },
    hint: 'the module that exports the grader is imported by every grading process: check that it can be imported on its own',
  });
}
