/**
 * Held-out evaluation: every task once, at temperature 0.
 *
 * A task whose rollout or grading failed is in `n` and not a success; it is reported, never dropped from the denominator.
 */
import type { Score } from '../core/events.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { collectGroups } from '../rollout/scheduler.ts';
import { type EvalSettings, evaluationSampling } from './settings.ts';
import { gradedRewards } from './signal.ts';
import type { Rollouts } from './workshop.ts';

export interface Evaluation {
  readonly score: Score;
  readonly seconds: number;
  readonly trajectories: readonly Trajectory[];
}

/** `name` becomes part of the rollout ids, so each evaluation of a run needs its own. */
export async function evaluate(
  rollouts: Rollouts,
  tasks: readonly Task[],
  name: string,
  settings: Pick<EvalSettings, 'concurrency' | 'maxTokens'>,
): Promise<Evaluation> {
  const started = performance.now();
  const sampling = evaluationSampling(settings);
  let next = 0;
  const groups = await collectGroups({
    wanted: tasks.length,
    atMost: tasks.length,
    concurrency: settings.concurrency,
    next: () => {
      const task = tasks[next++];
      return task === undefined ? undefined : { groupId: `${name}-${String(next).padStart(5, '0')}`, task, size: 1 };
    },
    runOne: ({ groupId, task }) => rollouts.run({ rolloutId: groupId, groupId, purpose: 'eval' }, task, sampling),
    worthKeeping: () => true,
  });
  rollouts.settle();
  const trajectories = groups.flatMap((group) => group.trajectories);
  return { score: scoreOf(trajectories), seconds: (performance.now() - started) / 1000, trajectories };
}

export function scoreOf(trajectories: readonly Trajectory[]): Score {
  const rewards = gradedRewards(trajectories);
  const n = trajectories.length;
  return {
    success: rewards.filter((reward) => reward >= 1).length / n,
    meanReward: rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length,
    n,
    failed: n - rewards.length,
  };
}
