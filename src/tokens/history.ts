/**
 * Finds the recorded turn that a request continues and, if the conversation does not simply go on from there, the reasons; and, once a
 * rollout has ended, the client's side calls among its turns.
 *
 * The comparison ignores what clients change when they store and re-send messages: `null` or `''` as content, tool-call ids, the key order
 * and spacing of arguments, and Claude Code's line about billing. If two turns said the same, the ids of their tool calls decide.
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
    const fork = departure(turns, own, asked, continues?.turn);
    return { ...(continues ? { continues } : {}), ...(fork ? { fork } : {}) };
  }
  const fork = handover(turns, asked);
  return fork ? { fork } : {};
}

/** Another model's turn has no ids to continue from, and a request given as ids has no messages to compare. */
const isComparable = ({ model, request }: Past) => model === undefined && request.messages.length > 0;

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

type Said = Pick<Turn, 'request' | 'response'>;

/** The messages that are new, possibly none; undefined if they do not begin with the turn's request and response. */
export function newMessagesAfter({ request, response }: Said, messages: readonly Message[], isSame = sameMessage) {
  const { length } = request.messages;
  if (messages.length <= length || !isSame(response, messages[length]!)) return undefined;
  // From the end, because an edited history rarely changes at its beginning.
  for (let i = length - 1; i >= 0; i--) if (!isSame(request.messages[i]!, messages[i]!)) return undefined;
  return messages.slice(length + 1);
}

// ── why a conversation did not simply go on ──────────────────────────────────────────────────────────────────────────────

/**
 * Compares with the turn that shares the longest beginning with the request; of several, with the latest that had the same tools. Undefined
 * if whatever came after the continued turn departs before its question: a side call or another agent does not interrupt a conversation.
 * `all` has the turns of other threads and roles, too.
 */
function departure(all: readonly Past[], turns: readonly Past[], asked: Asked, continued?: Past): Fork | undefined {
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
  const handed = isOpening(recorded, common) ? handover(all, asked) : undefined;
  if (handed) return handed;
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
  // By what they say, so that a long history costs one look per message.
  const later = Map.groupBy(recorded.slice(common + 1), wordsOf);
  const alike = (message: Message) => later.get(wordsOf(message)) ?? [];
  const kept = messages.slice(common).filter((message) => alike(message).some((one) => isSaidAgain(one, message)));
  const isWhole = kept.every((message) => alike(message).some((one) => sameMessage(one, message)));
  const dropped: readonly ForkCause[] = isWhole ? [] : ['dropped_reasoning'];
  if (was.role === 'assistant' && is.role === 'assistant') {
    // Where the policy's later words stand in this place, those before them were left out, not rewritten.
    const isLeftOut = kept[0] === is && changedWords([was], [is], 0).includes('edited_message');
    return [...(isLeftOut ? (['compaction', ...dropped] as const) : changedWords(recorded, messages, common)), ...tools];
  }
  const isShorter = messages.length < recorded.length;
  if (!isOpening(recorded, common)) {
    return [isShorter && (kept.length > 0 || was.role !== is.role) ? 'compaction' : 'edited_message', ...tools];
  }
  if (!kept.some(({ role }) => role === 'assistant')) {
    return isShorter && isSummary(turns, from, messages, common) ? ['compaction', ...tools] : ['new_conversation'];
  }
  if (tools.length > 0 && was.role === 'system' && is.role === 'system') return ['role_change', ...dropped];
  return [isShorter ? 'compaction' : 'edited_message', ...dropped, ...tools];
}

const wordsOf = ({ role, content, tool_calls: calls }: Message) =>
  JSON.stringify([role, content ?? '', calls?.map((call) => call.function.name) ?? []]);

/** Another agent goes on with all that was said: in another thread or role, or under other system messages and with other tools. */
function handover(turns: readonly Past[], asked: Asked): Fork | undefined {
  const words = withoutOpening(asked.messages);
  const from = turns.findLast(({ request, response, thread, role }) => {
    if (thread === asked.thread && role === asked.role && sameTools(request.tools, asked.tools)) return false;
    const said = { request: { ...request, messages: withoutOpening(request.messages) }, response };
    return newMessagesAfter(said, words, isSaidAgain) !== undefined;
  });
  if (from === undefined) return undefined;
  const recorded = spoken(from);
  const message = sharedMessages(recorded, asked.messages);
  const changes = changedWords(withoutOpening(recorded), words, 0);
  const also = changes.length > 0 ? { also: changes } : {};
  return { cause: 'role_change', ...also, from: from.index, ...(message < recorded.length ? { message } : {}) };
}

