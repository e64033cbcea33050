/**
 * What both AReaL shapes become: core's one workflow, around ONE instance per process. The instance is made when the workflow is set up, or
 * at its first rollout, so its constructor is the place for whatever costs a lot.
 */
import { type Workflow, type WorkflowContext, type WorkflowResult, workflowSymbol } from '../../core/contracts.ts';
import { boundary } from '../../core/errors.ts';
import type { Trajectory } from '../../core/types.ts';
import { reachInProcess } from './http-client.ts';
import { holdShared, releaseShared } from './shared.ts';
import { keepScalars, scalarsOf } from './workflow-context.ts';

/** A task's rollouts, as `shouldAccept` sees them. */
export interface EpisodeGroup {
  /** Of the rollouts that got one. */
  readonly rewards: readonly number[];
  readonly trajectories: readonly Trajectory[];
}

export interface ArealWorkflowParts<T> {
  readonly name: string;
  readonly isolation?: 'process' | undefined;
  readonly concurrency?: number | undefined;
  /** Called once in a process. */
  make(): T;
  /** Null: the rollout is rejected. */
  run(instance: T, ctx: WorkflowContext): Promise<WorkflowResult | null>;
  readonly shouldAccept?: ((instance: T, group: EpisodeGroup) => boolean) | undefined;
}

export function arealWorkflow<T>(parts: ArealWorkflowParts<T>): Workflow {
  const { name, concurrency, isolation = 'none', shouldAccept } = parts;
  let made: { readonly instance: T } | undefined;
  const instance = async (): Promise<T> =>
    await boundary('WORKFLOW_INIT_FAILED', `the constructor of ${name} failed`, () => {
      made ??= { instance: parts.make() };
      return made.instance;
    });
  return {
    [workflowSymbol]: true,
    name,
    roles: {},
    isolation,
    grading: 'when-missing',
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(shouldAccept === undefined
      ? {}
      : {
          accepts: (group) => {
            made ??= { instance: parts.make() };
            return shouldAccept(made.instance, { rewards: rewardsOf(group), trajectories: group });
          },
        }),
    setup: async () => {
      holdShared();
      await instance();
    },
    teardown: releaseShared,
    run: async (ctx) => {
      keepScalars(ctx);
      reachInProcess(ctx, ctx.model());
      const result = await parts.run(await instance(), ctx);
      if (result === null) return ctx.reject('returned_none');
      return { ...result, metrics: scalarsOf(ctx) };
    },
  };
}

function rewardsOf(group: readonly Trajectory[]): number[] {
  return group.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : []));
}
