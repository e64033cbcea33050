/** Ctrl-C and SIGTERM stop the work in hand; a second one leaves at once. */
import { TrainyardError } from '../core/errors.ts';

export async function interruptible<T>(work: (stop: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const stop = (): void => {
    if (controller.signal.aborted) process.exit(130);
    controller.abort(
      new TrainyardError('CANCELLED', 'interrupted', { hint: 'the last checkpoint in the run directory is whole' }),
    );
  };
  process.on('SIGINT', stop);
  process.on('SIGTERM', stop);
  try {
    return await work(controller.signal);
  } finally {
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }
}
