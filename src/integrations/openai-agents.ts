/**
 * The policy as a `Model` of the OpenAI Agents SDK, a `ModelProvider` that serves it under every model name, and a `Session` that is a
 * thread. Calls `handle.generate`: no HTTP, and the same turn that the SDK's client on the base URL records. Handoffs are tools. Streams
 * deliver the completion once it is complete. The SDK's types fit ours, so this file needs no package. Items that only OpenAI's servers can
 * make are refused.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { currentRollout } from '../core/context.ts';
import type { GenerateRequest, Generation, WorkflowContext } from '../core/contracts.ts';
import { offerModelForm } from '../core/model-forms.ts';
import type { Json, Message, Tool } from '../core/types.ts';
import { type Entry, messagesIn, type Spoken, spokenIn } from '../gateway/dialects/responses.ts';
import {
  argumentsText,
  functionTool,
  given,
  handleOf,
  notText,
  type Optional,
  refusePenalties,
  type Seat,
  type ToolChoice,
  tokensOf,
  toolsFor,
  unsupported,
} from './request.ts';

interface ModelSettings extends Optional<'temperature' | 'topP' | 'maxTokens' | 'frequencyPenalty' | 'presencePenalty', number> {
  readonly toolChoice?: string | undefined;
}
interface SdkTool {
  readonly type: string;
  readonly name?: string;
  readonly description?: string;
  readonly parameters?: unknown;
}
interface SdkHandoff {
  readonly toolName: string;
  readonly toolDescription: string;
  readonly inputJsonSchema: unknown;
}

/** The SDK request fields that are read; the SDK's own type fits. */
export interface AgentRequest extends Optional<'systemInstructions' | 'previousResponseId' | 'conversationId', string> {
  readonly input: string | readonly AnyItem[];
  readonly modelSettings: ModelSettings;
  readonly tools: readonly SdkTool[];
  readonly handoffs: readonly SdkHandoff[];
  /** `text`, or a named JSON schema. */
  readonly outputType?: string | { readonly schema?: unknown };
  readonly signal?: AbortSignal | undefined;
}

type Spent = Record<'requests' | 'inputTokens' | 'outputTokens' | 'totalTokens', number>;

/** Fits the SDK's own class. */
class AgentUsage implements Spent {
  requests = 1;
  inputTokens: number;
  outputTokens: number;
  totalTokens: number;
  inputTokensDetails: Record<string, number>[] = [];
  outputTokensDetails: Record<string, number>[] = [];
  requestUsageEntries: undefined;

  constructor(generation: Generation) {
    const { prompt = 0, sampled = 0 } = tokensOf(generation) ?? {};
    this.inputTokens = prompt;
    this.outputTokens = sampled;
    this.totalTokens = prompt + sampled;
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
  | { type: 'response_done'; response: { id: string; output: AnswerItem[]; usage: Spent } };

/** Fits `Model` of `@openai/agents`. */
export interface PolicyModel {
  getResponse(request: AgentRequest): Promise<AgentResponse>;
  getStreamedResponse(request: AgentRequest): AsyncIterable<AgentEvent>;
}

declare module '../core/model-forms.ts' {
  interface ModelForms {
    'openai-agents': PolicyModel;
  }
}
offerModelForm('openai-agents', policy);

/** The policy in this seat; without a seat, in the rollout that the call happens in. */
export function policy(seat?: Seat): PolicyModel {
  return {
    getResponse: async (request) => {
      const generation = await generate(seat, request);
      return { usage: new AgentUsage(generation), output: itemsOf(generation), responseId: generation.id };
    },
    getStreamedResponse: (request) => streamed(seat, request),
  };
}

/** Fits `ModelProvider`: every model name is the policy. `roleOf` chooses its role; default: `default`. */
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
    const hint = 'keep the conversation in a session or in the input';
    throw unsupported('previousResponseId or conversationId', 'without a server', hint);
  }
  return {
    messages: messagesOf(request.systemInstructions, request.input),
    ...toolsFor(toolsOf(request), choiceOf(modelSettings.toolChoice)),
    ...given({ temperature, topP, maxTokens, signal, format: formatOf(request) }),
  };
}

