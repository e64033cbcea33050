/**
 * The policy as a `Model` of Strands Agents and, in the Osmosis style, an `Agent` whose model is the policy of its rollout. Calls
 * `handle.generate`: no HTTP, and the same turn that a client on the base URL records. Streams deliver the completion once it is complete,
 * each tool call as a separate block. Messages return as recorded. Cache points and guard content are skipped; images and documents are
 * refused.
 */
import {
  Agent,
  type AgentConfig,
  AgentResult,
  type BaseModelConfig,
  ContextWindowOverflowError,
  type InvokeArgs,
  type InvokeOptions,
  MaxTokensError,
  type MessageData,
  Model,
  type ModelStreamEvent,
  ModelThrottledError,
  type Message as SdkMessage,
  type ToolChoice as StrandsToolChoice,
  type StreamOptions,
  type ToolSpec,
} from '@strands-agents/sdk';
import type { SampleContext } from '../core/context.ts';
import type { GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { checkNames } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Message, PromptMessage, Tool } from '../core/types.ts';
import {
  activeSamples,
  assistantOf,
  endOf,
  functionTool,
  given,
  handleOf,
  inCamelCase,
  isJsonObject,
  nameOf,
  notText,
  placeholderUsed,
  type Said,
  type Seat,
  sampleView,
  type ToolChoice,
  tokensOf,
  toolCall,
  toolsFor,
} from './request.ts';

export interface PolicyModelConfig extends BaseModelConfig {
  topK?: number;
  /** The completion ends before the first of these texts. */
  stop?: readonly string[];
}

export class PolicyModel extends Model<PolicyModelConfig> {
  readonly #seat: Seat;
  #config: PolicyModelConfig;

  /** The policy in this seat; without a seat, in the rollout that the call happens in. */
  constructor(seat?: Seat, config: PolicyModelConfig = {}) {
    super();
    this.#seat = seat;
    this.#config = { modelId: nameOf(seat), ...config };
  }

  updateConfig(config: PolicyModelConfig): void {
    this.#config = { ...this.#config, ...config };
  }

  getConfig(): PolicyModelConfig {
    return { ...this.#config };
  }

  /** The handle for the current call. Override to choose the seat elsewhere. */
  protected handle(): ModelHandle {
    return handleOf(this.#seat);
  }

  async *stream(messages: SdkMessage[], options: StreamOptions = {}): AsyncIterable<ModelStreamEvent> {
    const started = performance.now();
    const generation = await generate(this.handle(), requestOf(this.#config, messages, options));
    yield* eventsOf(generation, performance.now() - started);
  }
}

function requestOf(config: PolicyModelConfig, messages: SdkMessage[], options: StreamOptions): GenerateRequest {
  const { temperature, topP, topK, maxTokens, stop } = config;
  return {
    messages: messagesOf(options.systemPrompt, messages),
    ...toolsFor(toolsOf(options.toolSpecs), choiceOf(options.toolChoice)),
    ...given({ temperature, topP, topK, maxTokens, stop, signal: options.cancelSignal }),
  };
}

/** Throws the SDK's own errors where the SDK acts on them. */
async function generate(handle: ModelHandle, request: GenerateRequest): Promise<Generation> {
  try {
    return await handle.generate(request);
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError)) throw thrown;
    if (thrown.code === 'CONTEXT_OVERFLOW')
      throw Object.assign(new ContextWindowOverflowError(thrown.message), { cause: thrown });
    if (thrown.code === 'ENGINE_BUSY') throw new ModelThrottledError(thrown.message, { cause: thrown });
    throw thrown;
  }
}

function toolsOf(specs: readonly ToolSpec[] = []): readonly Tool[] {
  return specs.map(({ name, description, inputSchema: parameters }) => functionTool({ name, description, parameters }));
}

function choiceOf(choice: StrandsToolChoice | undefined): ToolChoice {
  if (choice === undefined || 'auto' in choice) return 'auto';
  return 'any' in choice ? 'required' : { tool: choice.tool.name };
}

function* eventsOf(generation: Generation, latencyMs: number): Generator<ModelStreamEvent> {
  const { message, text, toolCalls } = generation;
  yield { type: 'modelMessageStartEvent', role: 'assistant' };
  if (message.reasoning) yield* block({ type: 'reasoningContentDelta', text: message.reasoning });
  if (text !== '') yield* block({ type: 'textDelta', text });
  for (const { id: toolUseId, function: call } of toolCalls) {
    const start = { type: 'toolUseStart', name: call.name, toolUseId } as const;
    yield* block({ type: 'toolUseInputDelta', input: inputOf(call.arguments) }, start);
  }
  const stopReason = endOf(generation, { length: 'maxTokens', calls: 'toolUse', stop: 'endTurn' } as const);
  yield { type: 'modelMessageStopEvent', stopReason };
  const tokens = tokensOf(generation);
  const inputTokens = tokens?.prompt ?? 0;
  const outputTokens = tokens?.sampled ?? 0;
  const usage = tokens && { inputTokens, outputTokens, totalTokens: inputTokens + outputTokens };
  yield { type: 'modelMetadataEvent', ...(usage ? { usage } : {}), metrics: { latencyMs } };
}

type Start = Extract<ModelStreamEvent, { type: 'modelContentBlockStartEvent' }>['start'];
type Delta = Extract<ModelStreamEvent, { type: 'modelContentBlockDeltaEvent' }>['delta'];

function* block(delta: Delta, start?: Start): Generator<ModelStreamEvent> {
  yield { type: 'modelContentBlockStartEvent', ...(start === undefined ? {} : { start }) };
  yield { type: 'modelContentBlockDeltaEvent', delta };
  yield { type: 'modelContentBlockStopEvent' };
}

/**
 * The SDK aborts the agent's whole call if it cannot parse arguments. Anything but a JSON object is therefore passed as a string, which no
 * tool's schema accepts: the policy learns of its mistake from the tool and continues.
 */
function inputOf(sampled: string): string {
  return isJsonObject(sampled) ? sampled : JSON.stringify(sampled);
}

/** A block of any kind, in our own type that the SDK's types fit; its fields depend on its type. */
interface AnyBlock {
  readonly type: string;
  readonly text?: unknown;
  readonly name?: string;
  readonly toolUseId?: string;
  readonly input?: unknown;
  readonly status?: string;
  readonly content?: unknown;
  readonly json?: unknown;
}
interface StrandsMessage {
  readonly role: string;
  readonly content: readonly AnyBlock[];
}

const SILENT: readonly string[] = ['cachePointBlock', 'guardContentBlock'];

/** Throws REQUEST_INVALID naming the block that is not text. */
function messagesOf(system: string | readonly AnyBlock[] | undefined, messages: readonly StrandsMessage[]): readonly Message[] {
  const instructions = typeof system === 'string' ? system : textsIn(system ?? [], 'systemPrompt').join('');
  return [
    ...(instructions.trim() === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content }, index) => {
      const at = `messages[${index}]`;
      return role === 'assistant' ? [assistantOf(content, (block) => assistantBlock(block, at))] : userMessages(content, at);
    }),
  ];
}

