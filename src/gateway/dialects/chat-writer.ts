/**
 * Turns as a Chat Completions body, or as server-sent events in the chunks that OpenAI sends: the role, deltas of reasoning, of content and
 * of tool calls, the finish reason, the usage where it was asked for, `[DONE]`. A failure after the first chunk is an event with an `error`,
 * which ends the stream. Content is null until there is some, as in the turn.
 */
import type { Turn } from '../../core/types.ts';
import type { ChoicePiece, EventEncoder } from '../event-stream.ts';
import { gatewayFailure, openAIError } from '../wire-protocol.ts';
import { type AnswerHead, serverSentEvent } from './dialect.ts';

export function chatBody(turns: readonly Turn[], head: AnswerHead, logprobs: boolean): object {
  return {
    ...headOf(head, 'chat.completion'),
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

const headOf = ({ id, startedAt, model }: AnswerHead, object: string): object => ({
  id: `chatcmpl-${id}`,
  object,
  created: Math.floor(startedAt / 1000),
  model,
});

export function logprobsOf(ids: Int32Array, logprobs: Float32Array, { tokenText }: Pick<AnswerHead, 'tokenText'>): object[] {
  return Array.from(ids, (id, i) => {
    const token = tokenText(id);
    return { token, logprob: logprobs[i], bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
}

function finishReason({ stopReason, response }: Turn): 'length' | 'tool_calls' | 'stop' {
  if (stopReason === 'length') return 'length';
  return (response.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop';
}

/** The prompt counts once, however many answers there are. */
function usageOf(turns: readonly Turn[]): object {
  const prompt = turns[0]?.promptIds.length ?? 0;
  const completion = turns.reduce((sum, turn) => sum + turn.sampledIds.length, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

interface ChunkOptions {
  readonly count: number;
  readonly includeUsage: boolean;
  readonly logprobs: boolean;
}

export function chatEvents(head: AnswerHead, { count, includeUsage, logprobs }: ChunkOptions): EventEncoder {
  const common = headOf(head, 'chat.completion.chunk');
  const usage = includeUsage ? { usage: null } : {};
  /** Tokens whose text has not been written yet, by choice. */
  const pending: object[][] = Array.from({ length: count }, () => []);

  const chunk = (index: number, delta: object, finish: string | null = null): string => {
    const told = logprobs && pending[index]!.length > 0 ? { content: pending[index]!.splice(0), refusal: null } : null;
    return serverSentEvent({ ...common, choices: [{ index, delta, logprobs: told, finish_reason: finish }], ...usage });
  };

  const encode = ({ choice, piece }: ChoicePiece): string => {
    if (piece.kind === 'tokens') {
      pending[choice]!.push(...logprobsOf(piece.ids, piece.logprobs, head));
      return '';
    }
    if (piece.kind === 'reasoning') return chunk(choice, { reasoning_content: piece.text });
    if (piece.kind === 'text') return chunk(choice, { content: piece.text });
    const { index, call } = piece;
    const opening = { index, id: head.toolCallId(choice, index), type: 'function', function: { name: call.name, arguments: '' } };
    return (
      chunk(choice, { tool_calls: [opening] }) +
      chunk(choice, { tool_calls: [{ index, function: { arguments: call.arguments } }] })
    );
  };

  return {
    start: () => Array.from({ length: count }, (_, i) => chunk(i, { role: 'assistant', content: null, refusal: null })).join(''),
    pieces: (pieces) => pieces.map(encode).join(''),
    end: (turns) => {
      const last = turns.map((turn, i) => chunk(i, turn.response.content === '' ? { content: '' } : {}, finishReason(turn)));
      const total = includeUsage ? serverSentEvent({ ...common, choices: [], usage: usageOf(turns) }) : '';
      return `${last.join('')}${total}data: [DONE]\n\n`;
    },
    failure: (thrown) => serverSentEvent(openAIError(gatewayFailure(thrown))),
  };
}
