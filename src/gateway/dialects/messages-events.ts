/**
 * An Anthropic message as server-sent events: `message_start`, each block with its start, deltas and stop, `message_delta` with why it
 * ended, `message_stop`. A failure after the start is an `error` event, which ends the stream.
 *
 * Only how it is written. What is said when is `event-stream.ts`. Text after a tool call is a block of its own, as the order of the
 * sampled words has it; read back, the texts join to the turn's content.
 */
import type { Piece } from '../../tokens/response-stream.ts';
import type { EventEncoder } from '../event-stream.ts';
import { gatewayFailure } from '../http-errors.ts';
import type { AnswerHead } from './dialect.ts';
import { endOf, inputOf, messageHead, SIGNATURE, usageOf } from './messages-answer.ts';
import { anthropicError } from './messages-errors.ts';
import { serverSentEvent } from './server-sent-event.ts';

export function messageEvents(head: AnswerHead, stopTexts: readonly string[]): EventEncoder {
  const blocks = new Blocks(head);
  return {
    start: () => {
      const beginning = { content: [], stop_reason: null, stop_sequence: null, usage: usageOf(head, 0) };
      return event('message_start', { message: { ...messageHead(head), ...beginning } });
    },
    pieces: (all) => all.map(({ piece }) => (piece.kind === 'tokens' ? '' : blocks.write(piece))).join(''),
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
