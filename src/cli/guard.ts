/**
 * What can happen to the process while user code runs in it. Signals end the work (interrupt.ts). A promise that an
 * agent forgot to await and that rejected, or an error in one of its timers, is reported, not fatal: it belongs to one rollout
 * among many. `process.exit()` in the middle of a run is never taken for success. A reader of our output that went away ends the
 * work as a signal does, but not a server: that goes on unseen. An event loop that is blocked for good is killed (watchdog.ts).
 */
import { currentRollout } from '../core/context.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { catchInterrupts, type Interrupt, type Interrupts } from './interrupt.ts';
import { watch } from './watchdog.ts';

export interface Guarded {
  /** The work takes steps and can end softly, after the one in hand; other work is stopped by the first signal. */
  readonly steps: boolean;
  /** A server: its users need not be those who read what it prints. */
  readonly serves?: boolean;
  /** Whether anything ran that could be interrupted; where it is not given, something always did. */
  readonly hasBegun?: () => boolean;
  /** Has the last word when a second signal ends the process. */
  readonly onLeave?: () => void;
}

export async function guarded<T>(
  emit: Emit,
  { steps, serves = false, onLeave, hasBegun = () => true }: Guarded,
  work: (interrupts: Interrupts) => Promise<T>,
): Promise<T> {
  using interrupts = catchInterrupts(emit, steps, onLeave);
  const reported = new Set<string>();
  const stray = (reason: unknown): void => {
    const message = messageOf(reason);
    if (reported.has(message)) return;
    reported.add(message);
    emit({
      type: 'warning',
      code: 'STRAY_REJECTION',
      message,
      hint: 'a promise in the workflow was not awaited: await every model call',
    });
  };
  const thrown = (error: unknown): void => {
    if (currentRollout() === undefined) {
      process.stderr.write(`error INTERNAL: ${error instanceof Error ? error.stack : messageOf(error)}\n`);
      process.exit(1);
    }
    stray(error);
  };
  const leave = (code: number): void => {
    if (interrupts.by !== undefined || code === 1) return;
    const cause = code === 13 ? 'the entry awaits something that never comes' : `something called process.exit(${code})`;
    process.stderr.write(`error WORKFLOW_FAILED: ${cause} in the middle of the run\n`);
    process.exitCode = 1;
  };
  const unread = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE') return;
    process.stderr.write(`The reader of the output has left; ${serves ? 'serving goes on' : 'the work ends here'}\n`);
    if (!serves) interrupts.unread();
  };
  const handlers = { unhandledRejection: stray, uncaughtException: thrown, exit: leave };
  for (const [event, handler] of Object.entries(handlers)) process.on(event, handler);
  process.stdout.once('error', unread);
  using _watchdog = watch();
  try {
    return await work(interrupts);
  } catch (failure) {
    throw bySignal(first(failure, emit), interrupts.by, hasBegun());
  } finally {
    process.stdout.off('error', unread);
    for (const [event, handler] of Object.entries(handlers)) process.off(event, handler);
  }
}

/** For the whole process: what is said to a pipe that nobody reads (EPIPE) or to a closed terminal (EIO) is no error. */
export function outliveReaders(): void {
  const unheard = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE' && error.code !== 'EIO') throw error;
  };
  for (const out of [process.stdout, process.stderr]) out.on('error', unheard);
}

/** What went wrong first is why the work ended; what failed while it was closed after that is only told. */
function first(failure: unknown, emit: Emit): unknown {
  if (!(failure instanceof SuppressedError)) return failure;
  const { error, suppressed } = failure;
  emit({ type: 'warning', code: error instanceof TrainyardError ? error.code : 'INTERNAL', message: messageOf(error) });
  return first(suppressed, emit);
}

/** Whoever noticed that the work was cancelled cannot know by which signal, nor what else was going on; the exit code depends on it. */
function bySignal(failure: unknown, signal: Interrupt | undefined, hasBegun: boolean): unknown {
  if (signal === undefined || !(failure instanceof TrainyardError) || failure.code !== 'CANCELLED') return failure;
  if (!hasBegun) return new TrainyardError('CANCELLED', 'interrupted before anything ran', { cause: signal });
  return new TrainyardError('CANCELLED', 'interrupted', {
    cause: signal,
    ...(failure.hint === undefined ? {} : { hint: failure.hint }),
  });
}
