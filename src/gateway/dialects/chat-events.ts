/**
 * A Chat Completions answer as server-sent events, in the chunks that OpenAI sends: the role, deltas of content and of tool calls,
 * the finish reason, the usage where it was asked for, `[DONE]`. A failure after the first chunk is an event with an `error`, which
 * ends the stream.
 *
 * Only how it is written. What is said when is `event-stream.ts`; content is null until there is some, as in the turn.
 */
import type { Turn } from '../../core/types.ts';
import type { Piece } from '../../tokens/response-stream.ts';
import type { EventEncoder } from '../event-stream.ts';
import { errorOf } from '../http-errors.ts';
import { finishReason, usageOf } from './chat.ts';

export interface ChunkHead {
  /** The same in every chunk. */
  readonly id: string;
  readonly model: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly includeUsage: boolean;
  toolCallId(index: number): string;
}

export function chatEvents({ id, model, startedAt, includeUsage, toolCallId }: ChunkHead): EventEncoder {
  const head = { id, object: 'chat.completion.chunk', created: Math.floor(startedAt / 1000), model };
  const usage = includeUsage ? { usage: null } : {};
  const chunk = (delta: object, finish: string | null = null): string =>
    event({ ...head, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }], ...usage });

  const said = (piece: Piece): string => {
    if (piece.kind === 'text') return chunk({ content: piece.text });
    const { index, call } = piece;
    const opening = { index, id: toolCallId(index), type: 'function', function: { name: call.name, arguments: '' } };
    return chunk({ tool_calls: [opening] }) + chunk({ tool_calls: [{ index, function: { arguments: call.arguments } }] });
  };

  return {
    start: () => chunk({ role: 'assistant', content: null, refusal: null }),
    pieces: (pieces) => pieces.map(said).join(''),
    end: (turn: Turn) => {
      const last = chunk(turn.response.content === '' ? { content: '' } : {}, finishReason(turn));
      const total = includeUsage ? event({ ...head, choices: [], usage: usageOf(turn) }) : '';
      return `${last}${total}data: [DONE]\n\n`;
    },
    failure: (thrown) => event(errorOf(thrown).body),
  };
}

function event(data: object): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}
