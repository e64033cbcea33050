/**
 * What can happen to the process while user code runs in it. Ctrl-C and SIGTERM stop the work in hand; a second one leaves at
 * once. A promise that an agent forgot to await and that rejected, or an error in one of its timers, is reported, not fatal: it
 * belongs to one rollout among many. `process.exit()` in the middle of a run is never taken for success. A reader of our output
 * that went away ends the run. An event loop that is blocked for good is killed (watchdog.ts).
 */
import { currentRollout } from '../core/context.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { watch } from './watchdog.ts';

export async function guarded<T>(emit: Emit, work: (stop: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const stop = (): void => {
    if (controller.signal.aborted) process.exit(130);
    emit({ type: 'warning', code: 'INTERRUPTED', message: 'stopping; once more to leave at once' });
    controller.abort(
      new TrainyardError('CANCELLED', 'interrupted', { hint: 'what was acknowledged is kept, and the last checkpoint is whole' }),
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
  const thrown = (error: unknown): void => {
    if (currentRollout() === undefined) {
      process.stderr.write(`error INTERNAL: ${error instanceof Error ? error.stack : messageOf(error)}\n`);
      process.exit(1);
    }
    stray(error);
  };
  const leave = (code: number): void => {
    if (controller.signal.aborted || code === 1) return;
    const cause = code === 13 ? 'the entry awaits something that never comes' : `something called process.exit(${code})`;
    process.stderr.write(`error WORKFLOW_FAILED: ${cause} in the middle of the run\n`);
    process.exitCode = 1;
  };
  const unread = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE') throw error;
    process.exit(1);
  };
  const handlers = { SIGINT: stop, SIGTERM: stop, unhandledRejection: stray, uncaughtException: thrown, exit: leave };
  for (const [event, handler] of Object.entries(handlers)) process.on(event, handler);
  process.stdout.on('error', unread);
  using _watchdog = watch();
  try {
    return await work(controller.signal);
  } finally {
    process.stdout.off('error', unread);
    for (const [event, handler] of Object.entries(handlers)) process.off(event, handler);
  }
}