/** Results come first: they answer the calls of the previous message. */
function userMessages(blocks: readonly AnyBlock[], at: string): readonly Message[] {
  const { results = [], others = [] } = Object.groupBy(blocks, ({ type }) => (type === 'toolResultBlock' ? 'results' : 'others'));
  const texts = textsIn(others, at);
  return [
    ...results.map((block) => resultOf(block, at)),
    ...(texts.length > 0 ? [{ role: 'user' as const, content: texts.join('\n') }] : []),
  ];
}

function assistantBlock(block: AnyBlock, at: string): Said {
  const { type, toolUseId, name, input, text } = block;
  if (type === 'toolUseBlock') return { call: toolCall(toolUseId, name, input) };
  if (type === 'reasoningBlock') return { reasoning: String(text ?? '') };
  return { text: textsIn([block], at).join('') };
}

function resultOf({ toolUseId, status, content }: AnyBlock, at: string): Message {
  const blocks = Array.isArray(content) ? (content as readonly AnyBlock[]) : [];
  const text = textsIn(blocks, `${at}: the result of ${toolUseId}`).join('');
  return { role: 'tool', content: status === 'error' ? `[ERROR] ${text}` : text, tool_call_id: toolUseId ?? '' };
}

function textsIn(blocks: readonly AnyBlock[], at: string): readonly string[] {
  return blocks.flatMap((block) => {
    if (block.type === 'textBlock') return [String(block.text ?? '')];
    if (block.type === 'jsonBlock') return [JSON.stringify(block.json) ?? ''];
    if (SILENT.includes(block.type)) return [];
    throw notText(`${at}: a block`, block.type);
  });
}

// ── the Osmosis style ────────────────────────────────────────────────────────────────────────────────────────────────────
// Each agent is a separate named sample. An agent with any model but the placeholder is a plain Strands agent, and nothing is recorded.
// Nothing is printed unless `printer` is set.

const PARAMS = ['temperature', 'topP', 'topK', 'maxTokens', 'stop'] as const;

export type RolloutModelParams = Pick<PolicyModelConfig, (typeof PARAMS)[number]>;

/** Stands in for the policy until an agent is created with it, so that a module-level config may hold it. */
export class OsmosisRolloutModel extends Model<PolicyModelConfig> {
  readonly params: RolloutModelParams;

