/**
 * The registry of flows by name: flows that modules register, overridden by those of a flows file. `register` is a decorator of both kinds,
 * `@register('x')`, and a plain function, `register('x')(MyFlow)`, for who runs without tsx.
 */
import { TrainyardError } from '../../core/errors.ts';
import type { Json, PromptMessage } from '../../core/types.ts';
import type { GatewayDoor, SamplingParams } from './gateway-client.ts';

/** The row a flow sees, never with its answer: its `metadata` fields, and the names that training needs, which take precedence. */
export type FlowFields<Row extends object = Readonly<Record<string, Json>>> = Row & {
  /** The rollout. */
  readonly trajectoryUid: string;
  /** The group: rollouts of one prompt are compared with each other. */
  readonly promptUid: string;
  /** The text of the last user message, else of the last message. */
  readonly rawPrompt: string;
  /** The whole prompt, as the rollout's own copy. */
  readonly prompt: PromptMessage[];
  readonly channel: 'train' | 'val';
};

export interface FlowSetup<Config = unknown> {
  readonly config: Config;
  readonly door: GatewayDoor;
}

interface Flow {
  run(samplingParams: SamplingParams, fields: FlowFields): Promise<number>;
}

/** Instantiated once per rollout. */
export type FlowClass = (new (setup: FlowSetup<never>) => Flow) & { readonly name: string };

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

/** Returns the class, so that it can be exported on the same line. Throws if the name belongs to another class. */
export function register(name: string): <T extends FlowClass>(flow: T) => T {
  if (typeof name !== 'string' || !FLOW_NAME.test(name)) {
    const found = `register: expected a name of letters, digits and . : - _, found ${JSON.stringify(name)}`;
    throw new TrainyardError('WORKFLOW_INVALID', found);
  }
  return (flow) => {
    checkFlow(flow, `register('${name}')`);
    const known = registered.get(name)?.flow;
    if (known !== undefined && known !== (flow as FlowClass)) {
      throw new TrainyardError(
        'WORKFLOW_AMBIGUOUS',
        `the flow ${name} is registered already, as ${known.name}`,
        'give each flow a name of its own',
      );
    }
    registered.set(name, { name, flow });
    return flow;
  };
}

export function checkFlow(flow: unknown, where: string): asserts flow is FlowClass {
  if (typeof flow === 'function' && typeof flow.prototype?.run === 'function') return;
  throw new TrainyardError(
    'WORKFLOW_INVALID',
    `${where}: expected a class with an async run(samplingParams, fields)`,
    'extend AgentFlowBase, or one of the classes made of it',
  );
}

export interface FlowRegistry {
  readonly names: readonly string[];
  /** Throws WORKFLOW_NOT_FOUND, listing the known names, if the name is unknown. */
  flow(name: string): RegisteredFlow;
}

/** A live view: includes flows registered later. `configured` takes precedence. */
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
      throw new TrainyardError(
        'WORKFLOW_NOT_FOUND',
        message,
        `register it: register('${name}')(YourFlow), or list it in the flows file`,
      );
    },
  };
}
