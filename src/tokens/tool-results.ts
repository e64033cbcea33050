/**
 * Which tool result belongs to which call. Most chat templates write no ids, so the policy takes the first result for that of the first
 * call; clients, and the APIs, go by ids, and may send results as they come in. Pure functions of messages; they move and name results
 * only among results that stand together: nothing moves past a user's or an assistant's message.
 */
import type { Message } from '../core/types.ts';

/** Puts results that stand together in the order of the calls before them. Results without an id, or of no known call, keep their place. */
export function inCallOrder(messages: readonly Message[]): readonly Message[] {
  let ordered: Message[] | undefined;
  let calls: readonly string[] = [];
  for (let at = 0; at < messages.length; at++) {
    const { role, tool_calls: made = [] } = messages[at]!;
    if (role === 'assistant') calls = made.map(({ id }) => id);
    if (role !== 'tool' || calls.length < 2) continue;
    const from = at;
    while (messages[at + 1]?.role === 'tool') at++;
    const slots = slotsOf(messages.slice(from, at + 1), calls);
    const sorted = slots.toSorted((a, b) => a.call - b.call);
    if (sorted.every((slot, i) => slot === slots[i])) continue;
    ordered ??= [...messages];
    for (const [i, { place }] of slots.entries()) ordered[from + place] = messages[from + sorted[i]!.place]!;
  }
  return ordered ?? messages;
}

interface Slot {
  readonly place: number;
  readonly call: number;
}

/** The places of results whose call is known. Of calls with one id, the first result is the first call's. */
function slotsOf(results: readonly Message[], calls: readonly string[]): readonly Slot[] {
  const unanswered = Map.groupBy(calls.keys(), (call) => calls[call]!);
  return results.flatMap(({ tool_call_id: id }, place) => {
    const own = unanswered.get(id ?? '');
    if (id === undefined || own === undefined) return [];
    return [{ place, call: own.length > 1 ? own.shift()! : own[0]! }];
  });
}

/** Gives each result without an id that of the first preceding call that has no result yet. */
export function withResultIds(messages: readonly Message[]): readonly Message[] {
  let unanswered: readonly string[] = [];
  return messages.map((message, i) => {
    if (message.role !== 'tool') unanswered = unansweredAfter(messages, i);
    const [id, ...others] = unanswered;
    if (message.role !== 'tool' || message.tool_call_id !== undefined || id === undefined) return message;
    unanswered = others;
    return { ...message, tool_call_id: id };
  });
}

/** Ids of the calls in this message that no result after it names. */
function unansweredAfter(messages: readonly Message[], place: number): readonly string[] {
  const ids = new Set(messages[place]!.tool_calls?.map((call) => call.id));
  for (let i = place + 1; ids.size > 0 && messages[i]?.role === 'tool'; i++) ids.delete(messages[i]!.tool_call_id ?? '');
  return [...ids];
}
