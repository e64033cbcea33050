/**
 * Which flows there are, by name: those that modules registered, and above them those of a flows file; and what a flow is made with and
 * given.
 *
 * `register` is a plain function, because a class that Node runs by stripping types has no decorators: `register('x')(MyFlow)`.
 */
import { TrainyardError } from '../core/errors.ts';
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

/** Shared by all copies of the package in a process. */
const KEY = Symbol.for('trainyard.flows');
const shared = globalThis as unknown as Record<symbol, Map<string, RegisteredFlow> | undefined>;
const registered: Map<string, RegisteredFlow> = shared[KEY] ?? new Map();
shared[KEY] = registered;

export const FLOW_NAME = /^[\w.:-]{1,100}$/;

/** Gives the class back, so that it can be exported on the same line. A name that is another class's is refused. */
export function register(name: string): <T extends FlowClass>(flow: T) => T {
  if (typeof name !== 'string' || !FLOW_NAME.test(name)) {
    const found = `register: expected a name of letters, digits and . : - _, found ${JSON.stringify(name)}`;
    throw new TrainyardError('WORKFLOW_INVALID', found);
  }
  return (flow) => {
    checkFlow(flow, `register('${name}')`);
    const known = registered.get(name)?.flow;
    if (known !== undefined && known !== (flow as FlowClass)) {
      throw new TrainyardError('WORKFLOW_AMBIGUOUS', `the flow ${name} is registered already, as ${known.name}`, {
        hint: 'give each flow a name of its own',
      });
    }
    registered.set(name, { name, flow });
    return flow;
  };
}

export function checkFlow(flow: unknown, where: string): asserts flow is FlowClass {
  if (typeof flow === 'function' && typeof flow.prototype?.run === 'function') return;
  throw new TrainyardError('WORKFLOW_INVALID', `${where}: expected a class with an async run(samplingParams, fields)`, {
    hint: 'extend AgentFlowBase, or one of the classes made of it',
  });
}

export interface FlowRegistry {
  readonly names: readonly string[];
  /** Throws where there is none of this name, with the names there are. */
  flow(name: string): RegisteredFlow;
}

/** What modules have registered whenever it is asked; `configured` wins. */
export function flowRegistry(configured: readonly RegisteredFlow[] = []): FlowRegistry {
  const own = new Map(configured.map((flow) => [flow.name, flow]));
  return {
    get names() {
      return [...new Set([...own.keys(), ...registered.keys()])].toSorted();
    },
    flow(name) {
      const found = own.get(name) ?? registered.get(name);
      if (found !== undefined) return found;
      const message = `no flow ${JSON.stringify(name)}; there are ${this.names.join(', ') || 'none'}`;
      throw new TrainyardError('WORKFLOW_NOT_FOUND', message, {
        hint: `register it: register('${name}')(YourFlow), or list it in the flows file`,
      });
    },
  };
}
