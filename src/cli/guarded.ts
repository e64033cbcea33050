/**
 * Guards the process while user code runs in it. Ctrl-C, SIGTERM, a closed terminal (SIGHUP) or a reader that left (SIGPIPE) first asks the
 * work to finish what it is doing; a second signal exits at once. After anything but Ctrl-C nobody may be there to send it, so the wait is
 * bounded. A server outlives its reader. An unawaited rejection or a timer error in an agent is reported but not fatal, since it concerns
 * one of many rollouts. `process.exit()` during a run never counts as success. watchdog.ts kills a process whose event loop is blocked for
 * good.
 */
import { currentRollout, outsideRollout } from '../core/context.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { exitOf } from './program.ts';
import { watch } from './watchdog.ts';

interface Guarded {
  /** True if the work can end after its current step. Other work stops at the first signal; `drains`: at Ctrl-C only. */
  readonly steps: boolean | 'drains';
  /** For a server, whose users need not be the readers of its output. */
  readonly serves?: boolean;
  /** Whether anything has run that could be interrupted. Default: always. */
  readonly hasBegun?: () => boolean;
  /** Called before a second signal ends the process. */
  readonly onLeave?: () => void;
  /** Milliseconds to finish after signals other than Ctrl-C. Default: 10,000. */
  readonly graceMs?: number;
}

/** The exit code of work that a signal ended: 0 if a scheduler asked (SIGTERM, SIGHUP) and everything was finished and saved in time. */
export function exitAfter({ by, stop }: Pick<Interrupts, 'by' | 'stop'>): number {
  return (by === 'SIGTERM' || by === 'SIGHUP') && !stop.aborted ? 0 : exitOf(by);
}

export async function guarded<T>(
  emit: Emit,
  { steps, serves = false, onLeave, hasBegun = () => true, graceMs }: Guarded,
  work: (interrupts: Interrupts) => Promise<T>,
): Promise<T> {
  using interrupts = catchInterrupts(emit, steps, onLeave, graceMs);
  const reported = new Set<string>();
  const stray = (reason: unknown): void => {
    const message = messageOf(reason);
    if (reported.has(message)) return;
    reported.add(message);
    const hint = 'a promise in the workflow was not awaited: await every model call';
    outsideRollout(() => emit({ type: 'warning', code: 'STRAY_REJECTION', message, hint }));
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
    outsideRollout(() => process.stderr.write(`error WORKFLOW_FAILED: ${cause} in the middle of the run\n`));
    process.exitCode = 1;
  };
  const unread = (error: NodeJS.ErrnoException): void => {
    if (error.code === 'EIO') return;
    const what = error.code === 'EPIPE' ? 'The reader of the output has left' : `The output cannot be written (${error.message})`;
    process.stderr.write(`${what}; ${serves ? 'serving goes on' : 'the work ends here'}\n`);
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

/** The first failure is why the work ended; failures during closing are only reported as warnings. */
function first(failure: unknown, emit: Emit): unknown {
  // By name: Node 22 lacks the class, and compiled `using` throws an Error of this name.
  if (!(failure instanceof Error && failure.name === 'SuppressedError')) return failure;
  const { error, suppressed } = failure as SuppressedError;
  emit({ type: 'warning', code: error instanceof TrainyardError ? error.code : 'INTERNAL', message: messageOf(error) });
  return first(suppressed, emit);
}

/** Whatever noticed the cancellation does not know the signal, on which the exit code depends. */
function bySignal(failure: unknown, signal: Interrupt | undefined, hasBegun: boolean): unknown {
  if (signal === undefined || !(failure instanceof TrainyardError) || failure.code !== 'CANCELLED') return failure;
  if (!hasBegun) return new TrainyardError('CANCELLED', 'interrupted before anything ran', { cause: signal });
  return new TrainyardError('CANCELLED', 'interrupted', { cause: signal, ...defined({ hint: failure.hint }) });
}

type Interrupt = 'SIGHUP' | 'SIGINT' | 'SIGPIPE' | 'SIGTERM';

/** Node ignores SIGPIPE; a failing write reveals that the reader left. */
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;

export interface Interrupts extends Disposable {
  /** Requests a soft end after the current step. */
  readonly finish: AbortSignal;
  /** Requests that current work be abandoned. */
  readonly stop: AbortSignal;
  readonly by: Interrupt | undefined;
  /** The reader of our output has left. Ignored after a signal, which may have ended the reader too. */
  unread(): void;
}

/** Milliseconds to finish after signals other than Ctrl-C. */
const GRACE = 10_000;
/** Milliseconds. npm forwards the Ctrl-C that the terminal already sent; within this time it is the same one. */
const SAME = 100;

export function catchInterrupts(emit: Emit, steps: Guarded['steps'], onLeave: () => void = () => {}, grace = GRACE): Interrupts {
  const finish = new AbortController();
  const stop = new AbortController();
  let first: { readonly signal: Interrupt; readonly at: number } | undefined;
  let patience: NodeJS.Timeout | undefined;
  const giveUp = (): void => {
    const hint = 'what was acknowledged is kept, and the last checkpoint is whole';
    stop.abort(new TrainyardError('CANCELLED', 'interrupted', steps === true ? { hint } : {}));
  };
  const received = (signal: Interrupt): void => {
    if (first !== undefined) {
      // What ends us often ends our reader too, and that may be noticed first.
      const isSame = signal === first.signal || first.signal === 'SIGPIPE';
      if (!isSame || performance.now() - first.at > SAME) {
        onLeave();
        process.exit(exitOf(signal));
      }
      first = { ...first, signal };
      return;
    }
    first = { signal, at: performance.now() };
    const isSoft = steps === true || (steps === 'drains' && (signal === 'SIGTERM' || signal === 'SIGHUP'));
    const message = `${isSoft ? 'finishing what is in hand' : 'stopping'}; once more to leave at once`;
    emit({ type: 'warning', code: 'INTERRUPTED', message });
    finish.abort();
    if (!isSoft) giveUp();
    else if (signal !== 'SIGINT') patience = setTimeout(giveUp, grace);
  };
  for (const signal of SIGNALS) process.on(signal, received);
  return {
    finish: finish.signal,
    stop: stop.signal,
    get by() {
      return first?.signal;
    },
    unread: () => first ?? received('SIGPIPE'),
    [Symbol.dispose]: () => {
      clearTimeout(patience);
      for (const signal of SIGNALS) process.off(signal, received);
    },
  };
}
