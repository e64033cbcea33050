/**
 * The held-out tasks of a run that are in no file of their own, because they were split off or given as values: kept with the run, so that
 * its models can be measured on them again.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Task } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';

interface Places {
  readonly run: string;
  readonly heldOut: TaskSource | undefined;
  readonly split: number | undefined;
}

/** Undefined where the held-out tasks have a file, or there are none. */
export function heldOutFileOf({ run, heldOut, split }: Places): string | undefined {
  return split !== undefined || typeof heldOut === 'object' ? join(run, 'held-out.jsonl') : undefined;
}

export async function keepHeldOut(settings: Places, tasks: readonly Task[]): Promise<void> {
  const file = heldOutFileOf(settings);
  if (file !== undefined) await writeFile(file, tasks.map((task) => `${JSON.stringify(task)}\n`).join(''));
}
