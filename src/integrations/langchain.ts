/**
 * The policy as a chat model of LangChain, for `createAgent`, LangGraph graphs and chains.
 *
 * Calls `handle.generate`: no HTTP, and the same turn that a client on the base URL would record. It does not stream: LangChain gives the
 * whole answer as one chunk. It does not retry.
 */
import type { BaseLanguageModelInput } from '@langchain/core/language_models/base';
import { BaseChatModel, type BaseChatModelCallOptions, type BindToolsInput } from '@langchain/core/language_models/chat_models';
import { assembleStructuredOutputPipeline, createFunctionCallingParser } from '@langchain/core/language_models/structured_output';
import type { AIMessageChunk, BaseMessage } from '@langchain/core/messages';
import type { ChatResult } from '@langchain/core/outputs';
import type { Runnable } from '@langchain/core/runnables';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import type { Json, Tool } from '../core/types.ts';
import { answerOf, messagesOf } from './langchain-messages.ts';
import { given, type ToolChoice, toolsFor, unsupported } from './request.ts';
import { handleOf, nameOf, type Seat } from './seat.ts';

export interface ChatPolicySettings {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly maxTokens?: number;
}

export interface ChatPolicyCallOptions extends BaseChatModelCallOptions {
  tools?: BindToolsInput[];
}

export class ChatPolicy extends BaseChatModel<ChatPolicyCallOptions> {
  readonly #seat: Seat;
  readonly #settings: ChatPolicySettings;

  /** The policy in this seat; without one, in the rollout that the call happens in. */
  constructor(seat?: Seat, settings: ChatPolicySettings = {}) {
    super({});
    this.#seat = seat;
    this.#settings = settings;
    // Set, not overridden: the base class gives it more overloads than one method can have.
    this.withStructuredOutput = ((schema: Schema, config?: StructuredConfig) => this.#structured(schema, config)) as never;
  }

  override _llmType(): string {
    return 'trainyard';
  }

  /** For traces. */
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

  /** By a tool that the policy must call. */
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
  if (type !== 'function') throw unsupported('a tool', `of type ${JSON.stringify(type)}`, 'the policy has no tools of its own');
  const { name, description, parameters } = called;
  return {
    type: 'function',
    function: {
      name,
      ...(description === undefined ? {} : { description }),
      ...(parameters ? { parameters: parameters as Json } : {}),
    },
  };
}

/** LangChain's words, OpenAI's and Anthropic's. */
function choiceOf(choice: ChatPolicyCallOptions['tool_choice']): ToolChoice {
  if (choice === undefined || choice === 'auto' || choice === 'none') return choice ?? 'auto';
  if (choice === 'any' || choice === 'required') return 'required';
  if (typeof choice === 'string') return { tool: choice };
  const { type, name, function: called } = choice as { type?: string; name?: string; function?: { name?: string } };
  const tool = called?.name ?? name;
  return tool === undefined ? choiceOf(type) : { tool };
}
