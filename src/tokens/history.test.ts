import { describe, expect, it } from 'vitest';
import type { Message } from '../core/types.ts';
import { newMessagesAfter } from './history.ts';

const extendsHistory = (messages: readonly Message[], response: Message, asked: readonly Message[]) =>
  newMessagesAfter({ request: { messages, tools: [] }, response }, asked);

const request: Message[] = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: 'How much?' },
];
const call = (id: string, args: string) => ({ id, type: 'function' as const, function: { name: 'lookup', arguments: args } });
const response: Message = { role: 'assistant', content: null, tool_calls: [call('call_1', '{"item":"lamp","n":[1,2]}')] };
const result: Message = { role: 'tool', content: '3', tool_call_id: 'call_1' };

describe('a request continues a recorded conversation', () => {
  it('if it repeats it and goes on; the rest is new', () => {
    expect(extendsHistory(request, response, [...request, response, result])).toEqual([result]);
    expect(extendsHistory(request, response, [...request, response])).toEqual([]);
  });

  it('whatever ids the client gave the calls, and however it wrote their arguments', () => {
    const resent: Message = { role: 'assistant', content: '', tool_calls: [call('other', '{ "n": [1, 2], "item": "lamp" }')] };
    const renamed: Message = { ...result, tool_call_id: 'other' };
    expect(extendsHistory(request, response, [...request, resent, renamed])).toEqual([renamed]);
  });

  it('even if the arguments are no JSON, as long as they are the same', () => {
    const broken: Message = { role: 'assistant', content: '', tool_calls: [call('a', '{"item":')] };
    expect(extendsHistory(request, broken, [...request, { ...broken, tool_calls: [call('b', '{"item":')] }])).toEqual([]);
    expect(extendsHistory(request, broken, [...request, { ...broken, tool_calls: [call('b', '{"item"')] }])).toBeUndefined();
  });

  it('ignores a name the client put on what the policy said', () => {
    expect(extendsHistory(request, response, [...request, { ...response, name: 'shop' }])).toEqual([]);
  });
});

describe('a request does not continue a recorded conversation', () => {
  const [sampled] = response.tool_calls!;
  const otherTool = { ...sampled!, function: { ...sampled!.function, name: 'calculator' } };
  const changed: [string, Message[]][] = [
    ['is shorter', request],
    ['changed an earlier message', [request[0]!, { role: 'user', content: 'How many?' }, response, result]],
    ['changed a role', [{ role: 'user', content: 'Be brief.' }, request[1]!, response]],
    ['gave a speaker a name', [request[0]!, { ...request[1]!, name: 'Ann' }, response]],
    ['changed what was said', [...request, { ...response, content: 'Hm.' }]],
    ['left out a call', [...request, { role: 'assistant', content: '' }]],
    ['added a call', [...request, { ...response, tool_calls: [...response.tool_calls!, call('c', '{}')] }]],
    ['changed an argument', [...request, { ...response, tool_calls: [call('call_1', '{"item":"lamp","n":[2,1]}')] }]],
    ['changed a tool', [...request, { ...response, tool_calls: [otherTool] }]],
    ['left out a message', [request[1]!, response, result]],
  ];

  it.each(changed)('if it %s', (_, messages) => {
    expect(extendsHistory(request, response, messages)).toBeUndefined();
  });
});
