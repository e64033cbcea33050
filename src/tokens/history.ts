/**
 * Finds the recorded turn that a request continues and, if that is not simply the latest one, the reason.
 *
 * The comparison ignores what clients change when they store and re-send messages: `null` or `''` as content, tool-call ids, and the key
 * order and spacing of arguments. If two turns said the same, the ids of their tool calls decide.
 *
 * Pure functions of messages; the renderer makes the token ids of a continuation.
 */
import { sameJson } from '../core/json.ts';
import type { Fork, ForkCause, Message, Tool, ToolCall, Turn } from '../core/types.ts';

/** The fields of a turn that are compared. */
export type Past = Pick<Turn, 'index' | 'thread' | 'role' | 'request' | 'response' | 'model'>;

export interface Asked {
  readonly thread: string;
  readonly role: string;
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
}

export interface Relation<T extends Past> {
  /** The turn that the request continues, and its messages that are new, possibly none. */
  readonly continues?: { readonly turn: T; readonly newMessages: readonly Message[] };
  /** Present where the request does not simply continue the latest turn of its thread. */
  readonly fork?: Fork;
}

/** `all` is ordered by index. Looks at the latest turn first, so a conversation that simply goes on costs one comparison. */
export function relate<T extends Past>(all: readonly T[], asked: Asked): Relation<T> {
  const turns = all.filter(isComparable);
  const own = turns.filter((turn) => turn.thread === asked.thread && turn.role === asked.role);
  const latest = own.at(-1);
  const continues = continuedBy(own, asked);
  if (continues && continues.turn === latest) return { continues };
  if (continues) return { continues, fork: departure(own, asked, continues.turn) };
  if (latest !== undefined) return { fork: departure(own, asked) };
  const other = turns.findLast((turn) => newMessagesAfter(turn, asked.messages) !== undefined);
  return other ? { fork: { cause: 'role_change', from: other.index } } : {};
}

/** Another model's turn has no ids to continue from, and a request given as ids has no messages to compare. */
const isComparable = ({ model, request }: Past): boolean => model === undefined && request.messages.length > 0;

function continuedBy<T extends Past>(turns: readonly T[], { messages, tools }: Asked): Relation<T>['continues'] {
  let found: Relation<T>['continues'];
  for (let i = turns.length - 1; i >= 0; i--) {
    const turn = turns[i]!;
    const longest = found?.turn.request.messages.length ?? -1;
    if (turn.request.messages.length < longest || !sameTools(turn.request.tools, tools)) continue;
    const newMessages = newMessagesAfter(turn, messages);
    if (newMessages === undefined) continue;
    const place = messages.length - newMessages.length - 1;
    if (sameIds(turn.response, messages[place]!)) return { turn, newMessages };
    if (turn.request.messages.length > longest) found = { turn, newMessages };
  }
  return found;
}

/** The messages that are new, possibly none; undefined if they do not begin with the turn's request and response. */
export function newMessagesAfter({ request, response }: Pick<Turn, 'request' | 'response'>, messages: readonly Message[]) {
  const { length } = request.messages;
  if (messages.length <= length || !sameMessage(response, messages[length]!)) return undefined;
  // From the end, because an edited history rarely changes at its beginning.
  for (let i = length - 1; i >= 0; i--) if (!sameMessage(request.messages[i]!, messages[i]!)) return undefined;
  return messages.slice(length + 1);
}

// ── why a conversation did not simply go on ──────────────────────────────────────────────────────────────────────────────

/** Compares with the turn that shares the longest beginning with the request; of several, with the latest. */
function departure(turns: readonly Past[], asked: Asked, continued?: Past): Fork {
  let from = turns.at(-1)!;
  let common = -1;
  for (const turn of turns.toReversed()) {
    // A shorter conversation cannot share more than the best one does. So a conversation that forks at every turn costs one comparison.
    if (turn.request.messages.length < common || turn === continued) continue;
    const shared = sharedMessages(spoken(turn), asked.messages);
    if (shared > common) {
      from = turn;
      common = shared;
    }
  }
  const recorded = spoken(from);
  // Another answer to the same request: the policy did say it, so nothing was edited.
  const otherAnswer = common < recorded.length && continued?.request.messages.length === common;
  const cause = otherAnswer ? 'rewound' : causeOf(from, recorded, asked, common);
  const differs = common < asked.messages.length && common < recorded.length;
  return { cause, from: from.index, ...(differs ? { message: common } : {}) };
}

