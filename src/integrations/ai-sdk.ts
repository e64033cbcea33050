/**
 * The policy as a language model of the AI SDK (`ai`). Calls `handle.generate`: no HTTP, and the same turn that a client on the base URL
 * records. Streams deliver the completion once it is complete. Messages return as recorded; files and images are refused. The SDK's types
 * fit ours, so this file needs no package. Errors are ours and are not retried: a call that the gateway could not answer would fail again.
 */
import { currentRollout } from '../core/context.ts';
import type { GenerateRequest, Generation } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { offerModelForm } from '../core/model-forms.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import {
  assistantOf,
  endOf,
  functionTool,
  given,
  handleOf,
  isJsonObject,
  nameOf,
  notText,
  type Optional,
  refusePenalties,
  type Said,
  type Seat,
  type ToolChoice,
  tokensOf,
  toolCall,
  toolsFor,
} from './request.ts';

type Numbers = 'maxOutputTokens' | 'temperature' | 'topP' | 'topK' | 'presencePenalty' | 'frequencyPenalty';

interface SdkTool extends Optional<'description', string> {
  readonly type: string;
  readonly name: string;
  readonly inputSchema?: unknown;
}

/** The SDK call options that are read; the SDK's own type fits. */
interface CallOptions extends Optional<Numbers, number> {
  readonly prompt: readonly PromptEntry[];
  readonly stopSequences?: readonly string[] | undefined;
  readonly tools?: readonly SdkTool[] | undefined;
  readonly toolChoice?: { readonly type: string; readonly toolName?: string } | undefined;
  readonly responseFormat?: { readonly type: string; readonly schema?: unknown } | undefined;
  readonly abortSignal?: AbortSignal | undefined;
}

interface SdkCall {
  type: 'tool-call';
  toolCallId: string;
  toolName: string;
  input: string;
  providerMetadata?: { trainyard: { arguments: string } };
}
type Content = { type: 'text' | 'reasoning'; text: string } | SdkCall;

interface Ending {
  finishReason: { unified: 'stop' | 'length' | 'tool-calls'; raw: string };
  usage: {
    inputTokens: Counted<'noCache' | 'cacheRead' | 'cacheWrite'>;
    outputTokens: Counted<'text' | 'reasoning'>;
  };
  /** Identifies the turn; rewards may use either. */
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
  | SdkCall
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

declare module '../core/model-forms.ts' {
  interface ModelForms {
    'ai-sdk': PolicyLanguageModel;
  }
}
offerModelForm('ai-sdk', policy);

/** The policy in this seat; without a seat, in the rollout that the call happens in. */
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
    ...toolsFor(toolsOf(options), choiceOf(options.toolChoice)),
    ...given({ temperature, topP, topK, maxTokens, stop, signal, format: formatOf(options) }),
  });
  return {
    content: contentOf(generation),
    ...endingOf(generation),
    response: { id: generation.id, modelId: handle.name },
    warnings: [],
  };
}

function toolsOf({ tools = [] }: CallOptions): readonly Tool[] {
  return tools.map(({ inputSchema: parameters, ...tool }) => functionTool({ ...tool, parameters }));
}

