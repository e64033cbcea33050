import { mapChatMessagesToStoredMessages, mapStoredMessagesToChatMessages } from '@langchain/core/messages';
import { expect, it } from 'vitest';
import type { ToolCall } from '../core/types.ts';
import { answerOf, messagesOf } from './langchain.ts';

it('calls come back in the order in which the policy made them, those with broken arguments among them, also from storage', () => {
  const call = (id: string, args: string): ToolCall => ({ id, type: 'function', function: { name: 'add', arguments: args } });
  const toolCalls = [call('a', '{broken'), call('b', '{"x":1}'), call('c', '[1]'), call('d', '{}')];
  const message = { role: 'assistant', content: '', tool_calls: toolCalls, reasoning: 'hm' } as const;
  const answer = answerOf({ id: 'i', message, text: '', toolCalls, stopReason: 'stop' });
  const stored = mapStoredMessagesToChatMessages(mapChatMessagesToStoredMessages([answer]));
  for (const [spoken] of [messagesOf([answer]), messagesOf(stored)]) expect(spoken).toEqual(message);
});
