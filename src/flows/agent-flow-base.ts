/**
 * The base of all agent flows: config, the gateway, and `run`, which says how many steps it made.
 *
 * A subclass that has a `run` of its own is a flow and can be exported as an entry; one without stays abstract. `static abstract = true`
 * says that a class with a `run` is meant as a base all the same.
 */

import { type EntryModule, workflowSymbol } from '../core/contracts.ts';
import { isConcrete } from '../core/define.ts';
import type { FlowWorkflow } from '../core/flow-door.ts';
import { flowRegistry } from './flow-registry.ts';
import type { FlowClass, FlowFields, FlowSetup } from './flow-types.ts';
import { flowWorkflow } from './flow-workflow.ts';
import {
  computeReward,
  type GatewayDoor,
  type GatewayGeneration,
  type GatewayReward,
  type GenerateFields,
  generate,
  type RewardFields,
  type SamplingParams,
  submitSteps,
} from './gateway-client.ts';
import { Step, type StepFields } from './step.ts';

export abstract class AgentFlowBase<Config = unknown, Row extends object = Record<never, never>> {
  static readonly abstract: boolean = true;
  readonly config: Config;
  /** Origin of the gateway. */
  readonly gatewayUrl: string;
  /** Aborts at the end of the rollout's time, or when the run stops. */
  readonly signal: AbortSignal;
  readonly #door: GatewayDoor;

  constructor({ config, door }: FlowSetup<Config>) {
    this.config = config;
    this.gatewayUrl = door.url;
    this.signal = door.signal;
    this.#door = door;
  }

  /** The number of steps it made. */
  abstract run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number>;

  /** One turn of the policy, from messages or from token ids. */
  gatewayGenerate(fields: GenerateFields): Promise<GatewayGeneration> {
    return generate(this.#door, fields);
  }

  /** Says which turns are trained, and what they earned. Without a channel: the trajectory's own. Gives how many were accepted. */
  gatewaySubmitSteps(steps: readonly (Step | StepFields)[], channel?: 'train' | 'val'): Promise<number> {
    const made = steps.map((step) => (step instanceof Step ? step : new Step(step)));
    return submitSteps(this.#door, made, channel);
  }

  /** What the grader says of this conversation; the answer of the task is joined by the gateway. */
  gatewayComputeReward(fields: RewardFields): Promise<GatewayReward> {
    return computeReward(this.#door, fields);
  }

  /** For the classes made of this one that speak the rest of the protocol. */
  protected get gatewayDoor(): GatewayDoor {
    return this.#door;
  }

  static readonly [workflowSymbol]: (this: unknown, module: EntryModule) => FlowWorkflow | undefined = lowerFlow;
}

/** `this`: the class. */
export function lowerFlow(this: unknown): FlowWorkflow | undefined {
  const flow = this as FlowClass;
  return isConcrete(flow, 'run') ? flowWorkflow({ name: flow.name || 'flow', flow }, flowRegistry()) : undefined;
}
