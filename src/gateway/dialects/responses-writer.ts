/**
 * Writes Responses API output, as one body or as events, and remembers it for the session. Ids derive from the completion's id, so
 * rewriting a response gives the same ids, except for items of a replayed stream. Streamed text after a call is a separate item, and the
 * final event lists the items as streamed. A failure after the start is sent as `response.failed` and as `error`: some clients throw at
 * one, some at the other.
 */
import { tokensOf } from '../../core/turns.ts';
import type { Message, Turn } from '../../core/types.ts';
import type { ParsedCall } from '../../tokens/tool-calls.ts';
import type { EventEncoder, StreamPiece } from '../event-stream.ts';
import { gatewayFailure, openAIError } from '../wire-protocol.ts';

import { type AnswerHead, logprobsOf, serverSentEvent } from './dialect.ts';

type Status = 'in_progress' | 'completed' | 'incomplete' | 'failed';
type TextKind = 'text' | 'reasoning';

export const responseId = ({ id }: AnswerHead): string => `resp_${id}`;
export const statusOf = ({ stopReason }: Turn): Status => (stopReason === 'length' ? 'incomplete' : 'completed');

const itemId = (kind: TextKind | 'call', answerId: string, place: number): string =>
  `${{ text: 'msg', reasoning: 'rs', call: 'fc' }[kind]}_${answerId}_${place}`;

/** `encrypted_content` holds the item's id instead of the reasoning, because some clients send back nothing else. */
function textItem(kind: TextKind, id: string, status: Status, content: readonly object[]): Item {
  if (kind === 'text') return { id, type: 'message', role: 'assistant', status, content };
  return { id, type: 'reasoning', summary: [], content, encrypted_content: id };
}

const textPart = (kind: TextKind, text: string, logprobs: readonly object[] = []): object =>
  kind === 'text' ? { type: 'output_text', text, annotations: [], logprobs } : { type: 'reasoning_text', text };

/** What a client calls a tool. The policy knows it by one name. */
export type ClientName = Pick<ParsedCall, 'name'> & { readonly namespace: string | undefined };
type Head = AnswerHead & { clientName(name: string): ClientName };

function callItem(id: string, callId: string, status: Status, call: ClientName & Pick<ParsedCall, 'arguments'>): Item {
  return { id, type: 'function_call', call_id: callId, ...call, status };
}

/** Reasoning, text and calls, in this order. */
export function itemsOf(turn: Turn, head: Head, withLogprobs: boolean): readonly Item[] {
  const { content, reasoning, tool_calls: calls = [] } = turn.response;
  const items: Item[] = [];
  const add = (kind: TextKind, part: object): void =>
    void items.push(textItem(kind, itemId(kind, head.id, items.length), statusOf(turn), [part]));
  if (reasoning) add('reasoning', textPart('reasoning', reasoning));
  if (content || calls.length === 0) {
    add('text', textPart('text', content ?? '', withLogprobs ? logprobsOf(turn.sampledIds, turn.logprobs, head) : []));
  }
  for (const { id, function: said } of calls) {
    const call = { ...head.clientName(said.name), arguments: said.arguments };
    items.push(callItem(itemId('call', head.id, items.length), id, 'completed', call));
  }
  return items;
}

interface Written {
  readonly status: Status;
  readonly output: readonly Item[];
  readonly turn?: Turn;
  readonly error?: { readonly code: string; readonly message: string };
}

