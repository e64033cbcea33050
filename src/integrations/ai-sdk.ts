/**
 * The policy as a language model of the AI SDK (`ai`), for `generateText`, `streamText`, `ToolLoopAgent` and whatever else takes one.
 *
 * Calls `handle.generate`: no HTTP, and the same turn that a client on the base URL would record. A stream gives the answer when it is
 * complete, in the SDK's parts. What the policy said comes back as it was recorded; files and images are refused. Types are our own, and the
 * SDK's fit them: this file needs no package. Errors are ours and are not retried: what the gateway could not answer once it cannot answer twice.
 */
import type { GenerateRequest, Generation } from '../core/contracts.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import {
  functionTool,
  given,
  isJsonObject,
  notText,
  refusePenalties,
  saidAs,
  type ToolChoice,
  tokensOf,
  toolCall,
  toolsFor,
  unsupported,
} from './request.ts';
import { handleOf, nameOf, type Seat } from './seat.ts';

/** What is read of the SDK's call options; its own type fits. */
export interface CallOptions {
  readonly prompt: readonly PromptEntry[];
  readonly maxOutputTokens?: number | undefined;
  readonly temperature?: number | undefined;
  readonly stopSequences?: readonly string[] | undefined;
  readonly topP?: number | undefined;
  readonly topK?: number | undefined;
  readonly presencePenalty?: number | undefined;
  readonly frequencyPenalty?: number | undefined;
  readonly tools?: readonly GivenTool[] | undefined;
  readonly toolChoice?: { readonly type: string; readonly toolName?: string } | undefined;
  readonly responseFormat?: { readonly type: string; readonly schema?: unknown } | undefined;
  readonly abortSignal?: AbortSignal | undefined;
}

type Content =
  | { type: 'text'; text: string }
  | { type: 'reasoning'; text: string }
  | {
      type: 'tool-call';
      toolCallId: string;
      toolName: string;
      input: string;
      providerMetadata?: { trainyard: { arguments: string } };
    };

interface Ending {
  finishReason: { unified: 'stop' | 'length' | 'tool-calls'; raw: string };
  usage: {
    inputTokens: Counted<'noCache' | 'cacheRead' | 'cacheWrite'>;
    outputTokens: Counted<'text' | 'reasoning'>;
  };
  /** Which turn it was: rewards may name it by either. */
  providerMetadata: { trainyard: { completionId: string; turn?: number } };
}
type Counted<Detail extends string> = { total: number | undefined } & Record<Detail, number | undefined>;

interface GenerateResult extends Ending {
  content: Content[];
  response: { id: string; modelId: string };
  warnings: never[];
}

type StreamPart =
  | { type: 'stream-start'; warnings: never[] }
  | { type: 'response-metadata'; id: string; modelId: string }
  | { type: 'text-start' | 'text-end' | 'reasoning-start' | 'reasoning-end' | 'tool-input-end'; id: string }
  | { type: 'text-delta' | 'reasoning-delta' | 'tool-input-delta'; id: string; delta: string }
  | { type: 'tool-input-start'; id: string; toolName: string }
  | Extract<Content, { type: 'tool-call' }>
  | ({ type: 'finish' } & Ending);

/** Fits `LanguageModel` of `ai` from version 7 on, and Mastra's models. */
export interface PolicyLanguageModel {
  readonly specificationVersion: 'v4';
  readonly provider: string;
  readonly modelId: string;
  readonly supportedUrls: Record<string, RegExp[]>;
  doGenerate(options: CallOptions): Promise<GenerateResult>;
  doStream(options: CallOptions): Promise<{ stream: ReadableStream<StreamPart> }>;
}

/** The policy in this seat; without one, in the rollout that the call happens in. */
export function policy(seat?: Seat): PolicyLanguageModel {
  return {
    specificationVersion: 'v4',
    provider: 'trainyard',
    modelId: nameOf(seat),
    supportedUrls: {},
    doGenerate: (options) => generate(seat, options),
    doStream: async (options) => ({ stream: ReadableStream.from(partsOf(await generate(seat, options))) }),
  };
}

async function generate(seat: Seat, options: CallOptions): Promise<GenerateResult> {
  const { temperature, topP, topK, maxOutputTokens: maxTokens, stopSequences: stop, abortSignal: signal } = options;
  const { presencePenalty, frequencyPenalty } = options;
  const handle = handleOf(seat);
  refusePenalties({ presencePenalty, frequencyPenalty });
  const generation = await handle.generate({
    messages: messagesOf(options.prompt),
    ...toolsFor(toolsOf(options.tools), choiceOf(options.toolChoice)),
    ...given({ temperature, topP, topK, maxTokens, stop, signal, format: formatOf(options) }),
  });
  return {
    content: contentOf(generation),
    ...endingOf(generation),
    response: { id: generation.id, modelId: handle.name },
    warnings: [],
  };
}

/** Checked and marked on the turn, as over HTTP; what the policy says is not bent to it. */
function formatOf({ responseFormat }: CallOptions): GenerateRequest['format'] {
  if (responseFormat?.type !== 'json') return undefined;
  return responseFormat.schema === undefined ? {} : { schema: responseFormat.schema as Json };
}

function contentOf({ message, text, toolCalls }: Generation): Content[] {
  return [
    ...(message.reasoning ? [{ type: 'reasoning' as const, text: message.reasoning }] : []),
    ...(text === '' ? [] : [{ type: 'text' as const, text }]),
    ...toolCalls.map(({ id, function: { name, arguments: input } }) => ({
      type: 'tool-call' as const,
      toolCallId: id,
      toolName: name,
      input,
      ...(isJsonObject(input) ? {} : { providerMetadata: { trainyard: { arguments: input } } }),
    })),
  ];
}

