/**
 * Everything that can be wrong with what the user wrote is found here, all of it at once, before anything is opened or spent.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { discover, type Entry, together } from '../rollout/discovery.ts';
import { readTasks } from './dataset.ts';

export interface Checked {
  readonly entry: Entry;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
}

/** One mistake is thrown as it is; several as one error with the first one's code. */
export async function preflight(files: {
  readonly entry: string | Entry;
  readonly tasks?: string;
  readonly heldOut?: string | undefined;
}): Promise<Checked> {
  const read = (path: string | undefined) => (path === undefined ? Promise.resolve([]) : readTasks(path));
  const found = typeof files.entry === 'string' ? discover(files.entry) : Promise.resolve(files.entry);
  const [entry, tasks, heldOut] = await Promise.allSettled([found, read(files.tasks), read(files.heldOut)]);
  if (entry.status === 'fulfilled' && tasks.status === 'fulfilled' && heldOut.status === 'fulfilled') {
    return { entry: entry.value, tasks: tasks.value, heldOut: heldOut.value };
  }
  const mistakes = [entry, tasks, heldOut].flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []));
  const foreign = mistakes.find((mistake) => !(mistake instanceof TrainyardError));
  throw foreign ?? together(mistakes as TrainyardError[]);
}
