/**
 * What both AReaL shapes become: core's one workflow, around ONE instance per process. The instance is made when the workflow is set up, or
 * at its first rollout, so its constructor is the place for whatever costs a lot.
 */
import { type Workflow, type WorkflowContext, type WorkflowResult, workflowSymbol } from '../core/contracts.ts';
import { boundary } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';
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
  readonly env?: readonly string[] | undefined;
  readonly concurrency?: number | undefined;
  /** Called once in a process. */
  make(): T;
  /** Null: the rollout is rejected. */
  run(instance: T, ctx: WorkflowContext): Promise<WorkflowResult | null>;
  readonly shouldAccept?: ((group: EpisodeGroup, instance: () => T) => boolean) | undefined;
}

export function arealWorkflow<T>(parts: ArealWorkflowParts<T>): Workflow {
  const { name, env, concurrency, isolation = 'none', shouldAccept } = parts;
  let made: { readonly instance: T } | undefined;
  const instance = (): T => {
    made ??= { instance: parts.make() };
    return made.instance;
  };
  const ready = (): Promise<T> => boundary('WORKFLOW_INIT_FAILED', `the constructor of ${name} failed`, instance);
  const accepts = (group: readonly Trajectory[]): boolean =>
    shouldAccept!({ rewards: rewardsOf(group), trajectories: group }, instance);
  return {
    [workflowSymbol]: true,
    name,
    roles: {},
    isolation,
    grading: 'when-missing',
    ...(env === undefined ? {} : { env }),
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(shouldAccept === undefined ? {} : { accepts }),
    setup: async () => {
      holdShared();
      await ready();
    },
    teardown: releaseShared,
    run: async (ctx) => {
      keepScalars(ctx);
      reachInProcess(ctx, ctx.model());
      const result = await parts.run(await ready(), ctx);
      if (result === null) return ctx.reject('returned_none');
      return { ...result, metrics: scalarsOf(ctx) };
    },
  };
}

function rewardsOf(group: readonly Trajectory[]): number[] {
  return group.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : []));
}
