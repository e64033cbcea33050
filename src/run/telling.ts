/** How a run tells what happens: everything but progress is in the run's events.jsonl before it is shown. */
import { messageOf, TrainyardError } from '../core/errors.ts';
import { type Emit, errorEvent, type RunEvent } from '../core/events.ts';
import { resumeCommand } from './command-line.ts';
import type { RunDirectory } from './run-directory.ts';

/** Milliseconds between two progress events. */
const PROGRESS_INTERVAL = 100;
/** What has to do with this process or its machine, not with the run: going on with it may well work. */
const WORTH_RESUMING: ReadonlySet<string> = new Set([
  'STORE_FAILED',
  'CANCELLED',
  'ENGINE_FAILED',
  'POLICY_UNREACHABLE',
  'POLICY_REFUSED',
  'POLICY_GARBLED',
  'POLICY_LOST',
  'FAILURE_BUDGET',
  'GRADER_BUDGET',
]);

export interface Telling extends Emit {
  /** Also keeps the events while `work` runs, and an error that ends it. */
  guarding<T>(directory: RunDirectory, work: () => Promise<T>): Promise<T>;
}

/** `verb`: the command that goes on with such a run. */
export function telling(emit: Emit, verb: 'train' | 'eval' = 'train'): Telling {
  let directory: RunDirectory | undefined;
  let lastProgress = Number.NEGATIVE_INFINITY;
  const tell = (event: RunEvent): void => {
    if (event.type === 'progress') {
      const now = performance.now();
      if (now - lastProgress < PROGRESS_INTERVAL && event.of > 0) return;
      lastProgress = now;
    } else {
      directory?.log(event);
    }
    emit(event);
  };
  const guarding = async <T>(kept: RunDirectory, work: () => Promise<T>): Promise<T> => {
    directory = kept;
    try {
      return await work();
    } catch (thrown) {
      const shown = withWayOn(thrown, verb, resumeCommand(kept.path, verb));
      try {
        kept.log(errorEvent(shown));
      } catch {
        // The disk may be what failed: the cause is what matters.
      }
      throw shown;
    } finally {
      // What is told later, while the rest is closed, finds the file closed.
      directory = undefined;
    }
  };
  return Object.assign(tell, { guarding });
}

function onward({ hint }: TrainyardError, command: string): string {
  return `${hint === undefined ? '' : `${hint}; `}go on with: ${command}`;
}

/** An evaluation of two versions of the code would be one of neither: what is fixed is measured anew. */
function anew({ code, hint }: TrainyardError, command: string): string {
  if (code === 'GRADER_BUDGET') return `fix the grader and begin anew, or allow more: ${command} --max-error-share 1`;
  return `${hint}, and begin anew; or go on as it is: ${command}`;
}

function withWayOn(thrown: unknown, verb: 'train' | 'eval', command: string): unknown {
  if (!(thrown instanceof TrainyardError) || !WORTH_RESUMING.has(thrown.code)) return thrown;
  const hint = verb === 'eval' && thrown.code.endsWith('_BUDGET') ? anew(thrown, command) : onward(thrown, command);
  return new TrainyardError(thrown.code, messageOf(thrown), { cause: thrown, hint });
}
