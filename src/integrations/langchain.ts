/**
 * The policy as a LangChain chat model, for `createAgent`, LangGraph graphs and chains. Calls `handle.generate`: no HTTP, and the same turn
 * that a client on the base URL records. Does not retry or stream: LangChain delivers the whole completion as one chunk. Messages return as
 * recorded: reasoning stays with its message, and calls whose arguments are not JSON stay calls.
 */
import type { BaseLanguageModelInput } from '@langchain/core/language_models/base';
import { BaseChatModel, type BaseChatModelCallOptions, type BindToolsInput } from '@langchain/core/language_models/chat_models';
import { assembleStructuredOutputPipeline, createFunctionCallingParser } from '@langchain/core/language_models/structured_output';
import { AIMessage, type AIMessageChunk, type BaseMessage, ToolMessage } from '@langchain/core/messages';
import type { ChatResult } from '@langchain/core/outputs';
import type { Runnable } from '@langchain/core/runnables';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import type { Generation } from '../core/contracts.ts';
import type { Message, Tool } from '../core/types.ts';
import {
  assistantMessage,
  endOf,
  functionTool,
  given,
  handleOf,
  isJsonObject,
  nameOf,
  notText,
  type Seat,
  type ToolChoice,
  tokensOf,
  toolCall,
  toolsFor,
  unsupported,
} from './request.ts';

export interface ChatPolicySettings {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly maxTokens?: number;
}

interface ChatPolicyCallOptions extends BaseChatModelCallOptions {
  tools?: BindToolsInput[];
}

export class ChatPolicy extends BaseChatModel<ChatPolicyCallOptions> {
  readonly #seat: Seat;
  readonly #settings: ChatPolicySettings;

  /** The policy in this seat; without a seat, in the rollout that the call happens in. */
  constructor(seat?: Seat, settings: ChatPolicySettings = {}) {
    super({});
    this.#seat = seat;
    this.#settings = settings;
    // Assigned, because the base class declares more overloads than one method can override.
    this.withStructuredOutput = ((schema: Schema, config?: StructuredConfig) => this.#structured(schema, config)) as never;
  }

  override _llmType(): string {
    return 'trainyard';
  }

  get model(): string {
    return nameOf(this.#seat);
  }

  override bindTools(
    tools: BindToolsInput[],
    kwargs: Partial<ChatPolicyCallOptions> = {},
  ): Runnable<BaseLanguageModelInput, AIMessageChunk, ChatPolicyCallOptions> {
    return this.withConfig({ ...kwargs, tools });
  }

  override async _generate(messages: BaseMessage[], options: this['ParsedCallOptions']): Promise<ChatResult> {
    const { temperature, topP, topK, maxTokens } = this.#settings;
    const { stop, signal } = options;
    const generation = await handleOf(this.#seat).generate({
      messages: messagesOf(messages),
      ...toolsFor((options.tools ?? []).map(toolOf), choiceOf(options.tool_choice)),
      ...given({ temperature, topP, topK, maxTokens, stop, signal }),
    });
    return { generations: [{ text: generation.text, message: answerOf(generation) }] };
  }

  /** Uses a tool that the policy must call. */
  #structured(schema: Schema, config: StructuredConfig = {}): unknown {
    const parameters = toJsonSchema(schema as never) as { title?: string; description?: string };
    const named = 'name' in schema && typeof schema.name === 'string' ? schema.name : parameters.title;
    const name = config.name ?? named ?? 'extract';
    const description = parameters.description ?? 'Gives the answer in the form that was asked for.';
    const llm = this.bindTools([{ type: 'function', function: { name, description, parameters } }], { tool_choice: name });
    const parser = createFunctionCallingParser(schema as never, name);
    return assembleStructuredOutputPipeline(llm, parser, config.includeRaw, 'StructuredOutput');
  }
}

type Schema = object;
interface StructuredConfig {
  readonly name?: string;
  readonly includeRaw?: boolean;
}

function toolOf(given: BindToolsInput): Tool {
  const { type, function: called } = convertToOpenAITool(given);
  return functionTool({ ...called, type });
}

