/**
 * Training from rollouts that another run kept (`train --from`), instead of new ones: its settings, unless others are given, and its groups
 * with their marks, which are copied into the new run's store before the first step, so that the run can be resumed and verified without
 * the other. Rollouts of held-out tasks are left out. The policies that sampled are not the one in training, so their log-probabilities only
 * weigh the gradient, and none is compared with the trainer's.
 */
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { Trajectory } from '../core/types.ts';
import type { Group, GroupBatch, Position } from '../rollout/scheduler.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { areOwn } from '../tokens/taught-turns.ts';
import type { TrainFromRequest, TrainRequest, TrainSettings } from './check-settings.ts';
import { heldOutTest } from './demonstrations.ts';
import { isEvaluation, readRunFile } from './directory.ts';
import { openStoreOf } from './inspect.ts';
import type { TrainPlan } from './plan.ts';

/** Settings of the other run that do not carry over: they are about its machine, its way of sampling, or what it began with. */
const OWN: ReadonlySet<string> = new Set<keyof TrainSettings>([
  ...(['run', 'from', 'threads', 'concurrency', 'workflowWorkers', 'graderWorkers', 'isolation', 'transcripts'] as const),
  ...(['staleness', 'stale', 'warmStart', 'warmStartEpochs', 'warmStartLearningRate', 'loss'] as const),
]);

/** The request, with the other run's settings where it has none of its own. */
export function withSettingsOf({ from, ...request }: TrainFromRequest): TrainRequest {
  const record = readRunFile(from, 'FILE_NOT_FOUND') as { readonly settings?: Partial<TrainSettings> };
  if (isEvaluation(record) || record.settings?.steps === undefined) {
    throw new TrainyardError('USAGE', `from: expected the directory of a training run, found ${from}`, {
      hint: 'an evaluation is never trained; to teach the successes of any run, use --warm-start',
    });
  }
  const kept = Object.fromEntries(Object.entries(record.settings).filter(([name]) => !OWN.has(name)));
  const isHeldOutGiven = request.heldOut !== undefined || request.split !== undefined;
  const { heldOut: _, split: _split, ...others } = kept;
  const { loss = 'ppo', dualClip } = record.settings;
  // As with staleness: tokens of other policies need their weights corrected.
  const own = { loss: loss === 'ppo' && dualClip === undefined ? 'decoupled_ppo' : loss };
  const merged = { ...(isHeldOutGiven ? others : kept), ...own, ...defined(request), from } as Partial<TrainSettings>;
  const { entry } = merged;
  if (entry !== undefined) return { ...merged, entry };
  throw new TrainyardError('USAGE', `${from} was begun from TypeScript, so its entry is not known`, { hint: 'give the entry' });
}

/** Where a run's groups come from: new rollouts, or a store. */
export interface GroupSource {
  take(): Promise<GroupBatch>;
  readonly position: Position;
  /** Whether `take` has nothing left to give. New rollouts never end. */
  readonly isExhausted?: boolean;
  published(version: number): void;
  close(): Promise<void>;
}

export interface StoredGroupsOptions {
  readonly plan: Pick<TrainPlan, 'settings' | 'heldOut' | 'tasks' | 'record'>;
  readonly store: Store;
  readonly renderer: Renderer;
  readonly hasSignal: (group: readonly Trajectory[]) => boolean;
  readonly warn: Warn;
}

/** `next`: the first group to take, from 1. */
export async function storedGroups(options: StoredGroupsOptions, next: number): Promise<GroupSource> {
  const { plan, store, hasSignal } = options;
  // Before the first step a killed run may have copied only some.
  if ((await store.manifests()).length === 0) await copyGroups(options);
  const ids = await store.groupIds({ purpose: 'train' });
  let place = next;
  const read = async (groupId: string): Promise<Group> => {
    const trajectories = await store.query({ groupId, purpose: 'train' });
    return { groupId, task: { id: trajectories[0]!.taskId, prompt: [] }, trajectories };
  };
  const take = async (): Promise<GroupBatch> => {
    const batch = { groups: [] as Group[], withoutSignal: [] as Group[], stale: [] };
    while (batch.groups.length < plan.settings.groupsPerStep && place <= ids.length) {
      const group = await read(ids[place++ - 1]!);
      (hasSignal(group.trajectories) ? batch.groups : batch.withoutSignal).push(group);
    }
    return batch;
  };
  return {
    take,
    get position() {
      return { next: place, pending: [] };
    },
    get isExhausted() {
      return place > ids.length;
    },
    published: () => {},
    close: async () => {},
  };
}

/** Idempotent. Throws SAMPLE_REFUSED if another tokenizer or template made the rollouts: their ids would mean other text. */
async function copyGroups({ plan, store, renderer, warn }: StoredGroupsOptions): Promise<void> {
  const { from = '' } = plan.settings;
  await using source = await openStoreOf(from);
  const { model } = readRunFile(from) as { readonly model?: string };
  const isHeldOut = heldOutTest(plan);
  const copied = new Set<string>();
  let heldOut = 0;
  for (const groupId of await source.groupIds({ purpose: 'train' })) {
    const group = await source.query({ groupId, purpose: 'train' });
    if (group.some(({ taskId, turns }) => isHeldOut(taskId, turns[0]?.request.messages ?? []))) heldOut += group.length;
    else {
      for (const trajectory of group) {
        if (model !== plan.record.model) requireOwn(renderer, trajectory, from);
        await store.append(trajectory);
        copied.add(trajectory.rolloutId);
      }
    }
  }
  const marks = (await source.marks()).filter(({ rolloutId }) => copied.has(rolloutId));
  await store.mark(marks);
  if (heldOut > 0) warn('LEFT_OUT', `${heldOut} rollouts of held-out tasks in ${from} are not trained`);
  if (copied.size > 0) return;
  const hint = 'give the directory of a run that rolled out training tasks; trainyard show lists what it holds';
  throw new TrainyardError('DATASET_INVALID', `${from} holds no rollouts to train from`, { hint });
}

function requireOwn(renderer: Renderer, { rolloutId, turns }: Trajectory, from: string): void {
  const sampled = turns.filter(({ model }) => model === undefined);
  if (sampled.length === 0 || areOwn(renderer, sampled)) return;
  throw new TrainyardError(
    'SAMPLE_REFUSED',
    `rollout ${rolloutId} of ${from} was not made with this model’s tokenizer and chat template, so its tokens would mean other text`,
    { hint: 'leave --model out, or give a model with the same tokenizer; successes can be taught to any model: --warm-start' },
  );
}
