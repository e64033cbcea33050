/**
 * Calls one exported function in child processes, which inherit this process's environment. A call that hangs is killed and its process
 * replaced; a crash affects only its own call. Both are returned as values, not thrown. Calls are not retried. Arguments and results are
 * structured clones. Closures cannot be sent to another process, so the function must be a module's export.
 */
import { availableParallelism } from 'node:os';
import type { ErrorCode } from '../core/error-codes.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { type Answer, poolKind } from './channel.ts';
import { checkedDeadline } from './limits.ts';
import { moduleUrl, openProcessPool } from './process-pool.ts';
import { importedModule, namesOf, serveCalls } from './serve-calls.ts';

interface FunctionPoolOptions {
  readonly module: string;
  readonly exportName: string;
  /** Number of processes. Default: one per core. */
  readonly workers?: number;
  /** Per call, from when a process begins it. */
  readonly deadlineMs: number;
  /** Closes the pool when it aborts. */
  readonly signal?: AbortSignal;
}

export type FunctionAnswer =
  | { readonly kind: 'answered'; readonly value: unknown }
  /** `timeout`: killed at its deadline. `crashed`: its process ended. `unusable`: no process can be started. */
  | {
      readonly kind: 'failed';
      readonly why: 'threw' | 'timeout' | 'crashed' | 'unsendable' | 'unusable' | 'cancelled';
      readonly message: string;
      readonly code?: ErrorCode;
    };

export interface FunctionPool extends AsyncDisposable {
  call(
    args: readonly unknown[],
    options?: { readonly deadlineMs?: number; readonly signal?: AbortSignal | undefined },
  ): Promise<FunctionAnswer>;
}

/** Resolves when every process has imported the module. Throws USAGE if the import fails or the function is missing. */
export async function openFunctionPool(options: FunctionPoolOptions): Promise<FunctionPool> {
  const { exportName, workers = availableParallelism(), signal } = options;
  if (poolKind() === 'function') {
    throw new TrainyardError(
      'USAGE',
      `a pool for ${exportName} was opened inside a process of such a pool`,
      'the module with the function is imported to call it: open the pool when it is first needed, not when the module is imported',
    );
  }
  checkedDeadline(options.deadlineMs);
  const words = {
    whose: exportName,
    starting: 'while importing its module',
    code: 'USAGE',
    late: { code: 'USAGE', what: 'module was not imported' },
    hint: `the module that exports ${exportName} is imported by every process that calls it: check that it can be imported on its own`,
  } as const;
  const args = [moduleUrl(options.module), exportName];
  const program = { kind: 'function', script: new URL(import.meta.url), args, words };
  const pool = await openProcessPool({ program, workers, signal });
  return {
    call: async (given, { deadlineMs = options.deadlineMs, signal: ofCall } = {}) =>
      answerOf(exportName, await pool.call(given, { deadlineMs: checkedDeadline(deadlineMs), signal: ofCall })),
    [Symbol.asyncDispose]: () => pool[Symbol.asyncDispose](),
  };
}

function answerOf(name: string, answer: Answer): FunctionAnswer {
  const failed = (why: (FunctionAnswer & { kind: 'failed' })['why'], message: string, code?: ErrorCode): FunctionAnswer => ({
    kind: 'failed',
    why,
    message,
    ...defined({ code }),
  });
  switch (answer.kind) {
    case 'answered':
      return answer;
    case 'threw':
      return failed('threw', `${name} threw ${answer.thrown.description}`, answer.thrown.code);
    case 'late':
      return failed('timeout', `${name} did not return within ${answer.deadlineMs} ms`);
    case 'ended':
      return failed('crashed', `the process of ${name} ${answer.how} before it returned`);
    case 'unsendable':
      return failed('unsendable', `the arguments of ${name} cannot be sent to another process: ${answer.message}`);
    case 'unusable':
      return failed('unusable', answer.error.message);
    case 'aborted':
    case 'closed':
      return failed('cancelled', `the call of ${name} was given up before it returned`);
  }
}

/** The child program: this file, with the module's URL and the export's name as arguments. */
if (import.meta.main) {
  void serveCalls(async (url = '', exportName = '') => {
    const exports = await importedModule(url, 'function', 'USAGE');
    const called = exports[exportName];
    if (typeof called !== 'function') {
      throw new TrainyardError(
        'USAGE',
        `export ${JSON.stringify(exportName)} of ${url} is not a function; it exports ${namesOf(exports)}`,
      );
    }
    return { answer: (args) => (called as (...given: readonly unknown[]) => unknown)(...(args as readonly unknown[])) };
  });
}
