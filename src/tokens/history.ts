/**
 * Does a request continue a recorded conversation? Compares messages as a client that stored and re-sent them may have changed
 * them: `null` or `''` as content, tool-call ids, and the key order and spacing of arguments do not count.
 *
 * Pure, and about words only: which ids the continuation gets is the renderer's business.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Message, ToolCall } from '../core/types.ts';

/** The messages that are new, possibly none; undefined if the request does not begin with the recorded one and its response. */
export function extendsHistory(
  recordedRequest: readonly Message[],
  recordedResponse: Message,
  newMessages: readonly Message[],
): readonly Message[] | undefined {
  const recorded = [...recordedRequest, recordedResponse];
  if (newMessages.length < recorded.length) return undefined;
  const continues = recorded.every((message, i) => sameMessage(message, newMessages[i]!));
  return continues ? newMessages.slice(recorded.length) : undefined;
}

export function sameMessage(a: Message, b: Message): boolean {
  const callsOfA = a.tool_calls ?? [];
  const callsOfB = b.tool_calls ?? [];
  return (
    a.role === b.role &&
    (a.content ?? '') === (b.content ?? '') &&
    // Clients put their own name on what the policy said; on other messages a name is part of what the policy reads.
    (a.role === 'assistant' || (a.name ?? '') === (b.name ?? '')) &&
    callsOfA.length === callsOfB.length &&
    callsOfA.every((call, i) => sameCall(call, callsOfB[i]!))
  );
}

function sameCall(a: ToolCall, b: ToolCall): boolean {
  return a.function.name === b.function.name && sameArguments(a.function.arguments, b.function.arguments);
}

function sameArguments(a: string, b: string): boolean {
  if (a === b) return true;
  try {
    return isDeepStrictEqual(JSON.parse(a), JSON.parse(b));
  } catch {
    return false;
  }
}
