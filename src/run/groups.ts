/**
 * The groups of a run: which task each gets, how its rollouts are named and sampled, how far they may run ahead, and which are trained.
 * Only groups with signal that the workflow accepts are trained, without what marks exclude.
 */
import { hash } from 'node:crypto';
import { mapConcurrently } from '../core/async.ts';
import type { Store, Workflow } from '../core/contracts.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { exclusionsOf, placeOf, withoutExcluded } from '../core/turns.ts';
import type { Exclusion, Task, Trajectory } from '../core/types.ts';
import { type Group, type GroupBatch, GroupScheduler } from '../rollout/scheduler.ts';
import { memoryStore } from '../store/memory.ts';
import { hasSignal, turnAdvantagesOf } from '../trainer/advantages.ts';
import { type EvaluationRequest, evaluationSettings } from './check-settings.ts';
import { withModelPath } from './model-path.ts';
import { openParts, type Rollouts } from './parts.ts';
import type { TrainPlan } from './plan.ts';
import { preflight } from './preflight.ts';
import type { Resumption } from './resume.ts';
import { samplingAt, TRAIN_DEFAULTS } from './settings.ts';

export function groupsOf(
  { settings, tasks, entry }: Pick<TrainPlan, 'settings' | 'tasks' | 'entry'>,
  from: Resumption,
  rollouts: Rollouts,
  onProgress: (done: number, of: number) => void,
): GroupScheduler {
  const { groupsPerStep, group, refill, staleness, concurrency, steps, seed } = settings;
  const taskOf = shuffled(tasks, seed);
  const sampling = samplingAt(settings.temperature, settings);
  return new GroupScheduler(
    {
      ...{ refill, staleness, concurrency, onProgress },
      hasSignal: (group) => hasSignal(group) && isAccepted(entry.workflow, group),
      batchSize: groupsPerStep,
      groupSize: group,
      lastVersion: steps,
      plan: (number) => ({ groupId: groupName('g', number), task: taskOf(number) }),
      runOne: ({ groupId, task }, place, signal) =>
        rollouts.run({ rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' }, task, sampling, signal),
    },
    { version: from.step, groups: from.groups },
  );
}

function groupName(letter: string, number: number): string {
  return `${letter}${String(number).padStart(6, '0')}`;
}

/** Returns the task of the n-th group, counted from 1. Each pass over the tasks uses a new shuffle, determined by the seed. */
function shuffled(tasks: readonly Task[], seed: number): (n: number) => Task {
  let [round, order]: [number, readonly Task[]] = [-1, []];
  // Sorting by a hash of (seed, round, place) needs no generator state that could get lost.
  const keyOf = (place: number): string => hash('sha256', `${seed}/${round}/${place}`, 'hex');
  return (n) => {
    const wanted = Math.floor((n - 1) / tasks.length);
    if (wanted !== round) {
      round = wanted;
      const keyed = tasks.map((task, place) => ({ task, key: keyOf(place) }));
      order = keyed.toSorted((a, b) => (a.key < b.key ? -1 : 1)).map(({ task }) => task);
    }
    return order[(n - 1) % tasks.length] as Task;
  };
}

/** A group that the workflow rejects counts as one without signal. Throws WORKFLOW_FAILED for a non-boolean answer. */
export function isAccepted({ name, accepts }: Pick<Workflow, 'name' | 'accepts'>, group: readonly Trajectory[]): boolean {
  if (accepts === undefined) return true;
  const who = `the workflow ${name} was asked whether to accept group ${group[0]?.groupId}`;
  let accepted: unknown;
  try {
    // A copy, so that the workflow cannot change what is trained.
    accepted = accepts(structuredClone(group));
  } catch (cause) {
    throw new TrainyardError('WORKFLOW_FAILED', `${who} and threw ${describeThrown(cause)}`, { cause });
  }
  if (typeof accepted === 'boolean') return accepted;
  throw new TrainyardError('WORKFLOW_FAILED', `${who} and returned ${describeValue(accepted)}, expected true or false`, {
    hint: 'return a boolean, not a promise: whoever asks does not wait',
  });
}

interface CuratedBatch extends GroupBatch {
  /** Everything that marks excluded, including from groups without signal. */
  readonly excluded: readonly Exclusion[];
  /** Rollouts that were excluded as a whole. */
  readonly excludedRollouts: readonly Trajectory[];
}

/**
 * Applies the current exclusion marks. A group that teaches nothing afterwards counts as without signal. The step's manifest records the
 * exclusions, so recomputing the step excludes the same, whatever was marked since.
 */
export async function withoutMarked(batch: GroupBatch, store: Pick<Store, 'marks'>): Promise<CuratedBatch> {
  const all = batch.groups.flatMap(({ trajectories }) => trajectories);
  const excluded = exclusionsOf(new Set(all.map(({ rolloutId }) => rolloutId)), await store.marks());
  if (excluded.length === 0) return { ...batch, excluded, excludedRollouts: [] };
  const touched = new Set(excluded.map(({ rolloutId }) => rolloutId));
  const groups = batch.groups.map((group) => ({ ...group, trajectories: withoutExcluded(group.trajectories, excluded) }));
  const isLost = ({ trajectories }: Group, place: number): boolean =>
    batch.groups[place]!.trajectories.some(({ rolloutId }) => touched.has(rolloutId)) && !teaches(trajectories);
  const lost = new Set(groups.filter(isLost));
  const places = new Set(excluded.map(placeOf));
  return {
    groups: groups.filter((group) => !lost.has(group)),
    withoutSignal: [...batch.withoutSignal, ...lost],
    stale: batch.stale,
    excluded,
    excludedRollouts: all.filter(({ rolloutId }) => places.has(placeOf({ rolloutId }))),
  };
}

/** Whether rewards differ and at least one trainable turn gets an advantage from them. */
function teaches(group: readonly Trajectory[]): boolean {
  if (!hasSignal(group)) return false;
  const advantageOf = turnAdvantagesOf(group, 'dr-grpo');
  return group.some((trajectory) => trajectory.turns.some((turn) => advantageOf(trajectory, turn) !== undefined));
}

export interface RolloutBatchRequest extends Omit<EvaluationRequest, 'n' | 'run' | 'rows'> {
  readonly tasks: readonly Task[];
  readonly group?: number;
  /** Default 1. */
  readonly temperature?: number;
}

/**
 * Runs rollouts without training and without writing to disk. Returns one group per task, in order, with its graded rollouts; null if it
 * has none or the workflow rejects them. Nothing is replaced or awaited, so it always ends. Throws if most rollouts fail, as any run does.
 */
export async function rolloutBatch(
  { tasks, group = 1, temperature = TRAIN_DEFAULTS.temperature, ...request }: RolloutBatchRequest,
  { stop = new AbortController().signal, warn = () => {} }: { readonly stop?: AbortSignal; readonly warn?: Warn } = {},
): Promise<(readonly Trajectory[] | null)[]> {
  if (!(Number.isSafeInteger(group) && group >= 1)) {
    throw new TrainyardError('USAGE', `group is ${group}, expected a whole number from 1 up`);
  }
  const settings = evaluationSettings(await withModelPath(request));
  const { entry } = await preflight({ entry: settings.entry });
  await using parts = await openParts(settings, entry, { stop, warn });
  await using store = memoryStore();
  const rollouts = parts.rolloutsInto(store);
  const sampling = samplingAt(temperature, settings);
  const places = tasks.flatMap((task, i) => Array.from({ length: group }, (_, place) => ({ task, i, place })));
  const run = ({ task, i, place }: (typeof places)[number]): Promise<Trajectory> => {
    const groupId = groupName('b', i + 1);
    return rollouts.run({ rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' }, task, sampling);
  };
  const trajectories = (await mapConcurrently(places, settings.concurrency, run)) ?? [];
  rollouts.settle();
  const groups = Map.groupBy(trajectories, ({ groupId }) => groupId);
  return tasks.map((_, i) => {
    const graded = (groups.get(groupName('b', i + 1)) ?? []).filter(({ grade }) => grade.kind === 'graded');
    return graded.length > 0 && isAccepted(entry.workflow, graded) ? graded : null;
  });
}