function causeOf(from: Past, recorded: readonly Message[], { messages, tools }: Asked, common: number): ForkCause {
  if (common === recorded.length) return 'changed_tools';
  if (common === messages.length) {
    if (messages.length !== from.request.messages.length) return 'rewound';
    return sameTools(from.request.tools, tools) ? 'asked_again' : 'changed_tools';
  }
  const was = recorded[common]!;
  const is = messages[common]!;
  if (was.role === 'assistant' && is.role === 'assistant') return changedWords(was, is);
  const later = recorded.slice(common + 1);
  const keepsLater = messages.slice(common).some((message) => later.some((kept) => sameMessage(kept, message)));
  const opens = isOpening(recorded, common);
  if (messages.length < recorded.length && (keepsLater || (was.role !== is.role && !opens))) return 'compaction';
  return keepsLater || !opens ? 'edited_message' : 'side_call';
}

/** Whether only system messages come before this place. */
const isOpening = (messages: readonly Message[], place: number): boolean =>
  messages.slice(0, place).every((message) => message.role === 'system');

function changedWords(was: Message, is: Message): ForkCause {
  if ((was.reasoning ?? '') !== (is.reasoning ?? '') && sameMessage({ ...was, reasoning: '' }, { ...is, reasoning: '' })) {
    return is.reasoning ? 'edited_message' : 'dropped_reasoning';
  }
  const calls = was.tool_calls ?? [];
  const kept = is.tool_calls ?? [];
  const dropsCalls = kept.length < calls.length && kept.every((call) => calls.some((other) => sameCall(other, call)));
  return dropsCalls ? 'dropped_tool_call' : 'edited_message';
}

const spoken = ({ request, response }: Past): readonly Message[] => [...request.messages, response];

function sharedMessages(a: readonly Message[], b: readonly Message[]): number {
  let shared = 0;
  while (shared < a.length && shared < b.length && sameMessage(a[shared]!, b[shared]!)) shared++;
  return shared;
}

// ── when two things are the same ─────────────────────────────────────────────────────────────────────────────────────────

function sameMessage(a: Message, b: Message): boolean {
  if (a === b) return true;
  const callsOfA = a.tool_calls ?? [];
  const callsOfB = b.tool_calls ?? [];
  return (
    a.role === b.role &&
    (a.content ?? '') === (b.content ?? '') &&
    (a.reasoning ?? '') === (b.reasoning ?? '') &&
    // Clients add their own name to the policy's messages; in other messages the name is part of the prompt.
    (a.role === 'assistant' || (a.name ?? '') === (b.name ?? '')) &&
    callsOfA.length === callsOfB.length &&
    callsOfA.every((call, i) => sameCall(call, callsOfB[i]!))
  );
}

function sameTools(a: readonly Tool[], b: readonly Tool[]): boolean {
  return a.length === b.length && sameJson(a, b);
}

/** Whether the calls have the ids that we gave them, which are unique to a turn. */
function sameIds(said: Message, resent: Message): boolean {
  const calls = said.tool_calls ?? [];
  return calls.length > 0 && calls.every((call, i) => call.id === resent.tool_calls?.[i]?.id);
}

function sameCall(a: ToolCall, b: ToolCall): boolean {
  return a.function.name === b.function.name && sameArguments(a.function.arguments, b.function.arguments);
}

/** The arguments after a client parsed and re-serialised them: `-0` becomes `0`, and numbers beyond JavaScript's range `null`. */
const resent = (json: string): unknown => JSON.parse(JSON.stringify(JSON.parse(json)));

function sameArguments(a: string, b: string): boolean {
  if (a === b) return true;
  try {
    return sameJson(resent(a), resent(b));
  } catch {
    return false;
  }
}
