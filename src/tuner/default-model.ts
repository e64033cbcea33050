/**
 * What `registerModel` takes as a default model: whatever core takes (a server, a function, a `DefaultModel`), and a language model of the
 * AI SDK, which is asked through its own interface.
 */
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/contracts.ts';
import { checkDefaultModel } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Message, ToolCall } from '../core/types.ts';
import { TunedModel } from './tuned-model.ts';

/** What is used of the AI SDK's `LanguageModel` objects, versions 2 to 4. */
export interface LanguageModelLike {
  readonly specificationVersion: string;
  readonly modelId: string;
  // The parameter types of the SDK's versions differ; what is passed fits all of them.
  doGenerate(options: never): PromiseLike<{
    readonly content: readonly { readonly type: string }[];
    readonly finishReason: unknown;
  }>;
}

export type DefaultModelGiven = DefaultModelLike | LanguageModelLike;

export function defaultModelOf(given: DefaultModelGiven, role: string): DefaultModelLike {
  if (given instanceof TunedModel) {
    throw new TrainyardError('WORKFLOW_INVALID', `role ${JSON.stringify(role)}: its default model is the model in training`, {
      hint: 'leave defaultModel out: the policy then plays the role while it is not trained',
    });
  }
  if (typeof given === 'object' && given !== null && 'doGenerate' in given) return asDefaultModel(given);
  checkDefaultModel(given, `role ${JSON.stringify(role)}`);
  return given;
}

export function modelNameOf(given: DefaultModelLike): string {
  return given.name || 'a function';
}

function asDefaultModel(model: LanguageModelLike): DefaultModel {
  return { name: model.modelId, generate: async (request) => answerOf(await model.doGenerate(optionsOf(request) as never)) };
}

function optionsOf({ messages, tools, tool, stop, sampling, signal }: DefaultModelRequest): object {
  const names = new Map(messages.flatMap(({ tool_calls = [] }) => tool_calls.map((call) => [call.id, call.function.name])));
  return {
    prompt: messages.map((message) => promptEntry(message, names)),
    tools: tools.map(({ function: { name, description, parameters } }) => ({
      type: 'function',
      name,
      ...(description === undefined ? {} : { description }),
      inputSchema: parameters ?? { type: 'object', properties: {} },
    })),
    ...(tool === undefined ? {} : { toolChoice: tool === true ? { type: 'required' } : { type: 'tool', toolName: tool } }),
    ...(stop === undefined || stop.length === 0 ? {} : { stopSequences: stop }),
    ...(sampling.temperature === undefined ? {} : { temperature: sampling.temperature }),
    ...(sampling.topP === undefined ? {} : { topP: sampling.topP }),
    ...(sampling.maxTokens === undefined ? {} : { maxOutputTokens: sampling.maxTokens }),
    abortSignal: signal,
  };
}

function promptEntry(message: Message, toolNames: ReadonlyMap<string, string>): object {
  const { role, content, tool_calls: calls = [], tool_call_id: toolCallId = '' } = message;
  const text = content === null || content === '' ? [] : [{ type: 'text', text: content }];
  if (role === 'system') return { role, content: content ?? '' };
  if (role === 'user') return { role, content: text };
  if (role === 'assistant') return { role, content: [...text, ...calls.map(callPart)] };
  const output = { type: 'text', value: content ?? '' };
  return { role, content: [{ type: 'tool-result', toolCallId, toolName: toolNames.get(toolCallId) ?? '', output }] };
}

function callPart({ id, function: { name, arguments: text } }: ToolCall): object {
  let input: unknown = text;
  try {
    input = JSON.parse(text);
  } catch {
    // Not JSON: the model is shown what was said.
  }
  return { type: 'tool-call', toolCallId: id, toolName: name, input };
}

interface AnswerPart {
  readonly type: string;
  readonly text?: string;
  readonly toolName?: string;
  readonly input?: string;
}

function answerOf(result: Awaited<ReturnType<LanguageModelLike['doGenerate']>>): DefaultModelAnswer {
  const parts = result.content as readonly AnswerPart[];
  const text = parts.flatMap((part) => (part.type === 'text' ? (part.text ?? '') : [])).join('');
  const calls = parts.filter(({ type }) => type === 'tool-call');
  const reason = result.finishReason as string | { readonly unified?: string } | undefined;
  const isCut = (typeof reason === 'string' ? reason : reason?.unified) === 'length';
  return {
    content: text === '' && calls.length > 0 ? null : text,
    stopReason: isCut ? 'length' : 'stop',
    ...(calls.length === 0
      ? {}
      : { toolCalls: calls.map(({ toolName = '', input = '{}' }) => ({ name: toolName, arguments: input })) }),
  };
}
