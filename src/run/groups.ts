/** The groups of a run: which task each has, how its rollouts are named and sampled, and how far they may run ahead. */
import { GroupScheduler } from '../rollout/scheduler.ts';
import { hasSignal } from '../trainer/advantages.ts';
import type { RunPlan } from './plan.ts';
import type { Resumption } from './resume.ts';
import { trainingSampling } from './settings.ts';
import { TaskOrder } from './task-order.ts';
import type { Rollouts } from './workshop.ts';

export function groupsOf(
  { settings, tasks }: Pick<RunPlan, 'settings' | 'tasks'>,
  from: Resumption,
  rollouts: Rollouts,
  onProgress: (done: number, of: number) => void,
): GroupScheduler {
  const { groupsPerStep, group, refill, staleness, concurrency, steps, seed } = settings;
  const order = new TaskOrder(tasks, seed);
  const sampling = trainingSampling(settings);
  return new GroupScheduler(
    {
      ...{ refill, staleness, concurrency, hasSignal, onProgress },
      batchSize: groupsPerStep,
      groupSize: group,
      lastVersion: steps,
      plan: (number) => ({ groupId: `g${String(number).padStart(6, '0')}`, task: order.at(number) }),
      runOne: ({ groupId, task }, place, signal) =>
        rollouts.run({ rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' }, task, sampling, signal),
    },
    { version: from.step, groups: from.groups },
  );
}
