/**
 * Chat Completions from the client's side, without an SDK: how a request is written and an answer read, for default models and judges on a
 * server; and the model handle where the policy is in another process, which the policy records the same turns for as for its own handle. In
 * words only: tokens stay where the policy is. Each caller decides what a failure is called.
 */

import { fetchInThread } from '../core/context.ts';
import type { ClientOptions, GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import type { Json, Message, SamplingSettings, Tool, ToolCall } from '../core/types.ts';
import { STATUS } from './wire-protocol.ts';

/** Servers that look at no key are given `EMPTY`, `none` or the like. */
const SHORTEST_SECRET = 8;
const QUOTED = 200;

export interface ChatServer {
  /** For the `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  /** Absent or empty: none is sent. */
  readonly apiKey?: string;
}

export interface ChatRequest extends Partial<SamplingSettings> {
  readonly messages: readonly Message[];
  readonly tools?: readonly Tool[];
  readonly tool?: string | true;
  readonly stop?: readonly string[];
  readonly format?: { readonly schema?: Json };
  readonly signal?: AbortSignal;
}

interface ChatAnswer extends Pick<Generation, 'id' | 'toolCalls' | 'stopReason'> {
  readonly content: string | null;
  readonly reasoning: string | undefined;
}

/** For `fetch(...)`. */
export function chatRequest({ name, baseURL, apiKey }: ChatServer, request: ChatRequest): [url: string, init: RequestInit] {
  const { messages, tools = [], tool, temperature, topP, topK, maxTokens, stop = [], format, signal } = request;
  const body = {
    model: name,
    messages,
    tools: tools.length === 0 ? undefined : tools,
    tool_choice: tool === true ? 'required' : tool && { type: 'function', function: { name: tool } },
    temperature,
    top_p: topP,
    top_k: topK,
    max_tokens: maxTokens,
    stop: stop.length === 0 ? undefined : stop,
    response_format: format && formatOf(format),
  };
  const headers = { 'content-type': 'application/json', ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}) };
  const url = `${baseURL.replace(/\/+$/, '')}/chat/completions`;
  return [url, { method: 'POST', headers, body: JSON.stringify(body), ...(signal && { signal }) }];
}

/** What a server said, who may repeat what it was sent. A few letters are no secret, and occur in any text. */
export function withoutKey(text: string, { apiKey = '' }: Pick<ChatServer, 'apiKey'>): string {
  return apiKey.length < SHORTEST_SECRET ? text : text.replaceAll(apiKey, '[key]');
}

/** `fetch` says only that it failed; why is in the cause, which may quote what was sent. */
export function whyUnreachable(thrown: unknown, server: ChatServer): string {
  const cause = thrown instanceof Error && thrown.cause !== undefined ? thrown.cause : thrown;
  return withoutKey(messageOf(cause), server).slice(0, QUOTED) || 'the connection failed';
}

/** A schema has a name on the wire, which says nothing. */
const formatOf = ({ schema }: NonNullable<ChatRequest['format']>): object =>
  schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: { name: 'answer', schema } };

interface CompletionMessage {
  readonly content: string;
  readonly tool_calls: readonly ToolCall[];
  readonly reasoning: string;
  readonly reasoning_content: string;
}

/** Servers write what there is none of as `null`, or not at all. */
type Sparse<T> = { readonly [K in keyof T]?: T[K] | null };
type Completion = Sparse<{
  id: string;
  choices: readonly Sparse<{ finish_reason: string; message: Sparse<CompletionMessage> }>[];
}>;

/** Undefined where the text is no completion with a message. */
export function chatAnswerIn(text: string): ChatAnswer | undefined {
  const completion = parsedJson(text) as Completion | null | undefined;
  const choice = completion?.choices?.[0];
  if (!choice?.message) return undefined;
  const { content, tool_calls: toolCalls, reasoning, reasoning_content: thought } = choice.message;
  return {
    id: completion?.id ?? '',
    content: content ?? null,
    toolCalls: toolCalls ?? [],
    reasoning: reasoning ?? thought ?? undefined,
    stopReason: choice.finish_reason === 'length' ? 'length' : 'stop',
  };
}

// ── the policy in another process ────────────────────────────────────────────────────────────────────────────────────────