function endingOf(generation: Generation): Ending {
  const { id, stopReason, toolCalls, turn } = generation;
  const tokens = tokensOf(generation);
  const unified = stopReason === 'length' ? 'length' : toolCalls.length > 0 ? 'tool-calls' : 'stop';
  return {
    finishReason: { unified, raw: stopReason },
    usage: {
      inputTokens: { total: tokens?.prompt, noCache: tokens?.prompt, cacheRead: undefined, cacheWrite: undefined },
      outputTokens: { total: tokens?.sampled, text: undefined, reasoning: undefined },
    },
    providerMetadata: { trainyard: { completionId: id, ...(turn === undefined ? {} : { turn: turn.index }) } },
  };
}

function* partsOf({ content, response, warnings, ...ending }: GenerateResult): Generator<StreamPart> {
  yield { type: 'stream-start', warnings };
  yield { type: 'response-metadata', ...response };
  for (const [place, part] of content.entries()) {
    const id = part.type === 'tool-call' ? part.toolCallId : `${response.id}-${place}`;
    if (part.type === 'tool-call') {
      yield { type: 'tool-input-start', id, toolName: part.toolName };
      yield { type: 'tool-input-delta', id, delta: part.input };
      yield { type: 'tool-input-end', id };
      yield part;
    } else {
      yield { type: `${part.type}-start`, id };
      yield { type: `${part.type}-delta`, id, delta: part.text };
      yield { type: `${part.type}-end`, id };
    }
  }
  const { finishReason, usage, providerMetadata } = ending;
  yield { type: 'finish', finishReason, usage, providerMetadata };
}

/** A part of any kind; which fields it has depends on its type. */
interface PromptPart {
  readonly type: string;
  readonly text?: string;
  readonly toolCallId?: string;
  readonly toolName?: string;
  readonly input?: unknown;
  readonly output?: ResultOutput;
  readonly providerOptions?: Readonly<Record<string, unknown>> | undefined;
}

interface ResultOutput {
  readonly type: string;
  readonly value?: unknown;
  readonly reason?: string | undefined;
}

type PromptEntry =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user' | 'assistant' | 'tool'; readonly content: readonly PromptPart[] };

interface GivenTool {
  readonly type: string;
  readonly name: string;
  readonly description?: string | undefined;
  readonly inputSchema?: unknown;
}

/** Throws REQUEST_INVALID naming the part that is no text. */
function messagesOf(prompt: readonly PromptEntry[]): readonly Message[] {
  return prompt.flatMap((entry, place): Message[] => {
    if (entry.role === 'system') return [{ role: 'system', content: entry.content }];
    const at = `prompt[${place}]`;
    if (entry.role === 'user') return [{ role: 'user', content: entry.content.map((part) => textOf(part, at)).join('\n') }];
    if (entry.role === 'assistant') return spoken(entry.content, at);
    return results(entry.content);
  });
}

function textOf({ type, text }: PromptPart, at: string): string {
  if (type === 'text') return text ?? '';
  throw notText(`${at}: a part`, type);
}

/** A result among the assistant's own parts was produced on a server; the policy has none, so it is someone else's and stays apart. */
function spoken(parts: readonly PromptPart[], at: string): Message[] {
  let content = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const part of parts) {
    if (part.type === 'text') content += part.text ?? '';
    else if (part.type === 'reasoning') reasoning += part.text ?? '';
    else if (part.type === 'tool-call') calls.push(callOf(part));
    else if (part.type !== 'tool-result') throw notText(`${at}: a part`, part.type);
  }
  return [saidAs(content === '' && calls.length > 0 ? null : content, calls, reasoning), ...results(parts)];
}

/** The SDK puts an empty object in the place of arguments that are none; what the policy said instead comes along with the call. */
function callOf({ toolCallId, toolName, input, providerOptions }: PromptPart): ToolCall {
  const said = (providerOptions?.['trainyard'] as { readonly arguments?: string } | undefined)?.arguments;
  return toolCall(toolCallId, toolName, said ?? input);
}

function results(parts: readonly PromptPart[]): Message[] {
  return parts
    .filter(({ type }) => type === 'tool-result')
    .map(({ toolCallId, output }) => ({ role: 'tool', content: outputText(output), tool_call_id: toolCallId ?? '' }));
}

function outputText(output: ResultOutput | undefined): string {
  if (output === undefined) return '';
  const { type, value, reason } = output;
  if (type === 'execution-denied') return reason ?? 'Tool call execution denied.';
  return typeof value === 'string' && type !== 'json' && type !== 'error-json' ? value : (JSON.stringify(value) ?? '');
}

/** Throws REQUEST_INVALID for a tool that only a provider could run. */
function toolsOf(tools: readonly GivenTool[] = []): readonly Tool[] {
  return tools.map(({ type, name, description, inputSchema }) => {
    if (type !== 'function') {
      throw unsupported(`tool ${JSON.stringify(name)}`, `of type ${JSON.stringify(type)}`, 'the policy has no tools of its own');
    }
    return functionTool(name, description, inputSchema);
  });
}

function choiceOf(choice: { readonly type: string; readonly toolName?: string } | undefined): ToolChoice {
  if (choice?.toolName !== undefined) return { tool: choice.toolName };
  return (choice?.type ?? 'auto') as ToolChoice;
}
