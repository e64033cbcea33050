/**
 * A Chat Completions answer as server-sent events, in the chunks that OpenAI sends: the role, deltas of reasoning, of content and of
 * tool calls, the finish reason, the usage where it was asked for, `[DONE]`. A failure after the first chunk is an event with an
 * `error`, which ends the stream.
 *
 * Only how it is written. What is said when is `event-stream.ts`; content is null until there is some, as in the turn.
 */
import type { EventEncoder, Said, Tokens } from '../event-stream.ts';
import { gatewayFailure, openAIError } from '../http-errors.ts';
import { completionId, finishReason, logprobsOf, usageOf } from './chat-answer.ts';
import type { AnswerHead } from './dialect.ts';
import { serverSentEvent } from './server-sent-event.ts';

export interface ChunkOptions {
  readonly count: number;
  readonly includeUsage: boolean;
  readonly logprobs: boolean;
}

export function chatEvents(head: AnswerHead, { count, includeUsage, logprobs }: ChunkOptions): EventEncoder {
  const { model, startedAt, toolCallId } = head;
  const common = { id: completionId(head), object: 'chat.completion.chunk', created: Math.floor(startedAt / 1000), model };
  const usage = includeUsage ? { usage: null } : {};
  /** Tokens whose text has not been written yet, by choice. */
  const untold: object[][] = Array.from({ length: count }, () => []);

  const chunk = (index: number, delta: object, finish: string | null = null): string => {
    const told = logprobs && untold[index]!.length > 0 ? { content: untold[index]!.splice(0), refusal: null } : null;
    return serverSentEvent({ ...common, choices: [{ index, delta, logprobs: told, finish_reason: finish }], ...usage });
  };

  const tokens = (choice: number, { ids, logprobs: given }: Tokens): string => {
    untold[choice]!.push(...logprobsOf(ids, given, head));
    return '';
  };

  const said = ({ choice, piece }: Said): string => {
    if (piece.kind === 'tokens') return tokens(choice, piece);
    if (piece.kind === 'reasoning') return chunk(choice, { reasoning_content: piece.text });
    if (piece.kind === 'text') return chunk(choice, { content: piece.text });
    const { index, call } = piece;
    const opening = { index, id: toolCallId(choice, index), type: 'function', function: { name: call.name, arguments: '' } };
    return (
      chunk(choice, { tool_calls: [opening] }) +
      chunk(choice, { tool_calls: [{ index, function: { arguments: call.arguments } }] })
    );
  };

  return {
    start: () => Array.from({ length: count }, (_, i) => chunk(i, { role: 'assistant', content: null, refusal: null })).join(''),
    pieces: (all) => all.map(said).join(''),
    end: (turns) => {
      const last = turns.map((turn, i) => chunk(i, turn.response.content === '' ? { content: '' } : {}, finishReason(turn)));
      const total = includeUsage ? serverSentEvent({ ...common, choices: [], usage: usageOf(turns) }) : '';
      return `${last.join('')}${total}data: [DONE]\n\n`;
    },
    failure: (thrown) => serverSentEvent(openAIError(gatewayFailure(thrown))),
  };
}
