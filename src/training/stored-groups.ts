/**
 * Training from rollouts that another run kept (`train --from`), instead of new ones: its settings, unless others are given, and its groups
 * with their marks, which are copied into the new run's store before the first step, so that the run can be resumed and verified without
 * the other. Rollouts of held-out tasks and of unfinished groups are left out. Log-probabilities are compared with the trainer's in the first
 * step, of turns that the same model sampled before its first step; later policies are not the one in training, so theirs only weigh the
 * gradient.
 */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { placeOf } from '../core/turns.ts';
import type { Trajectory } from '../core/types.ts';
import type { Group, GroupBatch, Position } from '../rollout/scheduler.ts';
import { type RunDirectory, readRunFile } from '../run/directory.ts';
import type { TrainPlan } from '../run/plan.ts';
import { keptStore, openStoreOf } from '../run/run-store.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { isLocked, writeWhole } from '../store/files.ts';
import { withoutPassword } from '../store/url.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { areOwn } from '../tokens/taught-turns.ts';
import { heldOutTest } from './demonstrations.ts';

/** Where a run's groups come from: new rollouts, or a store. */
export interface GroupSource {
  take(): Promise<GroupBatch>;
  readonly position: Position;
  /** Whether `take` has nothing left to give. New rollouts never end. */
  readonly isExhausted?: boolean;
  /** Whether version 0 of the rollouts' run is version 0 of this one. */
  readonly isSameModel?: boolean;
  published(version: number): void;
  close(): Promise<void>;
}

interface StoredGroupsOptions {
  /** Of the new run. */
  readonly directory: Pick<RunDirectory, 'storePath'>;
  readonly plan: Pick<TrainPlan, 'settings' | 'heldOut' | 'tasks' | 'record'>;
  readonly store: Store;
  readonly renderer: Renderer;
  readonly hasSignal: (group: readonly Trajectory[]) => boolean;
  readonly warn: Warn;
}

/** `next`: the first group to take, from 1. */
export async function storedGroups(options: StoredGroupsOptions, next: number): Promise<GroupSource> {
  const { plan, store, hasSignal } = options;
  const { groupsPerStep, refill } = plan.settings;
  // Written last: a killed run may have copied only some.
  const copied = join(dirname(options.directory.storePath), 'copied.json');
  if (!existsSync(copied)) await writeWhole(copied, `${JSON.stringify(await copyGroups(options))}\n`);
  const { sameModel: isSameModel = false } = JSON.parse(readFileSync(copied, 'utf8')) as { readonly sameModel?: boolean };
  const ids = await store.groupIds({ purpose: 'train' });
  let place = next;
  const read = async (groupId: string): Promise<Group> => {
    const trajectories = await store.query({ groupId, purpose: 'train' });
    return { groupId, task: { id: trajectories[0]!.taskId, prompt: [] }, trajectories };
  };
  const take = async (): Promise<GroupBatch> => {
    const batch = { groups: [] as Group[], withoutSignal: [] as Group[], stale: [] };
    // As the other run did, so that the batches are the same.
    const end = Math.min(place + refill * groupsPerStep - 1, ids.length);
    while (batch.groups.length < groupsPerStep && place <= end) {
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
    isSameModel,
    published: () => {},
    close: async () => {},
  };
}

/**
 * Idempotent; a mark that the new store has stays. Throws RUN_LOCKED while the other run goes on, and SAMPLE_REFUSED if another tokenizer or
 * template made its rollouts: their ids would mean other text.
 */
async function copyGroups({ plan, store, renderer, warn }: StoredGroupsOptions): Promise<object> {
  const { from = '', store: own } = plan.settings;
  if (isLocked(from)) {
    const hint = 'wait until it has ended, or stop it; its last groups are not complete';
    throw new TrainyardError('RUN_LOCKED', `${from} is still going on`, hint);
  }
  // In the same database the same password holds.
  const isSame = own !== undefined && withoutPassword(own) === keptStore(from).url;
  await using source = await openStoreOf(from, isSame ? { store: own } : {});
  const { model, settings } = readRunFile(from) as { readonly model?: string; readonly settings?: Partial<TrainSettings> };
  const isHeldOut = heldOutTest(plan);
  const copied = new Set<string>();
  let heldOut = 0;
  let unfinished = 0;
  for (const groupId of await source.groupIds({ purpose: 'train' })) {
    const group = await source.query({ groupId, purpose: 'train' });
    if (group.some(({ taskId, turns }) => isHeldOut(taskId, turns[0]?.request.messages ?? []))) heldOut += group.length;
    else if (group.length < (settings?.group ?? 2)) unfinished += group.length;
    else {
      for (const trajectory of group) {
        if (model !== plan.record.model) requireOwn(renderer, trajectory, from);
        await store.append(trajectory);
        copied.add(trajectory.rolloutId);
      }
    }
  }
  const marked = new Set((await store.marks()).map(placeOf));
  await store.mark((await source.marks()).filter((mark) => copied.has(mark.rolloutId) && !marked.has(placeOf(mark))));
  const why = 'by id, or because they ask what a held-out task asks';
  if (heldOut > 0) warn('LEFT_OUT', `${heldOut} rollouts of held-out tasks in ${from} are not trained (${why})`);
  if (unfinished > 0) warn('LEFT_OUT', `${unfinished} rollouts of groups that ${from} did not finish are not trained`);
  const sameModel = model === plan.record.model;
  if (copied.size > 0) return { from, rollouts: copied.size, heldOut, unfinished, sameModel };
  const hint = 'give the directory of a run that rolled out training tasks; trainyard show lists what it holds';
  throw new TrainyardError('DATASET_INVALID', `${from} holds no rollouts to train from`, hint);
}

function requireOwn(renderer: Renderer, { rolloutId, turns }: Trajectory, from: string): void {
  const sampled = turns.filter(({ model }) => model === undefined);
  if (sampled.length === 0 || areOwn(renderer, sampled)) return;
  throw new TrainyardError(
    'SAMPLE_REFUSED',
    `rollout ${rolloutId} of ${from} was not made with this model’s tokenizer and chat template, so its tokens would mean other text`,
    'leave --model out, or give a model with the same tokenizer; successes can be taught to any model: --warm-start',
  );
}