/** What a process must know to call the policy as one role. */
export interface ModelAddress {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
}

/** The `fetch` of a thread; by default the global one, with the thread in a header where it is not the role's own. */
export type FetchIn = (thread: string) => typeof globalThis.fetch;

/** By the gateway's names for them. A cancelled call has the name of a sealed session, which says why it was cancelled. */
const CODES: ReadonlyMap<unknown, ErrorCode> = new Map(
  Object.entries(STATUS).flatMap(([code, row]) => (code === 'CANCELLED' ? [] : [[row.code, code as ErrorCode]])),
);

/** The fields of a handle that any client needs. */
export function clientFields({ role, name, baseURL, apiKey }: ModelAddress, fetch: typeof globalThis.fetch) {
  // A client without a key would look for one in the environment.
  const openai = (): ClientOptions => ({ baseURL, apiKey: apiKey || 'none', fetch, maxRetries: 0 });
  // Anthropic's client adds /v1/messages by itself.
  const anthropic = (): ClientOptions => ({ ...openai(), baseURL: baseURL.replace(/\/v1$/, '') });
  return { role, name, baseURL, apiKey, fetch, openai, anthropic };
}

export function httpModel(address: ModelAddress, fetchIn: FetchIn = inThread(address.role), thread = address.role): ModelHandle {
  const fields = clientFields(address, fetchIn(thread));
  return {
    ...fields,
    generate: (request) => generateOverHttp(fields, request),
    render: () => elsewhere('render'),
    decode: () => elsewhere('decode'),
    thread: (other) => httpModel(address, fetchIn, other),
  };
}

function inThread(role: string): FetchIn {
  return (thread) => (thread === role ? globalThis.fetch : fetchInThread(globalThis.fetch, thread));
}

function elsewhere(what: string): never {
  throw new TrainyardError('REQUEST_INVALID', `${what} needs the policy's tokenizer, and the policy is in another process`, {
    hint: 'run the workflow in the process of the policy: without isolation, and not on a rollout server',
  });
}

export async function generateOverHttp(
  { name, baseURL, apiKey, fetch }: Pick<ModelHandle, 'name' | 'baseURL' | 'apiKey' | 'fetch'>,
  request: GenerateRequest,
): Promise<Generation> {
  const [url, init] = chatRequest({ name, baseURL, apiKey }, requestOf(request));
  try {
    const response = await fetch(url, init);
    const text = await response.text();
    if (!response.ok) throw refusalOf(response.status, text);
    return generationOf(text);
  } catch (thrown) {
    request.signal?.throwIfAborted();
    if (thrown instanceof TrainyardError) throw thrown;
    throw new TrainyardError('POLICY_UNREACHABLE', `the policy cannot be reached: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function requestOf(request: GenerateRequest): ChatRequest {
  if (request.messages !== undefined) return request;
  const found = request.promptIds === undefined ? 'no messages' : 'promptIds';
  throw new TrainyardError('REQUEST_INVALID', `generate was given ${found}; a policy in another process takes messages only`, {
    param: request.promptIds === undefined ? 'messages' : 'promptIds',
    hint: 'give messages, or run the workflow in the process of the policy',
  });
}

function generationOf(said: string): Generation {
  const answer = chatAnswerIn(said);
  if (answer === undefined) {
    throw new TrainyardError('POLICY_GARBLED', `the policy answered something that is no completion: ${said.slice(0, 200)}`);
  }
  const { id, content, toolCalls, reasoning, stopReason } = answer;
  const message: Message = {
    role: 'assistant',
    content,
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
  return { id, message, text: content ?? '', toolCalls, stopReason };
}

function refusalOf(status: number, text: string): TrainyardError {
  const { code, message, hint } = (parsedJson(text) as { error?: Record<string, unknown> } | undefined)?.error ?? {};
  const known = CODES.get(code);
  const said = typeof message === 'string' ? message : text.slice(0, 500);
  if (known === undefined) return new TrainyardError('POLICY_REFUSED', `the policy answered ${status}: ${said}`);
  // The hint stands behind the message on the wire.
  const own = typeof hint === 'string' ? said.replace(` (${hint})`, '') : said;
  return new TrainyardError(known, own, typeof hint === 'string' ? { hint } : {});
}
