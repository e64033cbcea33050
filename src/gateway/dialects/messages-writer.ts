/**
 * A turn as an Anthropic message: blocks of thinking, text and tool use, why it ended, what it cost. As server-sent events:
 * `message_start`, each block with its start, deltas and stop, `message_delta` with why it ended, `message_stop`; a failure after the start is
 * an `error` event, which ends the stream.
 *
 * A call's `input` is the value of the sampled arguments, of whatever kind: a number stays a number, so that it comes back as what was said.
 * Text after a tool call is a block of its own when streamed, in the order it was sampled; read back, the texts join to the turn's content.
 */
import type { Json, Turn } from '../../core/types.ts';
import type { Failure } from '../../http/refusal.ts';
import type { Piece } from '../../tokens/response-stream.ts';
import type { EventEncoder } from '../event-stream.ts';
import { gatewayFailure } from '../wire-protocol.ts';
import { type AnswerHead, serverSentEvent } from './dialect.ts';

/** Clients send thinking back only if it is signed. Nobody checks the signature. */
const SIGNATURE = 'trainyard';

export function messageBody(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
  const { content, reasoning, tool_calls: calls = [] } = turn.response;
  const blocks = [
    ...(reasoning ? [{ type: 'thinking', thinking: reasoning, signature: SIGNATURE }] : []),
    ...(content ? [{ type: 'text', text: content }] : []),
    ...calls.map(({ function: { name, arguments: given } }, i) => ({
      type: 'tool_use',
      id: head.toolCallId(0, i),
      name,
      input: inputOf(given),
    })),
  ];
  return { ...messageHead(head), content: blocks, ...endOf(turn, head, stopTexts), usage: usageOf(head, turn.sampledIds.length) };
}

const messageHead = ({ id, model }: AnswerHead): object => ({
  id: `msg_${id}`,
  type: 'message',
  role: 'assistant',
  model,
});

function usageOf({ promptTokens }: AnswerHead, sampledTokens: number): object {
  return {
    input_tokens: promptTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: sampledTokens,
  };
}

/** Calls that were made are to be run, whatever ended the answer after them. */
function endOf(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
  if (turn.stopReason === 'length') return { stop_reason: 'max_tokens', stop_sequence: null };
  if ((turn.response.tool_calls ?? []).length > 0) return { stop_reason: 'tool_use', stop_sequence: null };
  const stop = firstIn(stopTexts.length === 0 ? '' : head.text(turn.sampledIds), stopTexts);
  return { stop_reason: stop === undefined ? 'end_turn' : 'stop_sequence', stop_sequence: stop ?? null };
}

/** The stop text that is complete first in the text. */
function firstIn(text: string, stopTexts: readonly string[]): string | undefined {
  let first: string | undefined;
  let end = Number.POSITIVE_INFINITY;
  for (const stop of stopTexts) {
    const at = text.indexOf(stop);
    if (at === -1 || at + stop.length >= end) continue;
    first = stop;
    end = at + stop.length;
  }
  return first;
}

/** Arguments are JSON; should a model's call format give others, they are a text. */
function inputOf(given: string): Json {
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}

export function messageEvents(head: AnswerHead, stopTexts: readonly string[]): EventEncoder {
  const blocks = new Blocks(head);
  return {
    start: () => {
      const beginning = { content: [], stop_reason: null, stop_sequence: null, usage: usageOf(head, 0) };
      return event('message_start', { message: { ...messageHead(head), ...beginning } });
    },
    pieces: (pieces) => pieces.map(({ piece }) => (piece.kind === 'tokens' ? '' : blocks.write(piece))).join(''),
    end: ([turn]) => {
      const usage = usageOf(head, turn!.sampledIds.length);
      return `${blocks.close()}${event('message_delta', { delta: endOf(turn!, head, stopTexts), usage })}${event('message_stop', {})}`;
    },
    failure: (thrown) => event('error', anthropicError(gatewayFailure(thrown))),
  };
}

/** The blocks of one message, one after the other; at most the last is open. */
class Blocks {
  readonly #head: AnswerHead;
  #index = -1;
  #open: 'thinking' | 'text' | undefined;

  constructor(head: AnswerHead) {
    this.#head = head;
  }

  write(piece: Piece): string {
    if (piece.kind === 'call') return this.#call(piece);
    const kind = piece.kind === 'reasoning' ? 'thinking' : 'text';
    const opening = this.#open === kind ? '' : this.close() + this.#start(EMPTY[kind]);
    this.#open = kind;
    return opening + this.#delta({ type: `${kind}_delta`, [kind]: piece.text });
  }

  close(): string {
    if (this.#open === undefined) return '';
    const signature = this.#open === 'thinking' ? this.#delta({ type: 'signature_delta', signature: SIGNATURE }) : '';
    this.#open = undefined;
    return signature + this.#stop();
  }

  #call({ index, call }: Extract<Piece, { kind: 'call' }>): string {
    const use = { type: 'tool_use', id: this.#head.toolCallId(0, index), name: call.name, input: {} };
    // The sampled text itself, where it is JSON; what the client parses from it is what it would get in one body.
    const given = inputOf(call.arguments);
    const json = given === call.arguments ? JSON.stringify(given) : call.arguments;
    return this.close() + this.#start(use) + this.#delta({ type: 'input_json_delta', partial_json: json }) + this.#stop();
  }

  #start(block: object): string {
    this.#index++;
    return event('content_block_start', { index: this.#index, content_block: block });
  }

  #delta(delta: object): string {
    return event('content_block_delta', { index: this.#index, delta });
  }

  #stop(): string {
    return event('content_block_stop', { index: this.#index });
  }
}

const EMPTY = {
  thinking: { type: 'thinking', thinking: '', signature: '' },
  text: { type: 'text', text: '' },
} as const;

function event(type: string, data: object): string {
  return serverSentEvent({ type, ...data }, type);
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  529: 'overloaded_error',
};

/** Anthropic's error body. The type follows the status; our own code, field and hint come with it. */
export function anthropicError({ status, code, message, hint, param, details }: Failure): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error');
  // Agents know an overflow by these words.
  const said = code === 'context_length_exceeded' ? `prompt is too long: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  const own = { code, param: param ?? null, ...(hint === undefined ? {} : { hint }) };
  return { type: 'error', error: { type, message: whole, ...(details === undefined ? own : { details }) } };
}
