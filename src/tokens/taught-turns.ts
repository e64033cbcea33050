/**
 * Model calls that somebody else answered, or this policy earlier, as turns that the policy could have sampled: prompts and responses in its
 * own chat template, conversations grown as the gateway grows them, so that what is taught is what the policy will see and say. Each
 * response is read back as a client would get it; one that reads differently is left out and named. Log-probabilities are 0: such turns are
 * for cross-entropy, which does not look at them.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Message, SamplingSettings, Turn } from '../core/types.ts';
import { relate, sameMessage } from './history.ts';
import type { Renderer } from './renderer.ts';

/** `request` has messages and tools; of a turn that was sampled here, the ids are used where they are this policy's. */
export type AnsweredCall = Pick<Turn, 'index' | 'thread' | 'role' | 'response' | 'stopReason'> & {
  readonly request: Pick<Turn['request'], 'messages' | 'tools'>;
};

export interface TaughtTurns {
  readonly turns: readonly Turn[];
  /** For each call that cannot be taught, why. */
  readonly unsaid: readonly string[];
}

const PLAIN: SamplingSettings = { temperature: 1, topP: 1, topK: 0, maxTokens: 1 };

/** `calls` in the order of their indices, of one rollout. */
export function taughtTurns(renderer: Renderer, calls: readonly AnsweredCall[]): TaughtTurns {
  const turns: Turn[] = [];
  const unsaid: string[] = [];
  for (const call of calls) {
    const ids = saidIds(renderer, call);
    if (typeof ids === 'string') unsaid.push(ids);
    else turns.push(plainTurn(call, promptOf(renderer, call, turns), ids));
  }
  return { turns, unsaid };
}

/** Whether this policy's template and tokenizer made the prompts of these turns, so that their ids can be taught as they are. */
export function areOwn(renderer: Renderer, turns: readonly Turn[]): boolean {
  return turns.every(({ model, after, request, promptIds }) => {
    if (model !== undefined || request.messages.length === 0) return false;
    if (after !== undefined) return true;
    const own = openedBy(renderer, request);
    return own !== undefined && own.length === promptIds.length && own.every((id, i) => id === promptIds[i]);
  });
}

/** As sampled, without what only matters to reinforcement learning. */
export function ownTurns(turns: readonly Turn[]): readonly Turn[] {
  return turns.map((turn) => plainTurn(turn, turn.promptIds, turn.sampledIds));
}

function openedBy(renderer: Renderer, { messages, tools }: AnsweredCall['request']): Int32Array | undefined {
  try {
    return renderer.open(messages, tools);
  } catch (thrown) {
    if (thrown instanceof TrainyardError) return undefined;
    throw thrown;
  }
}

function promptOf(renderer: Renderer, { thread, role, request }: AnsweredCall, before: readonly Turn[]): Int32Array {
  const { messages, tools } = request;
  const { continues } = relate(before, { thread, role, messages, tools });
  const grown = continues && renderer.extend(continues.turn, continues.newMessages);
  return grown ?? renderer.open(messages, tools);
}

/** Or why there are none. A response that was cut off has no end of turn: nobody said it. */
function saidIds(renderer: Renderer, { request, response, stopReason }: AnsweredCall): Int32Array | string {
  let ids: Int32Array | undefined;
  try {
    ids = renderer.spoken(request.messages, request.tools, response);
  } catch (thrown) {
    if (thrown instanceof TrainyardError) return messageOf(thrown);
    throw thrown;
  }
  if (ids === undefined) return 'the chat template writes a response in another way than its generation prompt begins one';
  const { content, reasoning, toolCalls } = renderer.readResponse(ids);
  const tool_calls = toolCalls.map((call) => ({ id: '', type: 'function' as const, function: call }));
  const read: Message = { role: 'assistant', content, tool_calls, ...(reasoning === undefined ? {} : { reasoning }) };
  if (!sameMessage(trimmed(read), trimmed(response)))
    return 'written in this model’s format, the response reads back differently';
  return stopReason === 'length' ? ids.subarray(0, -1) : ids;
}

/** Templates trim what is said. */
function trimmed({ content, reasoning, ...message }: Message): Message {
  return { ...message, content: content?.trim() ?? null, reasoning: reasoning?.trim() ?? '' };
}

function plainTurn(call: AnsweredCall, promptIds: Int32Array, sampledIds: Int32Array): Turn {
  const { index, thread, role, request, response, stopReason } = call;
  return {
    ...{ index, thread, role, request, response, stopReason, promptIds, sampledIds },
    trainable: true,
    logprobs: new Float32Array(sampledIds.length),
    policyVersion: 0,
    sampling: { requested: {}, effective: PLAIN, seed: 0 },
    startedAt: 0,
    endedAt: 0,
  };
}
