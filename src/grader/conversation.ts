/**
 * The conversation that a turn ended, in one shape whatever client, dialect or framework the agent used: the fields that messages have here
 * and no others, a message that only calls tools without content, and what the policy said in its own words.
 *
 * Clients send back what the policy said, and some write it anew on the way: arguments as objects, say. Where a turn goes on from another's
 * very ids, that turn's recorded answer is what the policy said. Where it does not, the message stays as the client sent it: it is what the
 * policy was shown. Nothing is guessed, left out or put in another order.
 */
import type { Message, Turn } from '../core/types.ts';

export function conversationOf(turn: Turn, turns: readonly Turn[]): readonly Message[] {
  const messages = [...turn.request.messages];
  for (let before = earlier(turn, turns); before !== undefined; before = earlier(before, turns)) {
    const place = before.request.messages.length;
    const sent = messages[place];
    if (sent !== undefined && isSame(sent, before.response)) messages[place] = before.response;
  }
  return [...messages, turn.response].map(plain);
}

function earlier({ after }: Turn, turns: readonly Turn[]): Turn | undefined {
  return after === undefined ? undefined : turns.find(({ index }) => index === after);
}

function isSame(sent: Message, said: Message): boolean {
  const calls = said.tool_calls ?? [];
  return (
    sent.role === 'assistant' &&
    (sent.content ?? '') === (said.content ?? '') &&
    (sent.tool_calls ?? []).length === calls.length &&
    calls.every(({ id, function: { name } }, i) => {
      const other = sent.tool_calls?.[i];
      return other?.id === id && other.function.name === name;
    })
  );
}

function plain({ role, content, tool_calls: calls = [], tool_call_id, name, reasoning }: Message): Message {
  const isCalling = calls.length > 0;
  return {
    role,
    content: isCalling && !content ? null : (content ?? ''),
    ...(isCalling && { tool_calls: calls }),
    ...(typeof tool_call_id === 'string' && { tool_call_id }),
    ...(typeof name === 'string' && { name }),
    ...(typeof reasoning === 'string' && reasoning !== '' && { reasoning }),
  };
}
