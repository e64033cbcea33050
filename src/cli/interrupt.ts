/**
 * Ctrl-C, SIGTERM, a closed terminal (SIGHUP), a reader of our output that left (SIGPIPE), in two degrees. The first one asks the work to finish
 * what it has in hand; a second one leaves at once. After all but Ctrl-C there may be nobody to send it, so the patience is bounded.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';

export type Interrupt = 'SIGHUP' | 'SIGINT' | 'SIGPIPE' | 'SIGTERM';

export const EXIT_OF: Readonly<Record<Interrupt, number>> = { SIGHUP: 129, SIGINT: 130, SIGPIPE: 141, SIGTERM: 143 };
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

/**
 * `steps`: whether the work can end softly; what cannot is stopped by the first signal. `onLeave` has the last word when a second
 * signal ends the process.
 */
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
        process.exit(EXIT_OF[signal]);
      }
      first = { ...first, signal };
      return;
    }
    first = { signal, at: performance.now() };
    emit({
      type: 'warning',
      code: 'INTERRUPTED',
      message: `${steps ? 'finishing what is in hand' : 'stopping'}; once more to leave at once`,
    });
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
