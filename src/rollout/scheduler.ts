/**
 * Groups × concurrency: starts the rollouts of groups in order, never more than `concurrency` at once, and starts further
 * groups in place of those that `worthKeeping` turns down.
 *
 * Which groups are started does not depend on which rollout finishes first: they are numbered in the order they are asked
 * for, and the n-th is started exactly when fewer than `wanted` of the earlier ones were worth keeping.
 */
import type { Task, Trajectory } from '../core/types.ts';

export interface Group {
  readonly groupId: string;
  readonly task: Task;
  /** In the order of their place in the group. */
  readonly trajectories: readonly Trajectory[];
}

export interface GroupPlan {
  readonly groupId: string;
  readonly task: Task;
  readonly size: number;
}

export interface CollectOptions {
  /** Groups worth keeping that are wanted. */
  readonly wanted: number;
  /** Groups that may be started in all. */
  readonly atMost: number;
  readonly concurrency: number;
  /** The next group to run, or undefined when there is none. */
  readonly next: () => GroupPlan | undefined;
  readonly runOne: (plan: GroupPlan, place: number) => Promise<Trajectory>;
  readonly worthKeeping: (group: Group) => boolean;
}

/** All groups that were run, in the order they were started. The first error stops new rollouts and is thrown at the end. */
export async function collectGroups(options: CollectOptions): Promise<readonly Group[]> {
  const started: { plan: GroupPlan; trajectories: Trajectory[]; left: number }[] = [];
  const queue: (() => Promise<void>)[] = [];
  let failure: { readonly thrown: unknown } | undefined;
  let running = 0;

  return await new Promise<readonly Group[]>((resolve, reject) => {
    const start = (): void => {
      const plan = started.length < options.atMost ? options.next() : undefined;
      if (plan === undefined) return;
      const group = { plan, trajectories: new Array<Trajectory>(plan.size), left: plan.size };
      started.push(group);
      for (let place = 0; place < plan.size; place++) {
        queue.push(async () => {
          group.trajectories[place] = await options.runOne(plan, place);
          if (--group.left === 0 && !options.worthKeeping(toGroup(group))) start();
        });
      }
    };
    const pump = (): void => {
      while (running < options.concurrency && queue.length > 0 && failure === undefined) {
        running++;
        void queue
          .shift()?.()
          .catch((thrown: unknown) => {
            failure ??= { thrown };
          })
          .finally(() => {
            running--;
            pump();
          });
      }
      if (running > 0) return;
      if (failure !== undefined) reject(failure.thrown);
      else resolve(started.map(toGroup));
    };
    for (let i = 0; i < options.wanted; i++) start();
    pump();
  });
}

function toGroup({ plan, trajectories }: { readonly plan: GroupPlan; readonly trajectories: readonly Trajectory[] }): Group {
  return { groupId: plan.groupId, task: plan.task, trajectories };
}
