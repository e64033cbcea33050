import { expect, it } from 'vitest';
import type { Generation } from '../core/contracts.ts';
import { itemsOf, messagesOf } from './openai-agents.ts';

const call = (id: string, name: string) => ({ id, type: 'function' as const, function: { name, arguments: '{ "a":1}' } });

function generation(id: string, text: string, toolCalls: Generation['toolCalls'] = [], reasoning?: string): Generation {
  const message = {
    role: 'assistant' as const,
    content: text === '' ? null : text,
    ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
  return { id, message, text, toolCalls, stopReason: 'stop' };
}

it('makes of an answer’s items the message that it was', () => {
  const said = generation('r-1', 'Let me see.', [call('c1', 'f'), call('c2', 'g')], 'Two calls.');
  expect(messagesOf(undefined, itemsOf(said))).toEqual([said.message]);
});

it('keeps two answers in a row two', () => {
  const [first, second] = [generation('r-1', 'One.'), generation('r-2', 'Two.')];
  const told = messagesOf('Answer.', [...itemsOf(first), ...itemsOf(second)]);
  expect(told).toEqual([{ role: 'system', content: 'Answer.' }, first.message, second.message]);
});

it('puts a call that was moved behind the result of another back to its own answer', () => {
  const said = generation('r-1', '', [call('c1', 'f'), call('c2', 'g')]);
  const [one, two] = itemsOf(said);
  const result = (callId: string) => ({ type: 'function_call_result', callId, output: { type: 'text', text: `of ${callId}` } });
  const results = ['c1', 'c2'].map((id) => ({ role: 'tool', content: `of ${id}`, tool_call_id: id }));
  expect(messagesOf(undefined, [one!, result('c1'), two!, result('c2')])).toEqual([said.message, ...results]);
});

it('says an answer of nothing as nothing', () => {
  expect(messagesOf(undefined, itemsOf(generation('r-1', '')))).toEqual([{ role: 'assistant', content: '' }]);
});
