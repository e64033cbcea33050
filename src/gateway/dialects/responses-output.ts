/**
 * An answer in the form of the Responses API: its output items, and the response object around them. Ids come from the answer's, so a
 * reply that is written twice has the same.
 */
import type { Turn } from '../../core/types.ts';
import { logprobsOf } from './chat-answer.ts';
import type { AnswerHead } from './dialect.ts';
import type { Item } from './responses-memory.ts';

/** What a response repeats of its request. */
export interface Echo {
  readonly instructions: string | null;
  readonly previous_response_id: string | null;
  readonly tools: readonly unknown[];
  readonly tool_choice: unknown;
  readonly parallel_tool_calls: boolean;
  readonly temperature: number | null;
  readonly top_p: number | null;
  readonly max_output_tokens: number | null;
  readonly text: object;
  readonly metadata: unknown;
}

export type Status = 'in_progress' | 'completed' | 'incomplete' | 'failed';

export const responseId = ({ id }: AnswerHead): string => `resp_${id}`;
export const statusOf = ({ stopReason }: Turn): Status => (stopReason === 'length' ? 'incomplete' : 'completed');

/** `place`: of the item in the output. */
export function itemId(kind: 'rs' | 'msg' | 'fc', answerId: string, place: number): string {
  return `${kind}_${answerId}_${place}`;
}

/** Its `encrypted_content` is not its text but a name for it, which is all that some clients send back. */
export function reasoningItem(id: string, parts: readonly object[]): Item {
  return { id, type: 'reasoning', summary: [], content: parts, encrypted_content: id };
}

export const reasoningPart = (text: string): object => ({ type: 'reasoning_text', text });

export function messageItem(id: string, status: Status, parts: readonly object[]): Item {
  return { id, type: 'message', role: 'assistant', status, content: parts };
}

export const textPart = (text: string, logprobs: readonly object[]): object => ({
  type: 'output_text',
  text,
  annotations: [],
  logprobs,
});

export function callItem(
  id: string,
  callId: string,
  status: Status,
  call: { readonly name: string; readonly arguments: string },
) {
  return { id, type: 'function_call', call_id: callId, name: call.name, arguments: call.arguments, status };
}

/** The items of a whole turn: what was thought, what was said, what was called. */
export function itemsOf(turn: Turn, head: AnswerHead, withLogprobs: boolean): readonly Item[] {
  const { content, reasoning, tool_calls: calls = [] } = turn.response;
  const items: Item[] = [];
  if (reasoning) items.push(reasoningItem(itemId('rs', head.id, items.length), [reasoningPart(reasoning)]));
  if (content || calls.length === 0) {
    const logprobs = withLogprobs ? logprobsOf(turn.sampledIds, turn.logprobs, head) : [];
    items.push(messageItem(itemId('msg', head.id, items.length), statusOf(turn), [textPart(content ?? '', logprobs)]));
  }
  for (const [index, call] of calls.entries()) {
    items.push(callItem(itemId('fc', head.id, items.length), head.toolCallId(0, index), 'completed', call.function));
  }
  return items;
}

interface Written {
  readonly status: Status;
  readonly output: readonly Item[];
  readonly turn?: Turn;
  readonly error?: { readonly code: string; readonly message: string };
}

export function responseOf(head: AnswerHead, echo: Echo, { status, output, turn, error }: Written): object {
  const created = Math.floor(head.startedAt / 1000);
  return {
    id: responseId(head),
    object: 'response',
    created_at: created,
    completed_at: turn && status === 'completed' ? Math.floor(turn.endedAt / 1000) : null,
    status,
    background: false,
    error: error ?? null,
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    model: head.model,
    output,
    ...echo,
    truncation: 'disabled',
    usage: turn ? usageOf(turn) : null,
  };
}

function usageOf({ promptIds, sampledIds }: Turn): object {
  return {
    input_tokens: promptIds.length,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: sampledIds.length,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: promptIds.length + sampledIds.length,
  };
}
