/**
 * Rollouts of some tasks, without training: every task once, or in groups, each with a place in the result. Nothing is kept on disk.
 *
 * What was rejected, failed or was not accepted is null in its place; nothing is replaced and nothing waited for, so it always ends. It
 * throws when most rollouts fail, as any run does.
 */
import { mapConcurrently } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { memoryStore } from '../store/memory.ts';
import { isAccepted } from './groups.ts';
import { preflight } from './preflight.ts';
import { type EvalRequest, evalSettings, samplingAt, TRAIN_DEFAULTS } from './settings.ts';
import { openWorkshop } from './workshop.ts';

export interface RolloutBatchRequest extends EvalRequest {
  readonly tasks: readonly Task[];
  /** Rollouts of each task. Default 1. */
  readonly group?: number;
  /** Default 1. */
  readonly temperature?: number;
}

/** A group for each task, in their order: its graded rollouts. Null where there are none, or the workflow does not accept them. */
export async function rolloutBatch(
  { tasks, group = 1, temperature = TRAIN_DEFAULTS.temperature, ...request }: RolloutBatchRequest,
  { stop = new AbortController().signal, warn = () => {} }: { readonly stop?: AbortSignal; readonly warn?: Warn } = {},
): Promise<(readonly Trajectory[] | null)[]> {
  if (!(Number.isSafeInteger(group) && group >= 1)) {
    throw new TrainyardError('USAGE', `group is ${group}, expected a whole number from 1 up`);
  }
  const settings = evalSettings(request);
  const { entry } = await preflight({ entry: settings.entry });
  await using workshop = await openWorkshop(settings, entry, { stop, warn });
  await using store = memoryStore();
  const rollouts = workshop.rolloutsInto(store);
  const sampling = samplingAt(temperature, settings);
  const places = tasks.flatMap((task, number) => {
    const groupId = `b${String(number + 1).padStart(6, '0')}`;
    return Array.from({ length: group }, (_, place) => ({ task, groupId, rolloutId: `${groupId}-${place}` }));
  });
  const trajectories = await mapConcurrently(places, settings.concurrency, ({ task, groupId, rolloutId }) =>
    rollouts.run({ rolloutId, groupId, purpose: 'train' }, task, sampling),
  );
  rollouts.settle();
  const groups = Map.groupBy(trajectories ?? [], ({ groupId }) => groupId);
  return [...new Set(places.map(({ groupId }) => groupId))].map((groupId) => {
    const graded = (groups.get(groupId) ?? []).filter(({ grade }) => grade.kind === 'graded');
    return graded.length > 0 && isAccepted(entry.workflow, graded) ? graded : null;
  });
}
