/**
 * The client side of Chat Completions, without an SDK, for default models, judges and the model handle of a policy in another process. That
 * policy records the same turns as in process, but only text crosses the wire, no tokens. Each caller chooses its own error codes.
 */
import { fetchInThread } from '../core/context.ts';
import type {
  ClientOptions,
  DefaultModelAnswer,
  DefaultModelRequest,
  GenerateRequest,
  Generation,
  ModelHandle,
  ModelServer,
} from '../core/contracts.ts';
import type { ErrorCode } from '../core/error-codes.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import type { Message, SamplingSettings, ToolCall, Turn } from '../core/types.ts';
import { STATUS } from './wire-protocol.ts';

/** Servers that ignore the key are given placeholders like `EMPTY` or `none`. */
const SHORTEST_SECRET = 8;

export type ChatServer = Omit<ModelServer, 'fetch'>;

export interface ChatRequest extends Partial<SamplingSettings & Omit<DefaultModelRequest, 'messages' | 'sampling'>> {
  readonly messages: readonly Message[];
  /** In place of `maxTokens`, for servers that do not know its old name. */
  readonly maxCompletionTokens?: number;
}

export interface ChatAnswer extends Pick<Generation, 'id' | 'toolCalls' | 'stopReason'>, Pick<DefaultModelAnswer, 'usage'> {
  readonly content: string | null;
  readonly reasoning: string | undefined;
  /** The server's content filter withheld the answer, or the rest of it. */
  readonly withheld: boolean;
}

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
    max_completion_tokens: request.maxCompletionTokens,
    stop: stop.length === 0 ? undefined : stop,
    response_format: format && formatOf(format),
  };
  return postOf(
    `${baseURL.replace(/\/+$/, '')}/chat/completions`,
    apiKey ? { authorization: `Bearer ${apiKey}` } : {},
    body,
    signal,
  );
}

export function postOf(url: string, headers: object, body: object, signal?: AbortSignal): [url: string, init: RequestInit] {
  const typed = { 'content-type': 'application/json', ...headers };
  return [url, { method: 'POST', headers: typed, body: JSON.stringify(body), ...(signal && { signal }) }];
}

/** Removes the key from a server's text, which may echo the request. Short keys are placeholders, which may occur in any text. */
export function withoutKey(text: string, { apiKey = '' }: Pick<ChatServer, 'apiKey'>): string {
  return apiKey.length < SHORTEST_SECRET ? text : text.replaceAll(apiKey, '[key]');
}

/** The wire format requires a name for the schema; it has no meaning. */
const formatOf = ({ schema }: NonNullable<ChatRequest['format']>): object =>
  schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: { name: 'answer', schema } };

interface CompletionMessage {
  readonly content: string;
  readonly refusal: string;
  readonly tool_calls: readonly ToolCall[];
  readonly reasoning: string;
  readonly reasoning_content: string;
}

/** Servers write absent fields as `null` or omit them. */
export type Sparse<T> = { readonly [K in keyof T]?: T[K] | null };
type Completion = Sparse<{
  id: string;
  choices: readonly Sparse<{ index: number; finish_reason: string; message: Sparse<CompletionMessage> }>[];
  usage: Sparse<{ prompt_tokens: number; completion_tokens: number }>;
}>;

/** Undefined if the text is not a completion with a message of text. */
export function chatAnswerIn(text: string): ChatAnswer | undefined {
  const completion = parsedJson(text) as Completion | null | undefined;
  const choices = Array.isArray(completion?.choices) ? (completion.choices as NonNullable<Completion['choices']>) : [];
  const choice = choices.find((one) => (one?.index ?? 0) === 0);
  if (!choice?.message || Object.keys(choice.message).length === 0 || choice.finish_reason === 'error') return undefined;
  const { content, refusal, tool_calls: toolCalls, reasoning, reasoning_content: thought } = choice.message;
  const said = content ?? refusal ?? null;
  if ((said !== null && typeof said !== 'string') || !(toolCalls ?? []).every?.(isToolCall)) return undefined;
  return {
    id: completion?.id ?? '',
    content: said,
    toolCalls: toolCalls ?? [],
    reasoning: reasoning ?? thought ?? undefined,
    stopReason: choice.finish_reason === 'length' ? 'length' : 'stop',
    withheld: choice.finish_reason === 'content_filter',
    ...usageOf(completion?.usage?.prompt_tokens, completion?.usage?.completion_tokens),
  };
}

/** Absent unless the server counted both. */
export function usageOf(promptTokens: unknown, completionTokens: unknown): Pick<ChatAnswer, 'usage'> {
  return isCount(promptTokens) && isCount(completionTokens) ? { usage: { promptTokens, completionTokens } } : {};
}

const isToolCall = (call: Partial<ToolCall> | null): boolean =>
  typeof call?.function?.name === 'string' && typeof call.function.arguments === 'string';

