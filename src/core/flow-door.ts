/**
 * The door of trusted code: a workflow that carries `flowSymbol` is given, beside its context, a key of its rollout that may also submit
 * steps and ask for a reward at the routes of the agent-flow protocol. Other workflows never hold one.
 */
import type { Workflow, WorkflowContext } from './contracts.ts';
import type { SamplingSettings } from './types.ts';

export const flowSymbol: unique symbol = Symbol.for('trainyard.flow') as never;

export interface FlowDoor {
  /** Origin of the gateway. */
  readonly url: string;
  /** Of the one rollout. */
  readonly key: string;
  /** In process the same routes as over HTTP. */
  readonly fetch: typeof globalThis.fetch;
  /** How the run samples. */
  readonly sampling: SamplingSettings;
}

export interface FlowWorkflow extends Workflow {
  readonly [flowSymbol]: true;
  /** Without a door, which only the process of the gateway gives, it throws. */
  run(ctx: WorkflowContext, door?: FlowDoor): Promise<unknown>;
}

export function isFlow(workflow: Workflow): workflow is FlowWorkflow {
  return flowSymbol in workflow;
}
