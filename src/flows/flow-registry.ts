/**
 * Which flows there are, by name: those that modules registered, and above them those of a flows file.
 *
 * `register` is a plain function, because a class that Node runs by stripping types has no decorators: `register('x')(MyFlow)`.
 */
import { TrainyardError } from '../core/errors.ts';
import type { FlowClass, RegisteredFlow } from './flow-types.ts';

/** Shared by all copies of the package in a process. */
const KEY = Symbol.for('trainyard.flows');
const shared = globalThis as unknown as Record<symbol, Map<string, RegisteredFlow> | undefined>;
const registered: Map<string, RegisteredFlow> = shared[KEY] ?? new Map();
shared[KEY] = registered;

export const FLOW_NAME = /^[\w.:-]{1,100}$/;

/** Gives the class back, so that it can be exported on the same line. A name that is another class's is refused. */
export function register(name: string): <T extends FlowClass>(flow: T) => T {
  if (typeof name !== 'string' || !FLOW_NAME.test(name)) {
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `register: expected a name of letters, digits and . : - _, found ${JSON.stringify(name)}`,
    );
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

/** What modules registered, at the moment of the question; `configured` wins. */
export function flowRegistry(configured: readonly RegisteredFlow[] = []): FlowRegistry {
  const own = new Map(configured.map((flow) => [flow.name, flow]));
  const names = (): readonly string[] => [...new Set([...own.keys(), ...registered.keys()])].toSorted();
  return {
    get names() {
      return names();
    },
    flow: (name) => {
      const found = own.get(name) ?? registered.get(name);
      if (found !== undefined) return found;
      throw new TrainyardError(
        'WORKFLOW_NOT_FOUND',
        `no flow ${JSON.stringify(name)}; there are ${names().join(', ') || 'none'}`,
        {
          hint: `register it: register('${name}')(YourFlow), or list it in the flows file`,
        },
      );
    },
  };
}
