/**
 * Finds the recorded turn that a request continues and, if the conversation does not simply go on from there, the reasons; and, once a
 * rollout has ended, the client's side calls among its turns.
 *
 * The comparison ignores what clients change when they store and re-send messages: `null` or `''` as content, tool-call ids, and the key
 * order and spacing of arguments. If two turns said the same, the ids of their tool calls decide.
 *
 * Pure functions of messages; the renderer makes the token ids of a continuation.
 */
import { sameJson } from '../core/json.ts';
import { parentOf } from '../core/reward.ts';
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
  /** Present where the request does not simply continue the latest turn of its conversation. */
  readonly fork?: Fork;
}

/** `all` is ordered by index. Looks at the latest turn first, so a conversation that simply goes on costs one comparison. */
export function relate<T extends Past>(all: readonly T[], asked: Asked): Relation<T> {
  const turns = all.filter(isComparable);
  const own = turns.filter((turn) => turn.thread === asked.thread && turn.role === asked.role);
  const latest = own.at(-1);
  const continues = continuedBy(own, asked);
  if (continues && continues.turn === latest) return { continues };
  if (latest !== undefined) {
    const fork = departure(own, asked, continues?.turn);
    return { ...(continues ? { continues } : {}), ...(fork ? { fork } : {}) };
  }
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

/**
 * Compares with the turn that shares the longest beginning with the request; of several, with the latest that had the same tools. Undefined
 * if whatever came after the continued turn departs before its question: a side call or another agent does not interrupt a conversation.
 */
function departure(turns: readonly Past[], asked: Asked, continued?: Past): Fork | undefined {
  let from = turns.at(-1)!;
  let common = -1;
  for (const turn of turns.toReversed()) {
    if (turn === continued) break;
    // A shorter conversation cannot share more than the best one does. So a conversation that forks at every turn costs one comparison.
    if (turn.request.messages.length < common) continue;
    const shared = sharedMessages(spoken(turn), asked.messages);
    const hasOurTools = (one: Past) => sameTools(one.request.tools, asked.tools);
    if (shared > common || (shared === common && hasOurTools(turn) && !hasOurTools(from))) {
      from = turn;
      common = shared;
    }
  }
  if (continued && common < continued.request.messages.length) return undefined;
  const recorded = spoken(from);
  // Another answer to the same request: the policy did say it, so nothing was edited.
  const otherAnswer = common < recorded.length && continued?.request.messages.length === common;
  const [cause, ...also] = otherAnswer ? (['rewound'] as const) : causesOf(turns, from, asked, common);
  const differs = common < asked.messages.length && common < recorded.length;
  return { cause: cause!, ...(also.length > 0 ? { also } : {}), from: from.index, ...(differs ? { message: common } : {}) };
}

function causesOf(turns: readonly Past[], from: Past, asked: Asked, common: number): readonly ForkCause[] {
  const { messages } = asked;
  const recorded = spoken(from);
  const tools: readonly ForkCause[] = sameTools(from.request.tools, asked.tools) ? [] : ['changed_tools'];
  if (common === recorded.length) return ['changed_tools'];
  if (common === messages.length) {
    if (messages.length !== from.request.messages.length) return ['rewound', ...tools];
    return tools.length > 0 ? tools : ['asked_again'];
  }
  const was = recorded[common]!;
  const is = messages[common]!;
  if (was.role === 'assistant' && is.role === 'assistant') return [...changedWords(recorded, messages, common), ...tools];
  const later = recorded.slice(common + 1);
  const kept = messages.slice(common).filter((message) => later.some((other) => sameMessage(other, message)));
  const isShorter = messages.length < recorded.length;
  if (!isOpening(recorded, common)) {
    return [isShorter && (kept.length > 0 || was.role !== is.role) ? 'compaction' : 'edited_message', ...tools];
  }
  if (!kept.some(({ role }) => role === 'assistant')) {
    return isShorter && isSummary(turns, from, messages, common) ? ['compaction', ...tools] : ['new_conversation'];
  }
  if (tools.length > 0 && was.role === 'system' && is.role === 'system') return ['role_change'];
  return [isShorter ? 'compaction' : 'edited_message', ...tools];
}

/** Whether only system messages come before this place. */
const isOpening = (messages: readonly Message[], place: number): boolean =>
  messages.slice(0, place).every((message) => message.role === 'system');

/** A shorter text of the policy may stand in a message by chance. */
const QUOTE_LENGTH = 20;

/**
 * Whether a conversation that had gone on begins anew, under the same system message, with what stands for its past: words of the
 * policy, or a message that quotes a turn.
 */
function isSummary(turns: readonly Past[], from: Past, messages: readonly Message[], common: number): boolean {
  const isSaid = ({ role }: Message) => role === 'assistant';
  if (!from.request.messages.some(isSaid)) return false;
  if (common === 0 && [from.request.messages[0], messages[0]].some((message) => message?.role === 'system')) return false;
  const quotes = ({ response }: Past) => {
    const said = response.content?.trim() ?? '';
    return said.length >= QUOTE_LENGTH && messages.slice(common).some(({ content }) => content?.includes(said));
  };
  return messages.some(isSaid) || turns.some(quotes);
}

/** What was done to the policy's words from this place on: first what the client dropped there. */
function changedWords(recorded: readonly Message[], messages: readonly Message[], place: number): readonly ForkCause[] {
  const causes = new Set<ForkCause>();
  for (let i = place; i < recorded.length && i < messages.length; i++) {
    const [was, is] = [recorded[i]!, messages[i]!];
    if (sameMessage(was, is)) continue;
    const calls = was.tool_calls ?? [];
    const kept = is.tool_calls ?? [];
    const dropsCalls = kept.length < calls.length && kept.every((call) => calls.some((other) => sameCall(other, call)));
    const dropsReasoning = Boolean(was.reasoning) && !is.reasoning;
    if (dropsReasoning) causes.add('dropped_reasoning');
    if (dropsCalls) causes.add('dropped_tool_call');
    const reasoning = dropsReasoning ? '' : was.reasoning;
    const rest = { ...was, reasoning: reasoning ?? '', tool_calls: dropsCalls ? kept : calls };
    if (!sameMessage(rest, is)) causes.add('edited_message');
  }
  return [...causes];
}

const spoken = ({ request, response }: Past): readonly Message[] => [...request.messages, response];

function sharedMessages(a: readonly Message[], b: readonly Message[]): number {
  let shared = 0;
  while (shared < a.length && shared < b.length && sameMessage(a[shared]!, b[shared]!)) shared++;
  return shared;
}

// ── side calls ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The side calls among the turns of a rollout that has ended, each with the turn of the conversation that it accompanies: a client's calls
 * for a title, a topic or a memory. Docs: decision 0010, which has the rules and their reasons.
 */
export function sideCalls(turns: readonly Turn[]): ReadonlyMap<number, number> {
  const continued = new Set(turns.map(parentOf));
  const isSingle = (turn: Turn) => isComparable(turn) && turn.after === undefined && !continued.has(turn.index);
  const calls = turns.filter(
    (turn) => turn.trainable && turn.request.tools.length === 0 && isSingle(turn) && isHousekeeping(turn),
  );
  const found = new Map<number, number>();
  if (calls.length === 0) return found;
  const goingOn = turns.flatMap((turn) => {
    const parent = turns[parentOf(turn) ?? -1];
    return parent && turn.trainable && isSameAgent(parent, turn) ? [{ turn, parent }] : [];
  });
  for (const call of calls) {
    const main = goingOn.find(({ turn }) => turn.index > call.index && isAbout(call, turn));
    if (main && !isUsed(call, turns)) found.set(call.index, main.parent.index);
  }
  return found;
}

const inOnePlace = (a: Turn, b: Turn): boolean => a.thread === b.thread && a.role === b.role;

const textsOf = ({ request }: Turn, role: Message['role']): readonly string[] =>
  request.messages.flatMap((message) => (message.role === role && message.content?.trim() ? [message.content.trim()] : []));

const sameSystem = (a: Turn, b: Turn): boolean => sameJson(textsOf(a, 'system'), textsOf(b, 'system'));

const isSameAgent = (a: Turn, b: Turn): boolean =>
  inOnePlace(a, b) && a.request.tools.length > 0 && b.request.tools.length > 0 && sameSystem(a, b);

/** What clients ask for beside their conversation. A planner, router, critic or sub-agent asks for its work in other words. */
const HOUSEKEEPING = /\b(?:titles?|topics?|memor(?:y|ies)|(?:session|conversation|branch) names?)\b/i;

const isHousekeeping = ({ request }: Turn): boolean =>
  request.messages.some(({ role, content }) => role !== 'assistant' && HOUSEKEEPING.test(content ?? ''));

/** Whether the call has another system message, and holds a user message of this conversation or is held by one. */
function isAbout(call: Turn, turn: Turn): boolean {
  if (!inOnePlace(call, turn) || sameSystem(call, turn)) return false;
  const asked = textsOf(call, 'user');
  return textsOf(turn, 'user').some((text) => asked.some((other) => text.includes(other) || other.includes(text)));
}

/** Whether what the call said comes back in a message that was new in a later request. */
function isUsed({ index, response }: Turn, turns: readonly Turn[]): boolean {
  const said = response.content?.trim() ?? '';
  const isNew = ({ request, after }: Turn): readonly Message[] =>
    request.messages.slice(after === undefined ? 0 : turns[after]!.request.messages.length + 1);
  return said !== '' && turns.some((turn) => turn.index > index && isNew(turn).some(({ content }) => content?.includes(said)));
}

// ── when two things are the same ─────────────────────────────────────────────────────────────────────────────────────────

export function sameMessage(a: Message, b: Message): boolean {
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