const withoutOpening = (messages: readonly Message[]) => messages.slice(messages.findIndex(({ role }) => role !== 'system'));

/** Whether only system messages come before this place. */
const isOpening = (messages: readonly Message[], place: number) =>
  messages.slice(0, place).every((message) => message.role === 'system');

/** A shorter text of the policy may stand in a message by chance. */
const QUOTE_LENGTH = 20;
/** What a client calls a summary when it asks for one, and in the line or two before it. */
const SUMMARY = /summar|compact|condens/i;
const INTRODUCTION = /(?:conversation|session).*(?:continu|summar|compact|condens)|summary.*(?:conversation|session)/is;
const INTRODUCTION_LENGTH = 300;

/**
 * Whether a conversation that had gone on begins anew, under the same system message, with what stands for its past: words of the policy,
 * or a message that quotes a summary. A quoted turn is one if the policy was asked for it, after it had said something, or if the message
 * introduces it as one. Other quotes are results that a new task begins with.
 */
function isSummary(turns: readonly Past[], from: Past, messages: readonly Message[], common: number): boolean {
  const isSaid = ({ role }: Message) => role === 'assistant';
  if (!from.request.messages.some(isSaid)) return false;
  if (common === 0 && [from.request.messages[0], messages[0]].some((message) => message?.role === 'system')) return false;
  if (messages.some(isSaid)) return true;
  const isAsked = ({ messages: before }: Past['request']) =>
    before.some(isSaid) && before.at(-1)?.role === 'user' && SUMMARY.test(before.at(-1)?.content ?? '');
  return turns.some(({ request, response }) => {
    const said = response.content?.trim() ?? '';
    if (said.length < QUOTE_LENGTH) return false;
    const text = messages.slice(common).find(({ content }) => content?.includes(said))?.content ?? '';
    return text !== '' && (isAsked(request) || INTRODUCTION.test(text.split(said, 1)[0]!.slice(-INTRODUCTION_LENGTH)));
  });
}

/** What was done to the policy's words from this place on: first what the client dropped there. */
function changedWords(recorded: readonly Message[], messages: readonly Message[], place: number): readonly ForkCause[] {
  const causes = new Set<ForkCause>();
  for (let i = place; i < recorded.length && i < messages.length; i++) {
    const was = recorded[i]!;
    const is = messages[i]!;
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

/** Whether it is the same message, except that its reasoning may be missing. */
const isSaidAgain = (was: Message, is: Message) => sameMessage(is.reasoning ? was : { ...was, reasoning: '' }, is);

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
    (turn) => turn.trainable && turn.request.tools.length === 0 && isSingle(turn) && choresIn(turn).length > 0,
  );
  const found = new Map<number, number>();
  if (calls.length === 0) return found;
  const goingOn = turns.flatMap((turn) => {
    const parent = turns[parentOf(turn) ?? -1];
    return parent && turn.trainable && isSameAgent(parent, turn) ? [{ turn, parent }] : [];
  });
  // A turn that another one extends is a part of that one's request.
  const extended = new Set(goingOn.map(({ turn }) => turn.after));
  const ends = goingOn.filter(({ turn }) => !extended.has(turn.index));
  const said = new Set(ends.flatMap(({ turn }) => spoken(turn).flatMap((message) => chores(contentOf(message)))));
  for (const call of calls) {
    const asks = ownChores(call, said);
    if (asks.length === 0) continue;
    const ofTitle = asks.some((line) => OWN_TITLE.test(line));
    const main = goingOn.find(({ turn }) => turn.index > call.index && isAbout(call, turn, ofTitle))?.parent;
    const before = ofTitle ? goingOn.findLast(({ turn }) => isAbout(call, turn, ofTitle))?.turn : undefined;
    const { index } = main ?? before ?? {};
    if (index !== undefined && !isUsed(call, turns)) found.set(call.index, index);
  }
  return found;
}