/** `echo`: the request fields that a response repeats. */
export function responseOf(head: AnswerHead, echo: object, { status, output, turn, error }: Written): object {
  return {
    id: responseId(head),
    object: 'response',
    created_at: Math.floor(head.startedAt / 1000),
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

function usageOf(turn: Turn): object {
  const { promptTokens, sampledTokens } = tokensOf(turn);
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: sampledTokens,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: promptTokens + sampledTokens,
  };
}

interface Streaming {
  /** Whether this response was streamed before. A replay splits items differently if text followed calls, so it gets other ids. */
  readonly isReplay: boolean;
  onEnd(turn: Turn, items: readonly Item[]): void;
}

export function responsesEvents(head: Head, echo: object, streaming: Streaming): EventEncoder {
  const output = new Output(head, streaming.isReplay);
  const lifecycle = (type: string, written: Written): string => output.event(type, { response: responseOf(head, echo, written) });
  return {
    start: () => {
      const written = { status: 'in_progress', output: [] } as const;
      return lifecycle('response.created', written) + lifecycle('response.in_progress', written);
    },
    pieces: (all) => all.map(({ piece }) => output.say(piece)).join(''),
    end: ([turn]) => {
      const status = statusOf(turn!);
      const rest = output.end(status);
      streaming.onEnd(turn!, output.items);
      return rest + lifecycle(`response.${status}`, { status, output: output.items, turn: turn! });
    },
    failure: (thrown) => {
      const { error } = openAIError(gatewayFailure(thrown)) as { error: { code: string; message: string; param: string | null } };
      const { code, message, param } = error;
      const failed = lifecycle('response.failed', { status: 'failed', output: output.items, error: { code, message } });
      return failed + output.event('error', { code, message, param, error });
    },
  };
}

interface OpenItem {
  readonly kind: TextKind;
  readonly id: string;
  text: string;
  readonly logprobs: object[];
}

const PART_EVENTS = { text: 'response.output_text', reasoning: 'response.reasoning_text' } as const;

class Output {
  readonly items: Item[] = [];
  readonly #head: Head;
  readonly #answerId: string;
  #open: OpenItem | undefined;
  /** Tokens whose text is not written yet, if log-probabilities were requested. */
  #pending: object[] = [];
  #sequence = 0;

  constructor(head: Head, isReplay: boolean) {
    this.#head = head;
    this.#answerId = isReplay ? `${head.id}-again` : head.id;
  }

  event(type: string, data: object): string {
    return serverSentEvent({ type, sequence_number: this.#sequence++, ...data }, type);
  }

  say(piece: StreamPiece): string {
    if (piece.kind === 'call') return this.#close('completed') + this.#call(piece.index, piece.call);
    if (piece.kind !== 'tokens') return this.#fill(piece.kind, piece.text);
    this.#pending.push(...logprobsOf(piece.ids, piece.logprobs, this.#head));
    return '';
  }

  /** A completion without text or calls gets an empty text item. */
  end(status: Status): string {
    const isSilent = this.items.every((item) => item['type'] === 'reasoning') && this.#open?.kind !== 'text';
    const opening = isSilent ? this.#close('completed') + this.#begin('text') : '';
    if (this.#open?.kind === 'text') this.#open.logprobs.push(...this.#pending.splice(0));
    return opening + this.#close(status);
  }

  #fill(kind: TextKind, delta: string): string {
    const opening = this.#open?.kind === kind ? '' : this.#close('completed') + this.#begin(kind);
    const open = this.#open!;
    open.text += delta;
    const told = kind === 'text' ? { logprobs: this.#pending.splice(0) } : {};
    open.logprobs.push(...(told.logprobs ?? []));
    return opening + this.#inPart(`${PART_EVENTS[kind]}.delta`, { delta, ...told });
  }

  #begin(kind: TextKind): string {
    const id = itemId(kind, this.#answerId, this.items.length);
    this.#open = { kind, id, text: '', logprobs: [] };
    const added = this.#item('response.output_item.added', textItem(kind, id, 'in_progress', []));
    return added + this.#inPart('response.content_part.added', { part: textPart(kind, '') });
  }

  #close(status: Status): string {
    if (this.#open === undefined) return '';
    const { kind, id, text, logprobs } = this.#open;
    const part = textPart(kind, text, logprobs);
    const item = textItem(kind, id, status, [part]);
    const events =
      this.#inPart(`${PART_EVENTS[kind]}.done`, kind === 'text' ? { text, logprobs } : { text }) +
      this.#inPart('response.content_part.done', { part }) +
      this.#item('response.output_item.done', item);
    this.#open = undefined;
    this.items.push(item);
    return events;
  }

  #call(index: number, said: ParsedCall): string {
    const call = { ...this.#head.clientName(said.name), arguments: said.arguments };
    const id = itemId('call', this.#answerId, this.items.length);
    const callId = said.id ?? this.#head.toolCallId(0, index);
    const at = { item_id: id, output_index: this.items.length };
    const item = callItem(id, callId, 'completed', call);
    const events =
      this.#item('response.output_item.added', callItem(id, callId, 'in_progress', { ...call, arguments: '' })) +
      this.event('response.function_call_arguments.delta', { ...at, delta: call.arguments }) +
      this.event('response.function_call_arguments.done', { ...at, name: call.name, arguments: call.arguments }) +
      this.#item('response.output_item.done', item);
    this.items.push(item);
    return events;
  }

  #item(type: string, item: Item): string {
    return this.event(type, { output_index: this.items.length, item });
  }

  #inPart(type: string, data: object): string {
    return this.event(type, { item_id: this.#open!.id, output_index: this.items.length, content_index: 0, ...data });
  }
}

export type Item = Readonly<Record<string, unknown>>;

interface KeptItem {
  readonly item: Item;
  readonly responseId: string;
}

export interface KeptResponse {
  readonly id: string;
  readonly previous: KeptResponse | undefined;
  /** The new messages of this call, without instructions, and the response. */
  readonly messages: readonly Message[];
  readonly items: readonly Item[];
}

const MOST_RESPONSES = 10_000;

/**
 * Remembers a rollout's responses for clients that refer to them by id: `item_reference`, `previous_response_id`, and reasoning without its
 * text. Each response links to the previous one, so a long conversation is kept once. Beyond MOST_RESPONSES, the oldest are forgotten.
 */
export class ResponsesMemory {
  readonly #responses = new Map<string, KeptResponse>();
  /** By item id and by call id. */
  readonly #items = new Map<string, KeptItem>();

  /** A response that is written again for a retry keeps the items of both versions. */
  keep(response: KeptResponse): void {
    const { id } = response;
    const before = this.#responses.get(id)?.items ?? [];
    const others = before.filter((item) => response.items.every((other) => other['id'] !== item['id']));
    this.#responses.set(id, { ...response, items: [...others, ...response.items] });
    for (const item of response.items) for (const name of namesOf(item)) this.#items.set(name, { item, responseId: id });
    const [oldest] = this.#responses.keys();
    if (this.#responses.size > MOST_RESPONSES) this.#forget(oldest!);
  }

  item(name: string): KeptItem | undefined {
    return this.#items.get(name);
  }

  response(id: string): KeptResponse | undefined {
    return this.#responses.get(id);
  }

  #forget(id: string): void {
    for (const item of this.#responses.get(id)?.items ?? []) for (const name of namesOf(item)) this.#items.delete(name);
    this.#responses.delete(id);
  }
}

const memories = new WeakMap<object, ResponsesMemory>();

export function memoryOf(session: object): ResponsesMemory {
  const memory = memories.get(session) ?? new ResponsesMemory();
  memories.set(session, memory);
  return memory;
}

/** The whole conversation, including this response. */
export function conversationOf(last: KeptResponse): readonly Message[] {
  const parts: (readonly Message[])[] = [];
  for (let at: KeptResponse | undefined = last; at !== undefined; at = at.previous) parts.push(at.messages);
  return parts.toReversed().flat();
}

const namesOf = (item: Item): readonly string[] => [item['id'], item['call_id']].filter((name) => typeof name === 'string');
