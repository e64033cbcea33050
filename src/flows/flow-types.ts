/** What a flow is made with and given: shared by the base class and by whoever runs one. */
import type { Json, PromptMessage } from '../core/types.ts';
import type { GatewayDoor, SamplingParams } from './gateway-client.ts';

/**
 * A row without its answer: what its `metadata` holds, as it is, and the names that training needs. A name of ours wins over the same
 * one of the row.
 */
export type FlowFields<Row extends object = Readonly<Record<string, Json>>> = Row & {
  /** The rollout. */
  readonly trajectoryUid: string;
  /** Its group: the rollouts of one prompt that are compared. */
  readonly promptUid: string;
  /** The text of the task. */
  readonly rawPrompt: string;
  /** The whole prompt; a copy of the rollout's own. */
  readonly prompt: PromptMessage[];
  readonly channel: 'train' | 'val';
};

/** What an instance is made with. */
export interface FlowSetup<Config = unknown> {
  readonly config: Config;
  readonly door: GatewayDoor;
}

export interface Flow {
  run(samplingParams: SamplingParams, fields: FlowFields): Promise<number>;
}

/** Made anew for each rollout. */
export type FlowClass = (new (setup: FlowSetup<never>) => Flow) & { readonly name: string };

/** A class and the config its instances get. */
export interface RegisteredFlow {
  readonly name: string;
  readonly flow: FlowClass;
  readonly config?: unknown;
}
