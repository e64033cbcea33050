/**
 * A turn as an Anthropic message: blocks of thinking, text and tool use, why it ended, what it cost.
 *
 * A call's `input` is the value of the sampled arguments, of whatever kind: usually an object, but a number stays a number, so that
 * it comes back as what was said. Its spelling is lost here, as in every client; the turn keeps it.
 */
import type { Json, Turn } from '../../core/types.ts';
import type { AnswerHead } from './dialect.ts';

/** Clients give thinking back only if it is signed. Nobody checks what it says. */
export const SIGNATURE = 'trainyard';

export function wholeMessage(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
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

export const messageHead = ({ id, model }: AnswerHead): object => ({
  id: `msg_${id}`,
  type: 'message',
  role: 'assistant',
  model,
});

export function usageOf({ promptTokens }: AnswerHead, sampledTokens: number): object {
  return {
    input_tokens: promptTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: sampledTokens,
  };
}

/** Calls that were made are to be run, whatever ended the answer after them. */
export function endOf(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
  if (turn.stopReason === 'length') return { stop_reason: 'max_tokens', stop_sequence: null };
  if ((turn.response.tool_calls ?? []).length > 0) return { stop_reason: 'tool_use', stop_sequence: null };
  const stop = firstIn(stopTexts.length === 0 ? '' : head.text(turn.sampledIds), stopTexts);
  return { stop_reason: stop === undefined ? 'end_turn' : 'stop_sequence', stop_sequence: stop ?? null };
}

/** Of the texts that occur, the one that is complete first. */
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
export function inputOf(given: string): Json {
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}
