/** Turns as a Chat Completions body, and the parts of it that a stream says too: ids, log-probabilities, why it ended, usage. */
import type { Turn } from '../../core/types.ts';
import type { EventEncoder, Said, Tokens } from '../event-stream.ts';
import { gatewayFailure, openAIError } from '../wire-protocol.ts';
import { type AnswerHead, serverSentEvent } from './dialect.ts';

/** The response body. */
export function encodeChat(turns: readonly Turn[], head: AnswerHead, logprobs: boolean): object {
  return {
    id: completionId(head),
    object: 'chat.completion',
    created: Math.floor(head.startedAt / 1000),
    model: head.model,
    choices: turns.map((turn, index) => {
      const { content, reasoning, tool_calls: calls = [] } = turn.response;
      return {
        index,
        message: {
          role: 'assistant',
          content,
          refusal: null,
          ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
          ...(calls.length > 0 ? { tool_calls: calls } : {}),
        },
        logprobs: logprobs ? { content: logprobsOf(turn.sampledIds, turn.logprobs, head), refusal: null } : null,
        finish_reason: finishReason(turn),
      };
    }),
    usage: usageOf(turns),
  };
}

export const completionId = ({ id }: AnswerHead): string => `chatcmpl-${id}`;

export function logprobsOf(ids: Int32Array, logprobs: Float32Array, { tokenText }: Pick<AnswerHead, 'tokenText'>): object[] {
  return Array.from(ids, (id, i) => {
    const token = tokenText(id);
    return { token, logprob: logprobs[i], bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
}

export function finishReason({ stopReason, response }: Turn): 'length' | 'tool_calls' | 'stop' {
  if (stopReason === 'length') return 'length';
  return (response.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop';
}

/** The prompt counts once, however many answers there are. */
export function usageOf(turns: readonly Turn[]): object {
  const prompt = turns[0]?.promptIds.length ?? 0;
  const completion = turns.reduce((sum, turn) => sum + turn.sampledIds.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

// From chat-events.ts: A Chat Completions answer as server-sent events, in the chunks that OpenAI sends: the role, deltas of reasoning, of content and of
// tool calls, the finish reason, the usage where it was asked for, `[DONE]`. A failure after the first chunk is an event with an
// `error`, which ends the stream.
//
// Only how it is written. What is said when is `event-stream.ts`; content is null until there is some, as in the turn.

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
