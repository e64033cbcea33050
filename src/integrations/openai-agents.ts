/**
 * The policy as a `Model` of the OpenAI Agents SDK, and a `ModelProvider` that gives it for every model name.
 *
 * Calls `handle.generate`: no HTTP, and the same turn that the SDK's own client on the base URL would record. Handoffs are tools, as the
 * SDK means them. A stream gives the answer when it is complete.
 */
import type { GenerateRequest, Generation } from '../core/contracts.ts';
import type { Json, Tool } from '../core/types.ts';
import { type AnswerItem, type AnyItem, itemsOf, messagesOf } from './openai-agents-items.ts';
import { activeThread } from './openai-agents-session.ts';
import { given, refusePenalties, type ToolChoice, tokensOf, toolsFor, unsupported } from './request.ts';
import { handleOf, type Seat } from './seat.ts';

/** What is read of the SDK's request; its own type fits. */
export interface AgentRequest {
  readonly systemInstructions?: string | undefined;
  readonly input: string | readonly AnyItem[];
  readonly previousResponseId?: string | undefined;
  readonly conversationId?: string | undefined;
  readonly modelSettings: {
    readonly temperature?: number | undefined;
    readonly topP?: number | undefined;
    readonly maxTokens?: number | undefined;
    readonly toolChoice?: string | undefined;
    readonly frequencyPenalty?: number | undefined;
    readonly presencePenalty?: number | undefined;
  };
  readonly tools: readonly {
    readonly type: string;
    readonly name?: string;
    readonly description?: string;
    readonly parameters?: unknown;
  }[];
  readonly handoffs: readonly {
    readonly toolName: string;
    readonly toolDescription: string;
    readonly inputJsonSchema: unknown;
  }[];
  /** `text`, or a JSON schema with a name. */
  readonly outputType?: string | { readonly schema?: unknown };
  readonly signal?: AbortSignal | undefined;
}

interface Spent {
  readonly requests: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly totalTokens: number;
}

/** Fits the SDK's own class. */
class AgentUsage {
  requests: number;
  inputTokens: number;
  outputTokens: number;
  totalTokens: number;
  inputTokensDetails: Record<string, number>[] = [];
  outputTokensDetails: Record<string, number>[] = [];
  requestUsageEntries: undefined;

  constructor({ requests, inputTokens, outputTokens, totalTokens }: Spent) {
    this.requests = requests;
    this.inputTokens = inputTokens;
    this.outputTokens = outputTokens;
    this.totalTokens = totalTokens;
  }

  add({ requests, inputTokens, outputTokens, totalTokens }: Spent): void {
    this.requests += requests;
    this.inputTokens += inputTokens;
    this.outputTokens += outputTokens;
    this.totalTokens += totalTokens;
  }
}

export interface AgentResponse {
  usage: AgentUsage;
  output: AnswerItem[];
  responseId: string;
}

export type AgentEvent =
  | { type: 'response_started' }
  | { type: 'output_text_delta'; delta: string; itemId: string }
  | {
      type: 'response_done';
      response: {
        id: string;
        output: AnswerItem[];
        usage: Spent;
      };
    };

/** Fits `Model` of `@openai/agents`. */
export interface PolicyModel {
  getResponse(request: AgentRequest): Promise<AgentResponse>;
  getStreamedResponse(request: AgentRequest): AsyncIterable<AgentEvent>;
}

/** The policy in this seat; without one, in the rollout that the call happens in. */
export function policy(seat?: Seat): PolicyModel {
  return {
    getResponse: async (request) => {
      const generation = await generate(seat, request);
      return { usage: new AgentUsage(usageOf(generation)), output: itemsOf(generation), responseId: generation.id };
    },
    getStreamedResponse: (request) => streamed(seat, request),
  };
}

/** Fits `ModelProvider`: every model name is the policy. `roleOf` says in which role; without it, as `default`. */
export function policyProvider(roleOf?: (modelName: string | undefined) => Seat): {
  getModel(modelName?: string): PolicyModel;
} {
  return { getModel: (modelName) => policy(roleOf?.(modelName)) };
}

async function generate(seat: Seat, request: AgentRequest): Promise<Generation> {
  const thread = activeThread();
  const handle = thread === undefined ? handleOf(seat) : handleOf(seat).thread(thread);
  return await handle.generate(requestOf(request));
}

function requestOf(request: AgentRequest): GenerateRequest {
  const { modelSettings, signal } = request;
  const { temperature, topP, maxTokens, frequencyPenalty, presencePenalty } = modelSettings;
  refusePenalties({ frequencyPenalty, presencePenalty });
  if (request.previousResponseId !== undefined || request.conversationId !== undefined) {
    throw unsupported(
      'previousResponseId or conversationId',
      'without a server',
      'keep the conversation in a session or in the input',
    );
  }
  return {
    messages: messagesOf(request.systemInstructions, request.input),
    ...toolsFor(toolsOf(request), choiceOf(modelSettings.toolChoice)),
    ...given({ temperature, topP, maxTokens, signal, format: formatOf(request) }),
  };
}

/** Checked and marked on the turn, as over HTTP; what the policy says is not bent to it. */
function formatOf({ outputType }: AgentRequest): GenerateRequest['format'] {
  return typeof outputType === 'object' ? { schema: outputType.schema as Json } : undefined;
}

function toolsOf({ tools, handoffs }: AgentRequest): readonly Tool[] {
  const functions = tools.map(({ type, name = type, description, parameters }) => {
    if (type === 'function') return functionTool(name, description, parameters);
    throw unsupported(`tool ${JSON.stringify(name)}`, `of type ${JSON.stringify(type)}`, 'the policy has no tools of its own');
  });
  const transfers = handoffs.map((to) => functionTool(to.toolName, to.toolDescription, to.inputJsonSchema));
  return [...functions, ...transfers];
}

const functionTool = (name: string, description: string | undefined, parameters: unknown): Tool => ({
  type: 'function',
  function: { name, description: description ?? '', ...(parameters === undefined ? {} : { parameters: parameters as Json }) },
});

function choiceOf(choice: string | undefined): ToolChoice {
  if (choice === undefined || choice === 'auto' || choice === 'none' || choice === 'required') return choice ?? 'auto';
  return { tool: choice };
}

async function* streamed(seat: Seat, request: AgentRequest): AsyncGenerator<AgentEvent> {
  const generation = await generate(seat, request);
  const output = itemsOf(generation);
  yield { type: 'response_started' };
  for (const item of output) {
    if (item.type === 'message') yield { type: 'output_text_delta', delta: generation.text, itemId: item.id };
  }
  yield { type: 'response_done', response: { id: generation.id, output, usage: usageOf(generation) } };
}

function usageOf(generation: Generation): Spent {
  const { prompt = 0, sampled = 0 } = tokensOf(generation) ?? {};
  return { requests: 1, inputTokens: prompt, outputTokens: sampled, totalTokens: prompt + sampled };
}
