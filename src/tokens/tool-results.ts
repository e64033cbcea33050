/**
 * Which tool result belongs to which call. Most chat templates write no ids, so the policy takes the first result for that of the first
 * call; clients, and the APIs, go by ids, and may send results as they come in. Pure functions of messages; they move and name results
 * only among results that stand together: nothing moves past a user's or an assistant's message.
 */
import type { Message, ToolCall } from '../core/types.ts';

/**
 * Puts results that stand together in the order of the calls before them, which may be those of several assistant messages in a row. One
 * without an id counts as the result of the call that `withResultIds` gives it; one of no known call keeps its place.
 */
export function inCallOrder(messages: readonly Message[]): readonly Message[] {
  const ordered = [...messages];
  const named = withResultIds(messages);
  let calls: ToolCall[] = [];
  for (let at = 0; at < messages.length; at++) {
    const { role, tool_calls: made = [] } = messages[at]!;
    if (role === 'assistant' && messages[at - 1]?.role !== 'assistant') calls = [];
    if (role === 'assistant') calls.push(...made);
    if (role !== 'tool') continue;
    const unanswered = Map.groupBy(calls.keys(), (call) => calls[call]!.id);
    const known: { readonly place: number; readonly call: number; readonly result: Message }[] = [];
    for (; messages[at]?.role === 'tool'; at++) {
      const own = unanswered.get(named[at]!.tool_call_id ?? '') ?? [];
      // Of calls with one id, the first result is the first call's.
      const call = own.length > 1 ? own.shift() : own[0];
      if (call !== undefined) known.push({ place: at, call, result: messages[at]! });
    }
    at--;
    const sorted = known.toSorted((a, b) => a.call - b.call);
    for (const [i, { place }] of known.entries()) ordered[place] = sorted[i]!.result;
  }
  return ordered;
}

/** Gives each result without an id that of the first call, in the assistant's messages just before, that has no result yet. */
export function withResultIds(messages: readonly Message[]): readonly Message[] {
  let unanswered = new Set<string>();
  return messages.map((message, i) => {
    const before = messages[i - 1]?.role;
    if (message.role !== 'tool') {
      if (message.role !== 'assistant' || before !== 'assistant') unanswered = new Set();
      for (const { id } of message.tool_calls ?? []) unanswered.add(id);
      return message;
    }
    // Other results, also later ones, may name their calls.
    for (let at = i; before !== 'tool' && messages[at]?.role === 'tool'; at++)
      unanswered.delete(messages[at]!.tool_call_id ?? '');
    const [id] = unanswered;
    if (message.tool_call_id !== undefined || id === undefined) return message;
    unanswered.delete(id);
    return { ...message, tool_call_id: id };
  });
}
