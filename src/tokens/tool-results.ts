/**
 * Which tool result belongs to which call. Most chat templates write no ids, so the policy takes the first result for that of the first
 * call; clients, and the APIs, go by ids, and may send results as they come in. Pure functions of messages; they move and name results
 * only among results that stand together: nothing moves past a user's or an assistant's message.
 */
import type { Message, ToolCall } from '../core/types.ts';

/** Puts results that stand together in the order of the calls before them. Results without an id, or of no known call, keep their place. */
export function inCallOrder(messages: readonly Message[]): readonly Message[] {
  const ordered = [...messages];
  let calls: readonly ToolCall[] = [];
  for (let at = 0; at < messages.length; at++) {
    const { role, tool_calls: made = [] } = messages[at]!;
    if (role === 'assistant') calls = made;
    if (role !== 'tool') continue;
    const unanswered = Map.groupBy(calls.keys(), (call) => calls[call]!.id);
    const known: { readonly place: number; readonly call: number; readonly result: Message }[] = [];
    for (; messages[at]?.role === 'tool'; at++) {
      const result = messages[at]!;
      const own = unanswered.get(result.tool_call_id ?? '') ?? [];
      // Of calls with one id, the first result is the first call's.
      const call = own.length > 1 ? own.shift() : own[0];
      if (call !== undefined) known.push({ place: at, call, result });
    }
    at--;
    const sorted = known.toSorted((a, b) => a.call - b.call);
    for (const [i, { place }] of known.entries()) ordered[place] = sorted[i]!.result;
  }
  return ordered;
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
