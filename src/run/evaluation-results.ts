/**
 * What the rollouts of an evaluation came to, by task; which of them are still to be run.
 *
 * A rollout's id is made of the task's id, its number and its attempt, and of nothing else: so are the seeds of what it samples, whatever
 * runs beside it and however often the evaluation was interrupted. Of several attempts the last one counts; the others are kept.
 */
import { createHash } from 'node:crypto';
import type { Store } from '../core/contracts.ts';
import type { RolloutIdentity, Trajectory } from '../core/types.ts';
import type { NumberedTask } from './evaluate.ts';
import { type Ending, endingOf, type Means } from './signal.ts';

/** With the parts and metrics of its reward, by name. */
export interface RolloutResult extends Means {
  readonly rolloutId: string;
  /** Place among the task's rollouts, from 1. */
  readonly number: number;
  /** How often it was tried, this one included. */
  readonly attempt: number;
  readonly ending: Ending;
  readonly reward: number | null;
  /** Why it failed or was skipped, or which limit cut it short. */
  readonly why?: string;
  readonly seconds: number;
}

export interface TaskResult {
  readonly id: string;
  /** In the task file, from 1. */
  readonly row: number;
  readonly tags: readonly string[];
  readonly rollouts: readonly RolloutResult[];
}

/** A rollout that is still to be run. */
export interface Pending {
  readonly task: NumberedTask['task'];
  readonly number: number;
  readonly attempt: number;
  readonly identity: Pick<RolloutIdentity, 'rolloutId' | 'groupId' | 'purpose'>;
}

export class Results {
  readonly #tasks: readonly NumberedTask[];
  readonly #n: number;
  /** By task and number of the rollout; of the latest attempt. */
  readonly #latest = new Map<string, RolloutResult>();

  constructor(tasks: readonly NumberedTask[], n: number) {
    this.#tasks = tasks;
    this.#n = n;
  }

  /** How many rollouts are done. */
  get done(): number {
    return this.#latest.size;
  }

  add(trajectory: Trajectory): void {
    const parsed = /-(\d+)(?:-again-(\d+))?$/.exec(trajectory.rolloutId);
    if (parsed === null) return;
    const [number, attempt] = [Number(parsed[1]), Number(parsed[2] ?? 1)];
    const key = keyOf(trajectory.taskId, number);
    if ((this.#latest.get(key)?.attempt ?? 0) < attempt) this.#latest.set(key, resultOf(trajectory, number, attempt));
  }

  /** Adds what is kept of these tasks, a task at a time: conversations can be long, and only what they came to stays in memory. */
  async recall(store: Store): Promise<void> {
    for (const { task } of this.#tasks) {
      const { groupId } = identityOf(task.id, 1, 1);
      for (const trajectory of await store.query({ groupId, purpose: 'eval' })) this.add(trajectory);
    }
  }

  /** What was never run and, if asked for, what failed: that under a new id. */
  pending(retryFailed: boolean): readonly Pending[] {
    return this.#tasks.flatMap(({ task }) =>
      this.#numbers().flatMap((number) => {
        const kept = this.#latest.get(keyOf(task.id, number));
        if (kept !== undefined && !(retryFailed && kept.ending === 'failed')) return [];
        const attempt = (kept?.attempt ?? 0) + 1;
        return [{ task, number, attempt, identity: identityOf(task.id, number, attempt) }];
      }),
    );
  }

  /** Tasks in the order of their rows, rollouts in the order of their numbers; those that were not run are left out. */
  byTask(): readonly TaskResult[] {
    return this.#tasks.map(({ task, number: row }) => ({
      id: task.id,
      row,
      tags: tagsOf(task.metadata),
      rollouts: this.#numbers().flatMap((number) => this.#latest.get(keyOf(task.id, number)) ?? []),
    }));
  }

  #numbers(): readonly number[] {
    return Array.from({ length: this.#n }, (_, i) => i + 1);
  }
}

export function identityOf(taskId: string, number: number, attempt: number): Pending['identity'] {
  const groupId = `e-${createHash('sha256').update(taskId).digest('hex').slice(0, 16)}`;
  const again = attempt === 1 ? '' : `-again-${attempt}`;
  return { rolloutId: `${groupId}-${number}${again}`, groupId, purpose: 'eval' };
}

export function resultOf(trajectory: Trajectory, number: number, attempt: number): RolloutResult {
  const { rolloutId, grade, startedAt, endedAt } = trajectory;
  const why = whyOf(trajectory);
  return {
    rolloutId,
    number,
    attempt,
    ending: endingOf(trajectory),
    reward: grade.kind === 'graded' ? grade.reward.value : null,
    ...(grade.kind === 'graded' && grade.reward.parts && { parts: grade.reward.parts }),
    ...(grade.kind === 'graded' && grade.reward.metrics && { metrics: grade.reward.metrics }),
    ...(why === undefined ? {} : { why }),
    // The clock of a machine may be set back.
    seconds: Math.max(0, endedAt - startedAt) / 1000,
  };
}

function whyOf({ outcome, grade }: Trajectory): string | undefined {
  if (outcome.kind === 'failed') return `${outcome.code}: ${outcome.message}`;
  if (grade.kind === 'failed') return `${grade.code}: ${grade.message}`;
  if (outcome.kind === 'rejected') return outcome.reason;
  if (outcome.kind === 'truncated') return `cut short by its limit of ${outcome.limit}`;
  return grade.kind === 'ungraded' ? grade.why : undefined;
}

/** `metadata.tags`, a list of texts, and `metadata.tag`, a text. */
function tagsOf(metadata: unknown): readonly string[] {
  if (typeof metadata !== 'object' || metadata === null) return [];
  const { tags, tag } = metadata as { readonly tags?: unknown; readonly tag?: unknown };
  const found = [...(Array.isArray(tags) ? (tags as readonly unknown[]) : [tags]), tag];
  return [...new Set(found.filter((each) => typeof each === 'string' && each !== ''))] as string[];
}

function keyOf(taskId: string, number: number): string {
  return `${number} ${taskId}`;
}