  constructor(options: { readonly params?: RolloutModelParams } = {}) {
    super();
    checkNames(options, ['params'], 'OsmosisRolloutModel', 'CONFIG_INVALID');
    const { params = {} } = options;
    const unknown = Object.keys(params).filter((name) => !PARAMS.some((known) => known === name));
    if (unknown.length > 0) {
      throw new TrainyardError(
        'CONFIG_INVALID',
        `OsmosisRolloutModel has no parameter ${unknown.join(', ')}`,
        `its parameters are ${PARAMS.join(', ')}`,
      );
    }
    this.params = { ...params };
  }

  updateConfig(): never {
    throw placeholderUsed('give it to an OsmosisStrandsAgent that is built inside run(ctx)');
  }

  getConfig(): PolicyModelConfig {
    return { modelId: 'osmosis-rollout', ...this.params };
  }

  stream(): AsyncIterable<ModelStreamEvent> {
    throw placeholderUsed('give it to an OsmosisStrandsAgent that is built inside run(ctx)');
  }
}

export interface OsmosisStrandsAgentConfig extends Omit<AgentConfig, 'messages'> {
  /** `ctx.prompt` as it is, or Strands messages. System messages become the system prompt. */
  readonly messages?: readonly (PromptMessage | MessageData)[];
  /** Accepted for code ported from Python; nothing is printed anyway. */
  readonly callbackHandler?: null;
}

export class OsmosisStrandsAgent extends Agent {
  constructor({ callbackHandler: _, ...config }: OsmosisStrandsAgentConfig) {
    inCamelCase(config, 'OsmosisStrandsAgent');
    const bound = config.model instanceof OsmosisRolloutModel ? boundTo(activeSamples(), config.model, config) : undefined;
    const conversation = conversationOf(config);
    super({
      printer: false,
      ...config,
      ...conversation,
      ...(bound === undefined ? {} : { model: bound.model, name: bound.name }),
    });
    const asMessages = () => messagesOf(this.systemPrompt as string | readonly AnyBlock[] | undefined, this.messages);
    bound?.context.registerSampleSource(bound.name, { getSample: (id) => sampleView(id, asMessages, this.messages) });
  }

  /**
   * Continues from its messages; `args` are added after them. A policy's answer that is cut off at the token limit ends the run as a result
   * with `stopReason: 'maxTokens'`, where Strands throws: the rollout is graded as it is instead of failing.
   */
  override async invoke(args: InvokeArgs = [], options?: InvokeOptions): Promise<AgentResult> {
    try {
      return await super.invoke(args, options);
    } catch (thrown) {
      if (!(thrown instanceof MaxTokensError && this.model instanceof PolicyModel)) throw thrown;
      const { invocationState = {} } = options ?? {};
      return new AgentResult({ stopReason: 'maxTokens', lastMessage: thrown.partialMessage, invocationState });
    }
  }

  /** `invoke` by its Python name. */
  invokeAsync(args: InvokeArgs = [], options?: InvokeOptions): Promise<AgentResult> {
    return this.invoke(args, options);
  }
}

function boundTo(context: SampleContext, { params }: OsmosisRolloutModel, { name, id }: OsmosisStrandsAgentConfig) {
  const sample = name ?? id ?? context.nameForUnnamed();
  return { context, name: sample, model: new PolicyModel(context.model(sample), params) };
}

interface Conversation extends Pick<AgentConfig, 'systemPrompt'> {
  readonly messages: MessageData[];
}

function conversationOf({ messages = [], systemPrompt }: OsmosisStrandsAgentConfig): Conversation {
  const systems = messages.filter(({ role }) => (role as string) === 'system').map(({ content }) => textOf(content));
  const others = messages.filter(({ role }) => (role as string) !== 'system') as readonly (PromptMessage | MessageData)[];
  const prompt = systems.length === 0 ? systemPrompt : joined(systemPrompt, systems);
  return { messages: others.map(blocksOf), ...(prompt === undefined ? {} : { systemPrompt: prompt }) };
}

function joined(given: AgentConfig['systemPrompt'], systems: readonly string[]): AgentConfig['systemPrompt'] {
  if (given === undefined || typeof given === 'string') return [...(given ? [given] : []), ...systems].join('\n\n');
  throw new TrainyardError(
    'REQUEST_INVALID',
    'systemPrompt: found blocks, and the messages hold a system message too',
    'give the system prompt as a text, or leave it to the messages',
  );
}

function blocksOf(message: PromptMessage | MessageData): MessageData {
  const { role, content } = message as MessageData | Exclude<PromptMessage, { role: 'system' }>;
  return typeof content === 'string' ? { role, content: [{ text: content }] } : (message as MessageData);
}

function textOf(content: string | MessageData['content']): string {
  if (typeof content === 'string') return content;
  return content.map((block) => ('text' in block && typeof block.text === 'string' ? block.text : '')).join('');
}
