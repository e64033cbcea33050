/**
 * Ctrl-C and SIGTERM, in two degrees. The first one asks the work to finish what it has in hand; a second one leaves at once. After
 * SIGTERM there may be nobody to send a second one, so its patience is bounded.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';

export type Interrupt = 'SIGINT' | 'SIGTERM';

export const EXIT_OF: Readonly<Record<Interrupt, number>> = { SIGINT: 130, SIGTERM: 143 };

export interface Interrupts extends Disposable {
  /** Come to an end by yourself: the step in hand is the last. */
  readonly finish: AbortSignal;
  /** Give up what is in hand. */
  readonly stop: AbortSignal;
  /** The first signal, once there was one. */
  readonly by: Interrupt | undefined;
}

/** What SIGTERM leaves for finishing, in milliseconds. */
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
      if (signal === first.signal && performance.now() - first.at <= SAME) return;
      onLeave();
      process.exit(EXIT_OF[signal]);
    }
    first = { signal, at: performance.now() };
    emit({
      type: 'warning',
      code: 'INTERRUPTED',
      message: `${steps ? 'finishing what is in hand' : 'stopping'}; once more to leave at once`,
    });
    finish.abort();
    if (!steps) giveUp();
    else if (signal === 'SIGTERM') patience = setTimeout(giveUp, grace);
  };
  process.on('SIGINT', received).on('SIGTERM', received);
  return {
    finish: finish.signal,
    stop: stop.signal,
    get by() {
      return first?.signal;
    },
    [Symbol.dispose]: () => {
      clearTimeout(patience);
      process.off('SIGINT', received).off('SIGTERM', received);
    },
  };
}
