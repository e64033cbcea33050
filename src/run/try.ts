/** One rollout of one task, to look at: every turn as it is recorded, what the workflow threw with its stack, what the grader made of it. */

import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { SamplingSettings, Task, Trajectory, Turn } from '../core/types.ts';
import { memoryStore } from '../store/memory.ts';
import { preflight } from './preflight.ts';
import { type EvalRequest, evalSettings } from './settings.ts';
import { openWorkshop } from './workshop.ts';

export interface TryRequest extends EvalRequest {
  /** Id of the task, or its number in the file, from 1; absent: the first. */
  readonly task?: string | undefined;
  /** Absent: 1, as in training. */
  readonly temperature?: number | undefined;
}

export interface TryObserver {
  onStart(task: Task): void;
  onTurn(turn: Turn): void;
  /** What the workflow threw. */
  onThrown(thrown: unknown): void;
  readonly warn: Warn;
}

/** Someone may be sitting in a debugger. */
const DEADLINE_MS = 24 * 3_600_000;

/** Keeps nothing. */
export async function tryOnce(request: TryRequest, observer: TryObserver, stop: AbortSignal): Promise<Trajectory> {
  const { task: wanted, temperature = 1, ...given } = request;
  const settings = evalSettings(given);
  const { entry, heldOut } = await preflight(settings);
  const { trainable } = settings;
  const task = taskNamed(wanted, heldOut, typeof settings.heldOut === 'string' ? settings.heldOut : 'the list');
  const { warn } = observer;
  const limits = { ...settings.limits, deadlineMs: DEADLINE_MS };
  const watch = { recorded: (_: unknown, turn: Turn) => observer.onTurn(turn), threw: observer.onThrown };
  await using workshop = await openWorkshop({ ...settings, limits }, entry, { stop, warn, trainable, observer: watch });
  await using store = memoryStore();
  observer.onStart(task);
  const sampling: SamplingSettings = { temperature, topP: 1, topK: 0, maxTokens: settings.callTokens };
  const identity = { rolloutId: 'try', groupId: 'try', purpose: 'train' } as const;
  return await workshop.rolloutsInto(store).run(identity, task, sampling);
}

function taskNamed(wanted: string | undefined, tasks: readonly Task[], file: string): Task {
  const found =
    wanted === undefined
      ? tasks[0]
      : (tasks.find(({ id }) => id === wanted) ?? (/^\d+$/.test(wanted) ? tasks[Number(wanted) - 1] : undefined));
  if (found !== undefined) return found;
  throw new TrainyardError('USAGE', `${file} has no task ${wanted === undefined ? 'at all' : JSON.stringify(wanted)}`, {
    hint: `give the id of one of its ${tasks.length} tasks, or a number from 1 to ${tasks.length}`,
  });
}
