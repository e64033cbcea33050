/**
 * The base class of agent flows, and two built-in flows that need only the policy: a single step, and several steps with tool calls.
 *
 * A subclass that defines `run` is a flow and can be exported as an entry, unless it sets `static abstract = true`.
 */
import { type EntryModule, type Workflow, workflowSymbol } from '../../core/contracts.ts';
import { isConcrete } from '../../core/define.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import type { ByName, Tool, ToolCall } from '../../core/types.ts';
import { parseAssistant } from '../../tokens/response-parser.ts';
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
  readonly gatewayUrl: string;
  /** Aborts at the rollout's deadline or when the run stops. */
  readonly signal: AbortSignal;
  readonly #door: GatewayDoor;

  constructor({ config, door }: FlowSetup<Config>) {
    this.config = config;
    this.gatewayUrl = door.url;
    this.signal = door.signal;
    this.#door = door;
  }

  /** Runs the flow on one task. Returns the number of steps it made. */
  abstract run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number>;

  gatewayGenerate(fields: GenerateFields): Promise<GatewayGeneration> {
    return generate(this.#door, fields);
  }

  /** Names the turns to train and their rewards. `channel` defaults to the trajectory's own. Returns the number of accepted steps. */
  gatewaySubmitSteps(steps: readonly (Step | StepFields)[], channel?: 'train' | 'val'): Promise<number> {
    const made = steps.map((step) => (step instanceof Step ? step : new Step(step)));
    return submitSteps(this.#door, made, channel);
  }

  /** Grades this conversation. The gateway supplies the task's answer. */
  gatewayComputeReward(fields: RewardFields): Promise<GatewayReward> {
    return computeReward(this.#door, fields);
  }

  protected get gatewayDoor(): GatewayDoor {
    return this.#door;
  }

  static readonly [workflowSymbol]: (this: unknown, module: EntryModule) => Workflow | undefined = lowerFlow;
}

export function lowerFlow(this: unknown): Workflow | undefined {
  const flow = this as FlowClass;
  return isConcrete(flow, 'run') ? flowWorkflow({ name: flow.name || 'flow', flow }, flowRegistry()) : undefined;
}

/** One prompt, one completion, one step: for tasks that are a single question. */
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

/** Also a call that cannot be read: the policy is told so, and can learn from it. */
const TOOL_CALL = /<tool_call>\s*(.*?)\s*<\/tool_call>/s;
const MOST_STEPS = 32;

type Called = { readonly name: string; readonly arguments?: ByName<unknown> };

export interface FlowTool {
  readonly description?: string;
  readonly parameters?: NonNullable<Tool['function']['parameters']>;
  run(given: ByName<unknown>): unknown;
}

/**
 * A flow of several turns, each a step of one trajectory: the policy calls tools until a turn is terminal. Override `run`, or only its
 * parts: `tools`, `messagesOf`, `isTerminal`, `executeTool`.
 */
export abstract class MultiStepAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  readonly tools: ByName<FlowTool> = {};
  /** The flow ends after this many steps, even if the last turn calls a tool. */
  readonly maxSteps: number = MOST_STEPS;
  /** Calls by the text they were made in, as the gateway read them: it knows how the model writes calls. */
  readonly #calls = new Map<string, readonly Pick<ToolCall, 'function'>[]>();

  get toolSchemas(): readonly Tool[] {
    if (Array.isArray(this.tools)) {
      const hint = 'write tools = { lookup: { description, parameters, run } }';
      throw new TrainyardError('WORKFLOW_INVALID', 'tools is a list, expected an object of tools by name', hint);
    }
    return Object.entries(this.tools).map(([name, { description, parameters }]) => ({
      type: 'function',
      function: { name, ...defined({ description, parameters }) },
    }));
  }

  messagesOf(fields: FlowFields<Row>): FlowMessage[] {
    return [...fields.prompt];
  }

  override async gatewayGenerate(fields: GenerateFields): Promise<GatewayGeneration> {
    const said = await super.gatewayGenerate(fields);
    this.#calls.set(said.text, said.message.tool_calls ?? []);
    return said;
  }

  #callsIn(text: string): readonly Pick<ToolCall, 'function'>[] {
    return this.#calls.get(text) ?? parseAssistant(text).toolCalls.map((call) => ({ function: call }));
  }

  /** Whether this turn ends the flow. By default: it calls no tool, in whatever format the model writes calls. */
  isTerminal(text: string): boolean {
    return this.#callsIn(text).length === 0 && !TOOL_CALL.test(text);
  }

  /** Runs the tool calls in `text`. Returns the result as JSON, a list if there are several; an error for an invalid call. */
  async executeTool(text: string): Promise<string> {
    const calls = this.#callsIn(text);
    if (calls.length === 0) return await this.#resultOf(() => JSON.parse(TOOL_CALL.exec(text)?.[1] ?? '') as Called);
    const called = calls.map(({ function: { name, arguments: given } }) => () => ({ name, arguments: JSON.parse(given) }));
    const results = await Promise.all(called.map((call) => this.#resultOf(call)));
    return results.length === 1 ? results[0]! : `[${results.join(',')}]`;
  }

  async #resultOf(called: () => Called): Promise<string> {
    try {
      const { name, arguments: given } = called();
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
