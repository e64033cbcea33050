/**
 * The base of all agent flows: config, the gateway, and `run`, which says how many steps it made; and the two flows that need nothing but
 * the policy: one step, and several steps with tools between them.
 *
 * A subclass that has a `run` of its own is a flow and can be exported as an entry; one without stays abstract. `static abstract = true`
 * says that a class with a `run` is meant as a base all the same.
 */
import { type EntryModule, type Workflow, workflowSymbol } from '../core/contracts.ts';
import { isConcrete } from '../core/define.ts';
import { messageOf } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { Tool } from '../core/types.ts';
import { type FlowClass, type FlowFields, type FlowSetup, flowRegistry, register } from './flow-registry.ts';
import { flowWorkflow } from './flow-workflow.ts';
import {
  computeReward,
  type FlowMessage,
  type GatewayDoor,
  type GatewayGeneration,
  type GatewayReward,
  type GenerateFields,
  generate,
  type RewardFields,
  type SamplingParams,
  Step,
  type StepFields,
  submitSteps,
} from './gateway-client.ts';

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

  static readonly [workflowSymbol]: (this: unknown, module: EntryModule) => Workflow | undefined = lowerFlow;
}

/** `this`: the class. */
export function lowerFlow(this: unknown): Workflow | undefined {
  const flow = this as FlowClass;
  return isConcrete(flow, 'run') ? flowWorkflow({ name: flow.name || 'flow', flow }, flowRegistry()) : undefined;
}

/** One prompt, one answer, one step: for tasks that are each a question by themselves. Overriding `run` makes it another flow. */
export class SingleStepSingleTurnAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  async run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const { trajectoryUid, promptUid, prompt: messages } = fields;
    const said = await this.gatewayGenerate({ ...samplingParams, trajectoryUid, promptUid, messages });
    const { promptIds, responseIds, generationId } = said;
    await this.gatewaySubmitSteps([{ promptIds, responseIds, generationId, trajectoryUid, promptUid, isLast: true }]);
    return 1;
  }
}

export const SINGLE_STEP = 'single_step_single_turn_agent';
register(SINGLE_STEP)(SingleStepSingleTurnAgentFlow);

const TOOL_CALL = /<tool_call>\s*(.*?)\s*<\/tool_call>/s;
const MOST_STEPS = 32;

/** A tool as the policy is told of it, and what it does. */
export interface FlowTool {
  readonly description?: string;
  readonly parameters?: NonNullable<Tool['function']['parameters']>;
  run(given: Readonly<Record<string, unknown>>): unknown;
}

/**
 * A flow of several turns, each a step: the policy speaks, a tool answers, until it says something that ends it. The steps are one
 * trajectory. `run` can be overridden as a whole, or only what it is made of: `tools`, `messagesOf`, `isTerminal`, `executeTool`.
 */
export abstract class MultiStepAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  /** By name. */
  readonly tools: Readonly<Record<string, FlowTool>> = {};
  /** It ends after so many steps whatever the policy says. */
  readonly maxSteps: number = MOST_STEPS;

  /** The tools as the policy is told of them. */
  get toolSchemas(): readonly Tool[] {
    return Object.entries(this.tools).map(([name, { description, parameters }]) => ({
      type: 'function',
      function: { name, ...defined({ description, parameters }) },
    }));
  }

  /** How the conversation begins. */
  messagesOf(fields: FlowFields<Row>): FlowMessage[] {
    return [...fields.prompt];
  }

  /** Whether this is the last thing to be said: what calls no tool. */
  isTerminal(text: string): boolean {
    return !TOOL_CALL.test(text);
  }

  /** What the tool that this text calls says, in words. A call that is wrong is answered, too: the policy can learn from it. */
  async executeTool(text: string): Promise<string> {
    try {
      type Call = { readonly name: string; readonly arguments?: Record<string, unknown> };
      const { name, arguments: given } = JSON.parse(TOOL_CALL.exec(text)?.[1] ?? '') as Call;
      const tool = Object.hasOwn(this.tools, name) ? this.tools[name] : undefined;
      return JSON.stringify(tool === undefined ? { error: 'no such tool' } : await tool.run(given ?? {}));
    } catch (thrown) {
      return JSON.stringify({ error: messageOf(thrown) });
    }
  }

  async run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const { trajectoryUid, promptUid } = fields;
    const messages = this.messagesOf(fields);
    const tools = this.toolSchemas.length > 0 ? { tools: this.toolSchemas } : {};
    for (let stepIndex = 0; ; stepIndex++) {
      const said = await this.gatewayGenerate({ ...samplingParams, trajectoryUid, promptUid, messages, ...tools });
      const { text, promptIds, responseIds, generationId } = said;
      const isLast = this.isTerminal(text) || stepIndex + 1 >= this.maxSteps;
      await this.gatewaySubmitSteps([{ promptIds, responseIds, generationId, trajectoryUid, promptUid, stepIndex, isLast }]);
      if (isLast) return stepIndex + 1;
      messages.push({ role: 'assistant', content: text }, { role: 'tool', content: await this.executeTool(text) });
    }
  }
}
