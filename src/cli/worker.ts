/** `trainyard worker`: runs rollouts for a coordinating run until it is told to leave. Returns the exit code. */
import { TrainyardError } from '../core/errors.ts';
import { type RunEvent, warnBy } from '../core/events.ts';
import { checkStoreUrl } from '../store/url.ts';
import { guarded } from './guarded.ts';
import { describe, saying } from './output/print.ts';
import { count } from './output/text.ts';

interface WorkerFlags {
  readonly json: boolean;
  readonly store?: string;
  readonly concurrency?: number;
  readonly run?: string;
  readonly threads?: number;
  readonly grace?: number;
}

export async function workerCommand(entry: string | undefined, flags: WorkerFlags): Promise<number> {
  const { json, store = process.env['TRAINYARD_STORE'], concurrency = 8, run, threads, grace = 60 } = flags;
  if (store === undefined) {
    throw new TrainyardError(
      'USAGE',
      'store: expected the database of the coordinator, found none',
      'trainyard worker --store postgres://user@host/database, or set TRAINYARD_STORE',
    );
  }
  checkStoreUrl(store);
  const { work } = await import('../places/workers/worker.ts');
  const say = saying(json);
  const emit = (event: RunEvent): void => say(describe(event), event);
  return await guarded(emit, { steps: true, serves: true, graceMs: 1000 * grace }, async ({ finish, stop }) => {
    const warn = warnBy(emit);
    const tell = (text: string, event: object): void => say([text], event as never);
    const finished = await work({ store, concurrency, entry, run, threads }, { finish, stop, warn, tell });
    say([`${count(finished, 'rollout')} finished`], { type: 'left', rollouts: finished } as never);
    return 0;
  });
}
