/**
 * The policy as a `Model` of Strands Agents.
 *
 * Calls `handle.generate`: no HTTP, and the same turn that a client on the base URL would record. Each tool call is a block of its own
 * with its own start, so several calls of one answer stay several. A stream gives the answer when it is complete. What the policy said comes
 * back as it was recorded. Cache points and guard content say nothing to the policy; images, documents and their like are refused.
 */
import {
  type BaseModelConfig,
  ContextWindowOverflowError,
  Model,
  type ModelStreamEvent,
  ModelThrottledError,
  type Message as SdkMessage,
  type ToolChoice as StrandsToolChoice,
  type StreamOptions,
  type ToolSpec,
} from '@strands-agents/sdk';
import type { GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Message, Tool } from '../core/types.ts';
import { functionTool, given, isJsonObject, notText, saidAs, type ToolChoice, tokensOf, toolCall, toolsFor } from './request.ts';
import { handleOf, nameOf, type Seat } from './seat.ts';

export interface PolicyModelConfig extends BaseModelConfig {
  topK?: number;
  /** The answer ends before the first of these texts. */
  stop?: readonly string[];
}

export class PolicyModel extends Model<PolicyModelConfig> {
  readonly #seat: Seat;
  #config: PolicyModelConfig;

  /** The policy in this seat; without one, in the rollout that the call happens in. */
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

  /** The door for the call at hand; to be overridden where the seat is decided elsewhere. */
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

/** In the SDK's own errors where it acts on them. */
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
  return specs.map(({ name, description, inputSchema }) => functionTool(name, description, inputSchema));
}

function choiceOf(choice: StrandsToolChoice | undefined): ToolChoice {
  if (choice === undefined || 'auto' in choice) return 'auto';
  return 'any' in choice ? 'required' : { tool: choice.tool.name };
}

function* eventsOf(generation: Generation, latencyMs: number): Generator<ModelStreamEvent> {
  const { message, text, toolCalls, stopReason } = generation;
  yield { type: 'modelMessageStartEvent', role: 'assistant' };
  if (message.reasoning) yield* block({ type: 'reasoningContentDelta', text: message.reasoning });
  if (text !== '') yield* block({ type: 'textDelta', text });
  for (const { id: toolUseId, function: call } of toolCalls) {
    yield* block(
      { type: 'toolUseInputDelta', input: inputOf(call.arguments) },
      { type: 'toolUseStart', name: call.name, toolUseId },
    );
  }
  const ended = stopReason === 'length' ? 'maxTokens' : toolCalls.length > 0 ? 'toolUse' : 'endTurn';
  yield { type: 'modelMessageStopEvent', stopReason: ended };
  const tokens = tokensOf(generation);
  const usage = tokens && {
    inputTokens: tokens.prompt,
    outputTokens: tokens.sampled,
    totalTokens: tokens.prompt + tokens.sampled,
  };
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
 * The SDK parses arguments and gives up the whole call of the agent where it cannot. What is no JSON object goes through as a text, which
 * no tool's schema takes: the policy hears of its mistake from the tool and goes on.
 */
function inputOf(sampled: string): string {
  return isJsonObject(sampled) ? sampled : JSON.stringify(sampled);
}

/** A block of any kind, in a type of our own that the SDK's fit; which fields it has depends on its type. */
export interface AnyBlock {
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

/** Throws REQUEST_INVALID naming the block that is no text. */
export function messagesOf(
  system: string | readonly AnyBlock[] | undefined,
  messages: readonly StrandsMessage[],
): readonly Message[] {
  const instructions = typeof system === 'string' ? system : textsIn(system ?? [], 'systemPrompt').join('');
  return [
    ...(instructions.trim() === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content }, place) => (role === 'assistant' ? spoken(content, place) : heard(content, place))),
  ];
}

/** Results come first: they answer the calls of the message before. */
function heard(blocks: readonly AnyBlock[], place: number): readonly Message[] {
  const at = `messages[${place}]`;
  const results = blocks.filter(({ type }) => type === 'toolResultBlock');
  const texts = textsIn(
    blocks.filter(({ type }) => type !== 'toolResultBlock'),
    at,
  );
  return [
    ...results.map((block) => resultOf(block, at)),
    ...(texts.length > 0 ? [{ role: 'user' as const, content: texts.join('\n') }] : []),
  ];
}

function spoken(blocks: readonly AnyBlock[], place: number): readonly Message[] {
  const uses = blocks.filter(({ type }) => type === 'toolUseBlock');
  const calls = uses.map(({ toolUseId, name, input }) => toolCall(toolUseId, name, input));
  const reasoning = blocks.filter(({ type }) => type === 'reasoningBlock').map(({ text }) => String(text ?? ''));
  const others = blocks.filter(({ type }) => type !== 'toolUseBlock' && type !== 'reasoningBlock');
  const content = textsIn(others, `messages[${place}]`).join('');
  return [saidAs(content === '' && calls.length > 0 ? null : content, calls, reasoning.join(''))];
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