const inOnePlace = (a: Turn, b: Turn) => a.thread === b.thread && a.role === b.role;

const textsOf = ({ request }: Turn, role: Message['role']) =>
  request.messages.flatMap((message) => (message.role === role && contentOf(message).trim() ? [contentOf(message).trim()] : []));

const sameSystem = (a: Turn, b: Turn) => sameJson(textsOf(a, 'system'), textsOf(b, 'system'));

const isSameAgent = (a: Turn, b: Turn) =>
  inOnePlace(a, b) && a.request.tools.length > 0 && b.request.tools.length > 0 && sameSystem(a, b);

/** What clients ask for beside their conversation. A planner, router, critic or sub-agent asks for its work in other words. */
const HOUSEKEEPING = /\b(?:titles?|topics?|memor(?:y|ies)|(?:session|conversation|branch) names?)\b/i;

/** A shorter line may stand in a text by chance. */
const QUOTED_LINE = 8;

/** The lines of a text that name such a thing. */
const chores = (text: string): readonly string[] =>
  HOUSEKEEPING.test(text) ? text.split('\n').flatMap((line) => (HOUSEKEEPING.test(line) ? [line.trim()] : [])) : [];

const choresIn = ({ request }: Turn) =>
  request.messages.flatMap((message) => (message.role === 'assistant' ? [] : chores(contentOf(message))));

/** Those of the call that the conversations did not say: a task about memory or titles, which both quote, asks for no housekeeping. */
function ownChores(call: Turn, said: ReadonlySet<string>): readonly string[] {
  const own = choresIn(call).map((line) => {
    let rest = line;
    for (const other of said) {
      if (other.includes(line)) return '';
      if (other.length >= QUOTED_LINE) rest = rest.replaceAll(other, '');
    }
    return rest;
  });
  return own.filter((line) => HOUSEKEEPING.test(line));
}

/** A task may ask for a title, but hardly for one of the conversation that it begins. So it is a side call also where it comes last. */
const OWN_TITLE = /\btitle\b[^.\n]{0,80}\bthis (?:\w+ )?(?:conversation|session)\b/i;

/**
 * Whether the call has another system message, and holds a user message of this conversation or is held by one. If it asks for a title, a
 * line will do: clients cut what they quote, and add to what the user said.
 */
function isAbout(call: Turn, turn: Turn, ofTitle: boolean): boolean {
  if (!inOnePlace(call, turn) || sameSystem(call, turn)) return false;
  const asked = textsOf(call, 'user');
  return textsOf(turn, 'user').some((text) =>
    asked.some((other) => text.includes(other) || other.includes(text) || (ofTitle && quotesLineOf(other, text))),
  );
}

/** Of a long line, clients may keep only the beginning. */
const quotesLineOf = (quoting: string, text: string) =>
  text.split('\n').some((line) => line.trim().length >= QUOTED_LINE && quoting.includes(line.trim().slice(0, 200)));

/** Whether what the call said comes back in a message that was new in a later request. */
function isUsed({ index, response }: Turn, turns: readonly Turn[]): boolean {
  const said = response.content?.trim() ?? '';
  const isNew = ({ request, after }: Turn) =>
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
    contentOf(a) === contentOf(b) &&
    (a.reasoning ?? '') === (b.reasoning ?? '') &&
    // Clients add their own name to the policy's messages; in other messages the name is part of the prompt.
    (a.role === 'assistant' || (a.name ?? '') === (b.name ?? '')) &&
    callsOfA.length === callsOfB.length &&
    callsOfA.every((call, i) => sameCall(call, callsOfB[i]!))
  );
}

/** Claude Code's first line of instructions names a bill, which changes while the agent stays the same. */
const BILLING = /^x-anthropic-billing-header:.*\n?/;
const contentOf = ({ role, content }: Message) => (role === 'system' ? (content ?? '').replace(BILLING, '') : (content ?? ''));

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
const resent = (json: string) => JSON.parse(JSON.stringify(JSON.parse(json)));

function sameArguments(a: string, b: string): boolean {
  if (a === b) return true;
  try {
    return sameJson(resent(a), resent(b));
  } catch {
    return false;
  }
}