/** No call has more tokens than this. */
const MOST_TOKENS = 100_000_000;

export const isCount = (value: unknown): value is number =>
  Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= MOST_TOKENS;

export interface ModelAddress {
  readonly role: string;
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
}

/** Returns a thread's `fetch`. Default: the global one, plus a header naming the thread unless it is the role's own. */
export type FetchIn = (thread: string) => typeof globalThis.fetch;

/** By wire name. CANCELLED shares its wire name with SESSION_SEALED, which is why the call was cancelled. */
const CODES: ReadonlyMap<unknown, ErrorCode> = new Map(
  Object.entries(STATUS).flatMap(([code, row]) => (code === 'CANCELLED' ? [] : [[row.code, code as ErrorCode]])),
);

export function clientFields({ role, name, baseURL, apiKey }: ModelAddress, fetch: typeof globalThis.fetch) {
  // Without a key, the client would look for one in the environment.
  const openai = (): ClientOptions => ({ baseURL, apiKey: apiKey || 'none', fetch });
  // Anthropic's client appends /v1/messages itself.
  const anthropic = (): ClientOptions => ({ ...openai(), baseURL: baseURL.replace(/\/v1$/, '') });
  return { role, name, baseURL, apiKey, fetch, openai, anthropic };
}

/** `tokens`: for a policy whose tokenizer is here too, and whose gateway takes token ids. */
export function httpModel(
  address: ModelAddress,
  fetchIn: FetchIn = inThread(address.role),
  thread = address.role,
  tokens?: Pick<ModelHandle, 'render' | 'decode'>,
): ModelHandle {
  const fields = clientFields(address, fetchIn(thread));
  return {
    ...fields,
    generate: (request) => (tokens && request.promptIds ? generateTokens(fields, request) : generateOverHttp(fields, request)),
    render: () => elsewhere('render'),
    decode: () => elsewhere('decode'),
    ...tokens,
    thread: (other) => httpModel(address, fetchIn, other, tokens),
  };
}

export function inThread(role: string): FetchIn {
  return (thread) => (thread === role ? globalThis.fetch : fetchInThread(globalThis.fetch, thread));
}

function elsewhere(what: string): never {
  throw new TrainyardError(
    'REQUEST_INVALID',
    `${what} needs the policy's tokenizer, and the policy is in another process`,
    'run the workflow in the process of the policy: without isolation, and not on a rollout server',
  );
}

type Server = Pick<ModelHandle, 'name' | 'baseURL' | 'apiKey' | 'fetch'>;

export async function generateOverHttp({ fetch, ...server }: Server, request: GenerateRequest): Promise<Generation> {
  return generationOf(await answered(fetch, chatRequest(server, requestOf(request)), request.signal));
}

/** The gateway's own route, whose answer has the recorded turn. */
async function generateTokens({ baseURL, apiKey, fetch }: Server, request: GenerateRequest): Promise<Generation> {
  const { signal, promptIds, ...rest } = request;
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${apiKey}` };
  const body = JSON.stringify({ ...rest, promptIds: Array.from(promptIds ?? []) });
  const init = { method: 'POST', headers, body, ...(signal && { signal }) };
  const said = JSON.parse(await answered(fetch, [`${baseURL}/generate_tokens`, init], signal)) as Pick<Generation, 'id'> & {
    readonly turn: Turn;
  };
  const { promptIds: prompt, sampledIds, logprobs, response: message, stopReason } = said.turn;
  const ids = { promptIds: Int32Array.from(prompt), sampledIds: Int32Array.from(sampledIds) };
  const turn: Turn = { ...said.turn, ...ids, logprobs: Float32Array.from(logprobs) };
  return { id: said.id, message, text: message.content ?? '', toolCalls: message.tool_calls ?? [], stopReason, turn };
}

async function answered(
  fetch: ModelHandle['fetch'],
  [url, init]: ReturnType<typeof chatRequest>,
  signal: AbortSignal | undefined,
): Promise<string> {
  try {
    const response = await fetch(url, init);
    const text = await response.text();
    if (!response.ok) throw refusalOf(response.status, text);
    return text;
  } catch (thrown) {
    signal?.throwIfAborted();
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

/** What an error of a gateway says, or of another server. */
export function refusalOf(status: number, text: string): TrainyardError {
  const { code, message, hint } = (parsedJson(text) as { error?: Record<string, unknown> } | undefined)?.error ?? {};
  const known = CODES.get(code);
  const said = typeof message === 'string' ? message : text.slice(0, 500);
  if (known === undefined) return new TrainyardError('POLICY_REFUSED', `the policy answered ${status}: ${said}`);
  // On the wire, the message ends with the hint.
  const own = typeof hint === 'string' ? said.replace(` (${hint})`, '') : said;
  return new TrainyardError(known, own, typeof hint === 'string' ? { hint } : {});
}
