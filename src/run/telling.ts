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

function withWayOn(thrown: unknown, verb: 'train' | 'eval', command: string): unknown {
  if (!(thrown instanceof TrainyardError) || !WORTH_RESUMING.has(thrown.code)) return thrown;
  // An evaluation of two versions of the code would be one of neither.
  const isOfCode = verb === 'eval' && thrown.code.endsWith('_BUDGET');
  const wayOn = isOfCode ? `with other code begin anew, with the same go on: ${command}` : `go on with: ${command}`;
  const hint = thrown.hint === undefined ? wayOn : `${thrown.hint}; ${wayOn}`;
  return new TrainyardError(thrown.code, messageOf(thrown), { cause: thrown, hint });
}
