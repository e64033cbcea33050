/** Turns as a Chat Completions body, and the parts of it that a stream says too: ids, log-probabilities, why it ended, usage. */
import type { Turn } from '../../core/types.ts';
import type { AnswerHead } from './dialect.ts';

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
