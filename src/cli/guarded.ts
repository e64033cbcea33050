/**
 * What can happen to the process while user code runs in it. Ctrl-C, SIGTERM, a closed terminal (SIGHUP) and a reader of our output that
 * left (SIGPIPE) end the work in two degrees: the first one asks it to finish what it has in hand; a second one leaves at once. After all but
 * Ctrl-C there may be nobody to send it, so the patience is bounded. A server goes on without the reader. A promise that an agent forgot to
 * await and that rejected, or an error in one of its timers, is reported, not fatal: it belongs to one rollout among many. `process.exit()`
 * in the middle of a run is never taken for success. An event loop that is blocked for good is killed (watchdog.ts).
 */
import { currentRollout } from '../core/context.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { exitOf } from './program.ts';
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
    const hint = 'a promise in the workflow was not awaited: await every model call';
    emit({ type: 'warning', code: 'STRAY_REJECTION', message, hint });
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

/** What went wrong first is why the work ended; what failed while it was closed after that is only told. */
function first(failure: unknown, emit: Emit): unknown {
  // By its name: Node 22 has no such class, and what `using` is compiled to throws an Error of this name.
  if (!(failure instanceof Error && failure.name === 'SuppressedError')) return failure;
  const { error, suppressed } = failure as SuppressedError;
  emit({ type: 'warning', code: error instanceof TrainyardError ? error.code : 'INTERNAL', message: messageOf(error) });
  return first(suppressed, emit);
}

/** Whoever noticed that the work was cancelled cannot know by which signal, nor what else was going on; the exit code depends on it. */
function bySignal(failure: unknown, signal: Interrupt | undefined, hasBegun: boolean): unknown {
  if (signal === undefined || !(failure instanceof TrainyardError) || failure.code !== 'CANCELLED') return failure;
  if (!hasBegun) return new TrainyardError('CANCELLED', 'interrupted before anything ran', { cause: signal });
  return new TrainyardError('CANCELLED', 'interrupted', { cause: signal, ...defined({ hint: failure.hint }) });
}

export type Interrupt = 'SIGHUP' | 'SIGINT' | 'SIGPIPE' | 'SIGTERM';

/** Node ignores SIGPIPE: that the reader left is told by a write that fails. */
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;

export interface Interrupts extends Disposable {
  /** Come to an end by yourself: the step in hand is the last. */
  readonly finish: AbortSignal;
  /** Give up what is in hand. */
  readonly stop: AbortSignal;
  /** The first signal, once there was one. */
  readonly by: Interrupt | undefined;
  /** Nobody reads our output any more. Of the first signal only: whoever sent that may have ended the reader, too. */
  unread(): void;
}

/** What signals other than Ctrl-C leave for finishing, in milliseconds. */
const GRACE = 10_000;
/** npm passes on the Ctrl-C that the terminal has already sent: within these milliseconds it is the same one. */
const SAME = 100;

export function catchInterrupts(emit: Emit, steps: boolean, onLeave: () => void = () => {}, grace = GRACE): Interrupts {
  const finish = new AbortController();
  const stop = new AbortController();
  let first: { readonly signal: Interrupt; readonly at: number } | undefined;
  let patience: NodeJS.Timeout | undefined;
  const giveUp = (): void => {
    const hint = 'what was acknowledged is kept, and the last checkpoint is whole';
    stop.abort(new TrainyardError('CANCELLED', 'interrupted', steps ? { hint } : {}));
  };
  const received = (signal: Interrupt): void => {
    if (first !== undefined) {
      // What ends us often ends the reader of our output as well, and that may be noticed before.
      const isSame = signal === first.signal || first.signal === 'SIGPIPE';
      if (!isSame || performance.now() - first.at > SAME) {
        onLeave();
        process.exit(exitOf(signal));
      }
      first = { ...first, signal };
      return;
    }
    first = { signal, at: performance.now() };
    const message = `${steps ? 'finishing what is in hand' : 'stopping'}; once more to leave at once`;
    emit({ type: 'warning', code: 'INTERRUPTED', message });
    finish.abort();
    if (!steps) giveUp();
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
