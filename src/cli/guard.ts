/**
 * What can happen to the process while user code runs in it: Ctrl-C and SIGTERM stop the work in hand (a second one leaves at
 * once); a promise that an agent forgot to await and that rejected is reported, not fatal, because it belongs to one rollout
 * among many; `process.exit()` in the middle of a run is never taken for success.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';

export async function guarded<T>(emit: Emit, work: (stop: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const stop = (): void => {
    if (controller.signal.aborted) process.exit(130);
    emit({ type: 'warning', code: 'INTERRUPTED', message: 'stopping; once more to leave at once' });
    controller.abort(
      new TrainyardError('CANCELLED', 'interrupted', { hint: 'the last checkpoint in the run directory is whole' }),
    );
  };
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
  const leave = (code: number): void => {
    if (controller.signal.aborted) return;
    process.stderr.write(`error WORKFLOW_FAILED: something called process.exit(${code}) in the middle of the run\n`);
    process.exitCode = 1;
  };
  const handlers = { SIGINT: stop, SIGTERM: stop, unhandledRejection: stray, exit: leave };
  for (const [event, handler] of Object.entries(handlers)) process.on(event, handler);
  try {
    return await work(controller.signal);
  } finally {
    for (const [event, handler] of Object.entries(handlers)) process.off(event, handler);
  }
}
