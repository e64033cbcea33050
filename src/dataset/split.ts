/**
 * A share of the tasks, held out from training. Each task is on its side by itself, by a hash of what is asked and the seed: tasks that
 * are added later move none, and tasks that ask the same are on the same side.
 */
import { createHash } from 'node:crypto';
import type { Task } from '../core/types.ts';
import { invalid } from './rows.ts';
import { contentHash } from './task-row.ts';

export interface Split {
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
}

export interface SplitOptions {
  /** Between 0 and 1. */
  readonly share: number;
  readonly seed: number;
  /** That must be left to train on. */
  readonly minTasks?: number | undefined;
}

/** Throws DATASET_INVALID where nothing would be held out, or too little left to train on. */
export function splitTasks(all: readonly Task[], { share, seed, minTasks = 1 }: SplitOptions): Split {
  const isHeldOut = (task: Task): boolean => placeOf(task, seed) < share;
  const tasks: Task[] = [];
  const heldOut: Task[] = [];
  for (const task of all) (isHeldOut(task) ? heldOut : tasks).push(task);
  if (tasks.length >= minTasks && heldOut.length > 0) return { tasks, heldOut };
  const left = tasks.length === 0 ? 'none' : tasks.length;
  const found = heldOut.length === 0 ? `none of ${all.length} tasks held out` : `${left} of ${all.length} tasks to train on`;
  throw invalid(`a split of ${share} leaves ${found}, expected at least ${heldOut.length === 0 ? 1 : minTasks}`, {
    hint: 'a task is held out by chance, with the seed: give another --split, more tasks, or a file with --held-out',
  });
}

/** From 0 to below 1, evenly. */
function placeOf(task: Task, seed: number): number {
  const digest = createHash('sha256')
    .update(`${seed}/${contentHash(task)}`)
    .digest();
  return digest.readUIntBE(0, 6) / 2 ** 48;
}

/** How many of the held-out tasks ask what a training task asks. */
export function seenInTraining({ tasks, heldOut }: Split): number {
  const asked = new Set(tasks.map(contentHash));
  return heldOut.filter((task) => asked.has(contentHash(task))).length;
}
