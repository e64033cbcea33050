/**
 * One question over OpenAI's Chat Completions, without a client: how it is written, and how the answer is read. For the policy in another
 * process, and for default models on a server. Who asks decides what a failure is called.
 */
import { messageOf } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import type { Json, Message, SamplingSettings, StopReason, Tool, ToolCall } from '../core/types.ts';

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

export interface ChatQuestion extends Partial<SamplingSettings> {
  readonly messages: readonly Message[];
  readonly tools?: readonly Tool[];
  readonly tool?: string | true;
  readonly stop?: readonly string[];
  readonly format?: { readonly schema?: Json };
  readonly signal?: AbortSignal;
}

interface ChatAnswer {
  readonly id: string;
  readonly content: string | null;
  readonly toolCalls: readonly ToolCall[];
  readonly reasoning: string | undefined;
  readonly stopReason: StopReason;
}

/** For `fetch(...)`. */
export function chatRequest({ name, baseURL, apiKey }: ChatServer, question: ChatQuestion): [url: string, init: RequestInit] {
  const { messages, tools = [], tool, temperature, topP, topK, maxTokens, stop = [], format, signal } = question;
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
const formatOf = ({ schema }: NonNullable<ChatQuestion['format']>): object =>
  schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: { name: 'answer', schema } };

/** Servers write what there is none of as `null`, or not at all. */
interface Completion {
  readonly id?: string | null;
  readonly choices?:
    | readonly {
        readonly finish_reason?: string | null;
        readonly message?: {
          readonly content?: string | null;
          readonly tool_calls?: readonly ToolCall[] | null;
          readonly reasoning?: string | null;
          readonly reasoning_content?: string | null;
        } | null;
      }[]
    | null;
}

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
