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
  const said = (args: string, more: Partial<Message> = {}): Message => {
    return { role: 'assistant', content: '', tool_calls: [call('other', args)], ...more };
  };
  const renamed: Message = { ...result, tool_call_id: 'other' };
  const broken = said('{"item":', {});

  it.each<[string, Message, readonly Message[], readonly Message[]]>([
    ['if it repeats it and goes on; the rest is new', response, [response, result], [result]],
    ['where nothing is new', response, [response], []],
    ['whatever ids the calls have, and spacing', response, [said('{ "n": [1, 2], "item": "lamp" }'), renamed], [renamed]],
    ['even if the arguments are no JSON, if they are the same', broken, [{ ...broken, tool_calls: [call('b', '{"item":')] }], []],
    ['whatever name the client put on what was said', response, [{ ...response, name: 'shop' }], []],
  ])('%s', (_, recorded, asked, news) => {
    expect(extendsHistory(request, recorded, [...request, ...asked])).toEqual(news);
  });

  it('but not where arguments that are no JSON are others', () => {
    expect(extendsHistory(request, broken, [...request, said('{"item"')])).toBeUndefined();
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
