/**
 * Model calls that somebody else answered, or this policy earlier, as turns that the policy could have sampled: prompts and responses in its
 * own chat template, conversations grown as the gateway grows them, so that what is taught is what the policy will see and say. Each
 * response is read back as a client would get it; one that reads differently is left out and named. Log-probabilities are 0: such turns are
 * for cross-entropy, which does not look at them.
 */
import { isDeepStrictEqual } from 'node:util';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Message, SamplingSettings, Turn } from '../core/types.ts';
import { relate, sameMessage } from './history.ts';
import type { Renderer } from './renderer.ts';
import { inCallOrder } from './tool-calls.ts';

/** A model call and its response, as messages. */
export type AnsweredCall = Pick<Turn, 'index' | 'thread' | 'role' | 'response' | 'stopReason'> & {
  readonly request: Pick<Turn['request'], 'messages' | 'tools'>;
};

export interface TaughtTurns {
  readonly turns: readonly Turn[];
  /** For each call that cannot be taught, why. */
  readonly unsaid: readonly string[];
}

const PLAIN: SamplingSettings = { temperature: 1, topP: 1, topK: 0, maxTokens: 1 };

/** `given`: the calls of one rollout in the order of their indices. */
export function taughtTurns(renderer: Renderer, given: readonly AnsweredCall[]): TaughtTurns {
  const ordered = given.map((call) => ({ ...call, request: { ...call.request, messages: inCallOrder(call.request.messages) } }));
  const calls = withFittingIds(renderer, ordered);
  const turns: Turn[] = [];
  const unsaid: string[] = [];
  for (const call of calls) {
    const ids = saidIds(renderer, call);
    if (typeof ids === 'string') unsaid.push(ids);
    else turns.push(plainTurn(call, promptOf(renderer, call, turns), ids));
  }
  return { turns, unsaid };
}

/**
 * Whether this policy's template and tokenizer made all prompts of a rollout, so that its ids can be taught as they are. A prompt that
 * extends a turn is made of that turn's ids, so those that were rendered afresh decide.
 */
export function areOwn(renderer: Renderer, turns: readonly Turn[]): boolean {
  const sampled = turns.filter(({ model }) => model === undefined);
  const opened = sampled.filter(({ after }) => after === undefined);
  const isRooted = sampled.every(({ after }) => after === undefined || sampled.some(({ index }) => index === after));
  return opened.length > 0 && isRooted && opened.every((turn) => isOpenedBy(renderer, turn));
}

/** As sampled, without what only matters to reinforcement learning. */
export function ownTurns(turns: readonly Turn[]): readonly Turn[] {
  return turns.map((turn) => plainTurn(turn, turn.promptIds, turn.sampledIds));
}

/** A call that was forced begins in the prompt. */
function isOpenedBy(renderer: Renderer, { request: { messages, tools }, promptIds }: Turn): boolean {
  if (messages.length === 0) return false;
  let own: Int32Array;
  try {
    own = renderer.open(messages, tools);
  } catch (thrown) {
    if (thrown instanceof TrainyardError) return false;
    throw thrown;
  }
  const forced = [undefined, ...tools.map((tool) => tool.function.name)].map((name) => renderer.callBeginning(name) ?? []);
  return [[], ...forced].some((begun) => isDeepStrictEqual([...promptIds], [...own, ...begun]));
}

function promptOf(renderer: Renderer, { thread, role, request }: AnsweredCall, before: readonly Turn[]): Int32Array {
  const { messages, tools } = request;
  const { continues } = relate(before, { thread, role, messages, tools });
  const grown = continues && renderer.extend(continues.turn, continues.newMessages);
  return grown ?? renderer.open(messages, tools);
}

/** Some templates demand tool-call ids of a certain length. Which ids they are means nothing, only which result belongs to which call. */
function withFittingIds({ toolCallIdLength: length }: Renderer, calls: readonly AnsweredCall[]): readonly AnsweredCall[] {
  if (length === undefined) return calls;
  const known = new Map<string, string>();
  const fitting = (id: string): string => {
    if (!known.has(id)) known.set(id, String(known.size).padStart(length, '0'));
    return known.get(id)!;
  };
  const renamed = (message: Message): Message => ({
    ...message,
    ...(message.tool_calls && { tool_calls: message.tool_calls.map((call) => ({ ...call, id: fitting(call.id) })) }),
    ...(message.tool_call_id !== undefined && { tool_call_id: fitting(message.tool_call_id) }),
  });
  return calls.map(({ request, response, ...call }) => ({
    ...call,
    request: { ...request, messages: request.messages.map(renamed) },
    response: renamed(response),
  }));
}

/** Or why there are none. A response that was cut off has no end of turn: nobody said it. */
function saidIds(renderer: Renderer, { request, response, stopReason }: AnsweredCall): Int32Array | string {
  if (stopReason === 'length' && response.reasoning && !response.content) return 'cut off while reasoning';
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
    index,
    thread,
    role,
    request,
    response,
    stopReason,
    promptIds,
    sampledIds,
    trainable: true,
    logprobs: new Float32Array(sampledIds.length),
    policyVersion: 0,
    sampling: { requested: {}, effective: PLAIN, seed: 0 },
    startedAt: 0,
    endedAt: 0,
  };
}
