/**
 * What a run adds for a workflow that is a flow: the flow routes on its gateway, a door for each rollout, and the task of each, with its
 * answer, for the grader that a flow may ask on the way.
 */
import { runInRollout } from '../core/context.ts';
import type { GraderRunner, Workflow, WorkflowContext } from '../core/contracts.ts';
import { type FlowDoor, isFlow } from '../core/flow-door.ts';
import type { Task } from '../core/types.ts';
import { mountAgentFlow } from '../flows/agent-flow.ts';
import type { Gateway } from '../gateway/gateway.ts';
import type { RolloutParts } from '../rollout/runner.ts';
import type { Renderer } from '../tokens/renderer.ts';

export interface FlowRuns {
  readonly runWorkflow: NonNullable<RolloutParts['runWorkflow']>;
  /** Knows the task of the rollout while it runs. */
  during<T>(rolloutId: string, task: Task, run: () => Promise<T>): Promise<T>;
}

export interface FlowRunParts {
  readonly gateway: Gateway;
  readonly renderer: Renderer;
  readonly modelName: string;
  readonly grader?: GraderRunner | undefined;
  policyVersion(): number;
}

/** Undefined where the workflow is none: then nothing is mounted. */
export function flowRunsOf(workflow: Workflow, parts: FlowRunParts): FlowRuns | undefined {
  if (!isFlow(workflow)) return undefined;
  const tasks = new Map<string, Task>();
  const { gateway, ...options } = parts;
  mountAgentFlow(gateway, { ...options, taskOf: ({ uid }) => tasks.get(uid) });
  return {
    runWorkflow: ({ ctx }) => runInRollout(ctx, () => workflow.run(ctx, doorOf(gateway, ctx))),
    during: async (rolloutId, task, run) => {
      tasks.set(rolloutId, task);
      try {
        return await run();
      } finally {
        tasks.delete(rolloutId);
      }
    },
  };
}

function doorOf(gateway: Gateway, { rolloutId }: WorkflowContext): FlowDoor {
  const key = gateway.key('flow', { rollout: rolloutId });
  const { sampling } = gateway.session(rolloutId)!.spec;
  return { url: gateway.origin, key, fetch: gateway.fetch as typeof globalThis.fetch, sampling };
}