function choiceOf(choice: ChatPolicyCallOptions['tool_choice']): ToolChoice {
  if (choice === undefined || choice === 'auto' || choice === 'none') return choice ?? 'auto';
  if (choice === 'any' || choice === 'required') return 'required';
  if (typeof choice === 'string') return { tool: choice };
  const { type, name, function: called } = choice as { type?: string; name?: string; function?: { name?: string } };
  const tool = called?.name ?? name;
  return tool === undefined ? choiceOf(type) : { tool };
}

/** Other LangChain chat models keep reasoning here too. */
const THOUGHTS = 'reasoning_content';
/** The order of calls, because LangChain keeps invalid ones apart. */
const ORDER = 'trainyard_call_ids';
/** Parts that repeat what the message holds elsewhere. */
const REPEATED: readonly string[] = ['tool_use', 'tool_call', 'reasoning', 'reasoning_content', 'thinking'];

const ROLES: Readonly<Record<string, 'system' | 'user'>> = { system: 'system', developer: 'system', human: 'user' };

/** Throws REQUEST_INVALID naming the part that is not text. */
export function messagesOf(messages: readonly BaseMessage[]): readonly Message[] {
  return messages.map((message, index): Message => {
    const at = `messages[${index}]`;
    if (AIMessage.isInstance(message)) return spokenBy(message, at);
    const name = message.name ? { name: message.name } : {};
    const content = textOf(message, at, '\n');
    if (ToolMessage.isInstance(message)) return { role: 'tool', content, tool_call_id: message.tool_call_id, ...name };
    const role = ROLES[message.type];
    if (role === undefined) throw unsupported(`${at}: a message`, `of type ${JSON.stringify(message.type)}`);
    return { role, content, ...name };
  });
}

function spokenBy(message: AIMessage, at: string): Message {
  const { tool_calls = [], invalid_tool_calls = [], additional_kwargs } = message;
  const calls = [...tool_calls, ...invalid_tool_calls].map(({ id, name, args }) => toolCall(id, name, args));
  const order = additional_kwargs[ORDER];
  if (Array.isArray(order)) calls.sort((a, b) => order.indexOf(a.id) - order.indexOf(b.id));
  const thoughts = additional_kwargs[THOUGHTS];
  return assistantMessage(textOf(message, at, ''), calls, typeof thoughts === 'string' ? thoughts : '');
}

function textOf({ content }: BaseMessage, at: string, separator: string): string {
  if (typeof content === 'string') return content;
  const texts = content.flatMap((part) => {
    if (part.type === 'text' && 'text' in part) return [String(part.text)];
    if (REPEATED.includes(part.type)) return [];
    throw notText(`${at}: a part`, part.type);
  });
  return texts.join(separator);
}

/** Uses the completion's id: LangGraph treats messages with the same id as one. */
export function answerOf(generation: Generation): AIMessage {
  const { id, message, text, toolCalls } = generation;
  const calls = toolCalls.map(({ id: callId, function: { name, arguments: args } }) => ({ id: callId, name, args }));
  const [valid, invalid] = [true, false].map((wanted) => calls.filter(({ args }) => isJsonObject(args) === wanted));
  const tokens = tokensOf(generation);
  const said = new AIMessage({
    id,
    content: text,
    tool_calls: valid!.map(({ args, ...call }) => {
      return { ...call, args: JSON.parse(args) as Record<string, unknown>, type: 'tool_call' };
    }),
    invalid_tool_calls: invalid!.map((call) => ({ ...call, error: 'not a JSON object', type: 'invalid_tool_call' })),
    additional_kwargs: {
      ...(message.reasoning ? { [THOUGHTS]: message.reasoning } : {}),
      ...(invalid!.length > 0 && valid!.length > 0 ? { [ORDER]: toolCalls.map((call) => call.id) } : {}),
    },
    response_metadata: { finish_reason: endOf(generation, { length: 'length', calls: 'tool_calls', stop: 'stop' }) },
  });
  if (tokens) {
    const { prompt, sampled } = tokens;
    // The package's type for this field is `undefined` for messages without a declared structure.
    said.usage_metadata = { input_tokens: prompt, output_tokens: sampled, total_tokens: prompt + sampled } as never;
  }
  return said;
}