/** Checked and marked on the turn, as over HTTP; does not constrain sampling. */
function formatOf({ outputType }: AgentRequest): GenerateRequest['format'] {
  return typeof outputType === 'object' ? { schema: outputType.schema as Json } : undefined;
}

/** The SDK's own client always sends a description, even an empty one. */
function toolsOf({ tools, handoffs }: AgentRequest): readonly Tool[] {
  const functions = tools.map(({ type, name = type, description = '', parameters }) =>
    functionTool({ type, name, description, parameters }),
  );
  const transfers = handoffs.map(({ toolName: name, toolDescription: description, inputJsonSchema: parameters }) =>
    functionTool({ name, description, parameters }),
  );
  return [...functions, ...transfers];
}

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
  const { requests, inputTokens, outputTokens, totalTokens } = new AgentUsage(generation);
  const usage = { requests, inputTokens, outputTokens, totalTokens };
  yield { type: 'response_done', response: { id: generation.id, output, usage } };
}

// ── items ↔ messages ─────────────────────────────────────────────────────────────────────────────────────────────────────
// One completion becomes several items (reasoning, text, calls), which must become one message again. Items that we made carry the
// completion's id, so consecutive completions stay separate; other items belong together if they are adjacent.

export interface AnyItem {
  readonly type?: string | undefined;
  readonly id?: string | undefined;
  readonly role?: string;
  readonly content?: unknown;
  readonly rawContent?: unknown;
  readonly callId?: unknown;
  readonly name?: unknown;
  readonly arguments?: unknown;
  readonly output?: unknown;
}

type AnswerItem =
  | { type: 'reasoning'; id: string; content: never[]; rawContent: { type: 'reasoning_text'; text: string }[] }
  | {
      type: 'message';
      id: string;
      role: 'assistant';
      status: 'completed' | 'incomplete';
      content: { type: 'output_text'; text: string }[];
    }
  | { type: 'function_call'; id: string; callId: string; name: string; arguments: string; status: 'completed' };

/** Always includes a message or a call. */
export function itemsOf({ id, message, text, toolCalls, stopReason }: Generation): AnswerItem[] {
  const items: AnswerItem[] = [];
  const next = (): string => `${id}#${items.length}`;
  const { reasoning } = message;
  if (reasoning)
    items.push({ type: 'reasoning', id: next(), content: [], rawContent: [{ type: 'reasoning_text', text: reasoning }] });
  if (text !== '' || toolCalls.length === 0) {
    const status = stopReason === 'length' ? 'incomplete' : 'completed';
    items.push({ type: 'message', id: next(), role: 'assistant', status, content: [{ type: 'output_text', text }] });
  }
  for (const { id: callId, function: call } of toolCalls) {
    items.push({ type: 'function_call', id: next(), callId, name: call.name, arguments: call.arguments, status: 'completed' });
  }
  return items;
}

/** Throws REQUEST_INVALID naming the item by its index. */
export function messagesOf(instructions: string | undefined, input: string | readonly AnyItem[]): readonly Message[] {
  const entries: Entry[] = instructions ? [{ role: 'system', content: instructions }] : [];
  if (typeof input === 'string') entries.push({ role: 'user', content: input });
  else for (const [index, item] of input.entries()) read(item, `input[${index}]`, entries);
  return messagesIn(entries).map(said);
}

