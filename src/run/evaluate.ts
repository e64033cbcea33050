/**
 * Held-out evaluation: every task once, at temperature 0.
 *
 * A task whose rollout or grading failed is in `n` and not a success; it is reported, never dropped from the denominator.
 */
import { mapConcurrently } from '../core/async.ts';
import type { Score } from '../core/events.ts';
import { meanOf, wilson } from '../core/statistics.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { type EvalSettings, samplingAt } from './settings.ts';
import { type Ending, endingOf, gradedRewards, meansOf } from './signal.ts';
import type { Rollouts } from './workshop.ts';

export interface EvaluateOptions {
  /** Steps taken: part of the rollout ids, so that one policy is evaluated once on one task. */
  readonly step: number;
  readonly settings: Pick<EvalSettings, 'concurrency' | 'callTokens'>;
  /** Ends the evaluation early, without a result. */
  readonly halt?: AbortSignal | undefined;
  readonly onProgress?: ((done: number, of: number) => void) | undefined;
}

/** The trajectories in the order of the tasks, or undefined when it was halted. */
export async function evaluate(
  rollouts: Rollouts,
  tasks: readonly NumberedTask[],
  { step, settings, halt, onProgress }: EvaluateOptions,
): Promise<readonly Trajectory[] | undefined> {
  const sampling = samplingAt(0, settings);
  let done = 0;
  const one = async ({ task, number }: NumberedTask): Promise<Trajectory> => {
    const rolloutId = evaluationId(step, number);
    const trajectory = await rollouts.run({ rolloutId, groupId: rolloutId, purpose: 'eval' }, task, sampling);
    onProgress?.(++done, tasks.length);
    return trajectory;
  };
  const trajectories = await mapConcurrently(tasks, settings.concurrency, one, halt);
  if (trajectories !== undefined) rollouts.settle();
  return trajectories;
}

/** A held-out task and its place in the file, from 1. */
export interface NumberedTask {
  readonly task: Task;
  readonly number: number;
}

export function numbered(tasks: readonly Task[]): readonly NumberedTask[] {
  return tasks.map((task, index) => ({ task, number: index + 1 }));
}

export function evaluationId(step: number, number: number): string {
  return `e${String(step).padStart(6, '0')}-${String(number).padStart(5, '0')}`;
}

export function scoreOf(trajectories: readonly Trajectory[]): Score {
  const rewards = gradedRewards(trajectories);
  const endings = trajectories.map(endingOf);
  const n = trajectories.length;
  const count = (ending: Ending): number => endings.filter((one) => one === ending).length;
  const success = n === 0 ? 0 : count('solved') / n;
  return {
    success,
    ci: wilson(success, n),
    meanReward: rewards.length === 0 ? null : meanOf(rewards),
    n,
    failed: count('failed'),
    ungraded: count('ungraded'),
    ...meansOf(trajectories),
  };
}
