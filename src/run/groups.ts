/** The groups of a run: which task each has, how its rollouts are named and sampled, and how far they may run ahead. */
import type { Workflow } from '../core/contracts.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';
import { GroupScheduler } from '../rollout/scheduler.ts';
import { hasSignal } from '../trainer/advantages.ts';
import type { RunPlan } from './plan.ts';
import type { Resumption } from './resume.ts';
import { samplingAt } from './settings.ts';
import { TaskOrder } from './task-order.ts';
import type { Rollouts } from './workshop.ts';

export function groupsOf(
  { settings, tasks, entry }: Pick<RunPlan, 'settings' | 'tasks' | 'entry'>,
  from: Resumption,
  rollouts: Rollouts,
  onProgress: (done: number, of: number) => void,
): GroupScheduler {
  const { groupsPerStep, group, refill, staleness, concurrency, steps, seed } = settings;
  const order = new TaskOrder(tasks, seed);
  const sampling = samplingAt(settings.temperature, settings);
  return new GroupScheduler(
    {
      ...{ refill, staleness, concurrency, onProgress },
      hasSignal: (group) => hasSignal(group) && isAccepted(entry.workflow, group),
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

/** A group that the workflow does not want is as good as one without signal. Throws WORKFLOW_FAILED for what is no answer. */
export function isAccepted({ name, accepts }: Pick<Workflow, 'name' | 'accepts'>, group: readonly Trajectory[]): boolean {
  if (accepts === undefined) return true;
  const who = `the workflow ${name} was asked whether to accept group ${group[0]?.groupId}`;
  let accepted: unknown;
  try {
    // A copy: what it changes there is still trained as it was.
    accepted = accepts(structuredClone(group));
  } catch (cause) {
    throw new TrainyardError('WORKFLOW_FAILED', `${who} and threw ${describeThrown(cause)}`, { cause });
  }
  if (typeof accepted === 'boolean') return accepted;
  throw new TrainyardError('WORKFLOW_FAILED', `${who} and returned ${describeValue(accepted)}, expected true or false`, {
    hint: 'return a boolean, not a promise: whoever asks does not wait',
  });
}