function read(item: AnyItem, at: string, entries: Entry[]): void {
  const kind = item.type ?? 'message';
  if (kind === 'message') readMessage(item, at, entries);
  else if (kind === 'function_call') {
    const call = { name: String(item.name), arguments: argumentsText(item.arguments) };
    spokenFor(entries, item.id).calls.push({ id: String(item.callId), type: 'function', function: call });
  } else if (kind === 'function_call_result') {
    entries.push({ role: 'tool', content: textOf(item.output, at, '\n'), tool_call_id: String(item.callId) });
  } else if (kind === 'reasoning') {
    const thought = textOf(item.rawContent ?? [], at, '') || textOf(item.content ?? [], at, '');
    if (thought !== '') spokenFor(entries, item.id).reasoning += thought;
  } else {
    const hint = 'the policy calls functions and says text, nothing else';
    throw unsupported(`${at}: an item`, `of type ${JSON.stringify(kind)}`, hint);
  }
}

function readMessage({ role, content, id }: AnyItem, at: string, entries: Entry[]): void {
  if (role === 'assistant') {
    const spoken = spokenFor(entries, id);
    spoken.content = (spoken.content ?? '') + textOf(content, at, '');
  } else entries.push({ role: role === 'user' ? 'user' : 'system', content: textOf(content, at, '\n') });
}

function textOf(content: unknown, at: string, separator: string): string {
  if (typeof content === 'string') return content;
  const parts = [content].flat() as (Optional<'type' | 'text' | 'refusal', string> | null | undefined)[];
  const texts = parts.map((part) => {
    const said = part?.text ?? part?.refusal;
    if (typeof said !== 'string') throw notText(`${at}: a part`, part?.type ?? typeof part);
    return said;
  });
  return texts.join(separator);
}

/** The message that an item belongs to. The ids of items that we made name their completion. */
function spokenFor(entries: Entry[], id: string | undefined): Spoken {
  return spokenIn(entries, /^(.+)#\d+$/.exec(id ?? '')?.[1]);
}

/** A message with only reasoning has empty content. */
const said = (message: Message): Message =>
  message.content === null && message.tool_calls === undefined ? { ...message, content: '' } : message;

// ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

interface ActiveSession {
  readonly thread: string;
  /** The rollout in which the session was read; absent inside `run`. */
  readonly readIn?: WorkflowContext;
}

const sessions = new AsyncLocalStorage<ActiveSession>();

function activeThread(): string | undefined {
  const session = sessions.getStore();
  // A session read in one rollout has no meaning in another, which may have been started from there.
  if (session?.readIn !== undefined && session.readIn !== currentRollout()) return undefined;
  return session?.thread;
}

/**
 * A `Session` that keeps its items and names the rollout's thread: each session is its own thread. The SDK does not tell a model which
 * session it is called for, but reads the session right before. From then on, code that continues from there is in that thread, so either
 * every run in a rollout has a session or none has. `session.run` sets the thread explicitly and leaves it again. `Item` is the SDK's
 * `AgentInputItem`.
 */
export class RecordingSession<Item extends object = object> {
  readonly name: string;
  #items: Item[];

  constructor(name: string, items: readonly Item[] = []) {
    this.name = name;
    this.#items = structuredClone([...items]);
  }

  /** Runs `fn`, usually a `run(agent, input, { session })`, in this thread. */
  run<T>(fn: () => T): T {
    return sessions.run({ thread: this.name }, fn);
  }

  async getSessionId(): Promise<string> {
    return this.name;
  }

  /** The latest `limit` items in order; all if undefined. */
  async getItems(limit?: number): Promise<Item[]> {
    this.#enter();
    const from = limit === undefined ? 0 : Math.max(0, this.#items.length - Math.max(0, limit));
    return structuredClone(this.#items.slice(from));
  }

  async addItems(items: readonly Item[]): Promise<void> {
    this.#items.push(...structuredClone([...items]));
  }

  async popItem(): Promise<Item | undefined> {
    return this.#items.pop();
  }

  async clearSession(): Promise<void> {
    this.#items = [];
  }

  #enter(): void {
    const rollout = currentRollout();
    const session = sessions.getStore();
    if (rollout === undefined || (session !== undefined && session.readIn === undefined)) return;
    sessions.enterWith({ thread: this.name, readIn: rollout });
  }
}