/** Checked and marked on the turn, as over HTTP; does not constrain sampling. */
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
  const { id, stopReason, turn } = generation;
  const tokens = tokensOf(generation);
  return {
    finishReason: {
      unified: endOf(generation, { length: 'length', calls: 'tool-calls', stop: 'stop' } as const),
      raw: stopReason,
    },
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
  for (const [index, part] of content.entries()) {
    const id = part.type === 'tool-call' ? part.toolCallId : `${response.id}-${index}`;
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
  yield { type: 'finish', ...ending };
}

interface PromptPart {
  readonly type: string;
  readonly text?: string;
  readonly toolCallId?: string;
  readonly toolName?: string;
  readonly input?: unknown;
  readonly output?: ResultOutput;
  readonly providerOptions?: Readonly<Record<string, unknown>> | undefined;
}

interface ResultOutput extends Optional<'reason', string> {
  readonly type: string;
  readonly value?: unknown;
}

type PromptEntry =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user' | 'assistant' | 'tool'; readonly content: readonly PromptPart[] };

/** Throws REQUEST_INVALID naming the part that is not text. */
function messagesOf(prompt: readonly PromptEntry[]): readonly Message[] {
  return prompt.flatMap((entry, index): Message[] => {
    if (entry.role === 'system') return [{ role: 'system', content: entry.content }];
    const at = `prompt[${index}]`;
    if (entry.role === 'user') return [{ role: 'user', content: entry.content.map((part) => textOf(part, at)).join('\n') }];
    if (entry.role === 'assistant') return assistantMessages(entry.content, at);
    return results(entry.content);
  });
}

function textOf({ type, text }: PromptPart, at: string): string {
  if (type === 'text') return text ?? '';
  throw notText(`${at}: a part`, type);
}

/** A result among the assistant's parts came from a provider's server. The policy has none, so the result becomes a separate message. */
function assistantMessages(parts: readonly PromptPart[], at: string): Message[] {
  const read = (part: PromptPart): Said => {
    if (part.type === 'reasoning') return { reasoning: part.text };
    if (part.type === 'tool-call') return { call: callOf(part) };
    return part.type === 'tool-result' ? {} : { text: textOf(part, at) };
  };
  return [assistantOf(parts, read), ...results(parts)];
}

/** The SDK replaces invalid arguments by an empty object. The sampled text comes back in the call's provider options. */
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

function choiceOf(choice: { readonly type: string; readonly toolName?: string } | undefined): ToolChoice {
  if (choice?.toolName !== undefined) return { tool: choice.toolName };
  return (choice?.type ?? 'auto') as ToolChoice;
}

/** Maps a model id to a role; undefined means `default`. */
export type RoleOfModelId = (modelId: string) => string | undefined;

type Maker = (modelId: string) => unknown;
interface DefaultProvider {
  readonly [kind: string]: unknown;
}
const global = globalThis as { AI_SDK_DEFAULT_PROVIDER?: DefaultProvider | undefined };

let undoCurrent: (() => void) | undefined;
let roleOf: RoleOfModelId | undefined;

/**
 * Lets the policy answer plain model ids (`generateText({ model: 'openai/gpt-5' })`) without changing the agent. The SDK looks ids up in
 * `globalThis.AI_SDK_DEFAULT_PROVIDER`: inside a rollout they resolve to the policy, outside to the previous provider. Returns a function
 * that undoes this. A second call only changes the role mapping.
 */
export function redirectModelIds(role?: RoleOfModelId): () => void {
  roleOf = role;
  if (undoCurrent !== undefined) return undoCurrent;
  const before = global.AI_SDK_DEFAULT_PROVIDER;
  const redirected = providerOver(before);
  global.AI_SDK_DEFAULT_PROVIDER = redirected;
  const undo = (): void => {
    if (undoCurrent !== undo) return;
    undoCurrent = undefined;
    // Keeps a provider that was installed since.
    if (global.AI_SDK_DEFAULT_PROVIDER !== redirected) return;
    if (before === undefined) delete global.AI_SDK_DEFAULT_PROVIDER;
    else global.AI_SDK_DEFAULT_PROVIDER = before;
  };
  undoCurrent = undo;
  return undo;
}

function providerOver(before: DefaultProvider | undefined): DefaultProvider {
  const own: DefaultProvider = {
    languageModel: (modelId: string) =>
      currentRollout() === undefined ? elsewhere(before, 'languageModel')(modelId) : { ...policy(roleOf?.(modelId)), modelId },
    embeddingModel: (modelId: string) => elsewhere(before, 'embeddingModel')(modelId),
    imageModel: (modelId: string) => elsewhere(before, 'imageModel')(modelId),
  };
  return new Proxy(before ?? own, {
    get: (target, key) => {
      // The SDK reads the version right before it asks for the model, and adapts the model accordingly.
      if (key === 'specificationVersion') return before && currentRollout() === undefined ? Reflect.get(target, key) : 'v4';
      return key === 'languageModel' || before === undefined ? Reflect.get(own, key) : Reflect.get(target, key);
    },
    has: (target, key) => Reflect.has(own, key) || Reflect.has(target, key) || key === 'specificationVersion',
  });
}

function elsewhere(before: DefaultProvider | undefined, kind: string): Maker {
  const make = before?.[kind];
  if (typeof make === 'function') return (modelId) => make.call(before, modelId);
  return (modelId) => {
    const what = `model ${JSON.stringify(modelId)} was asked for`;
    throw new TrainyardError(
      'NO_ROLLOUT',
      `${what} outside of a rollout, and there was no default provider before`,
      'call it inside run(ctx), or set globalThis.AI_SDK_DEFAULT_PROVIDER before redirectModelIds()',
    );
  };
}
