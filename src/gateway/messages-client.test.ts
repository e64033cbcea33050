import { describe, expect, it } from 'vitest';
import { ANSWER, ask, LOOKUP, open, tools } from '../../test/fixtures/gateway/streams.ts';
import type { DefaultModelLike } from '../core/contracts.ts';
import type { Message, ToolCall } from '../core/types.ts';
import { defaultModelOf } from './default-model.ts';
import { listen } from './gateway.ts';
import { messagesAnswerIn, messagesRequest } from './messages-client.ts';

const { signal } = new AbortController();
const call = (id: string, given: string): ToolCall => ({ id, type: 'function', function: { name: 'lookup', arguments: given } });

describe('a default model that speaks Anthropic’s Messages API', () => {
  it.each([
    ['with /v1', (baseURL: string) => baseURL],
    ['as Anthropic’s own client has it', (baseURL: string) => baseURL.replace(/\/v1$/, '')],
  ])('is asked over HTTP, at a base URL %s', async (_, at) => {
    const house = open({ replies: [LOOKUP, ANSWER] });
    await using _listener = await listen(house.gateway);
    const { baseURL, apiKey } = house.session.model();
    const server: DefaultModelLike = { name: 'house', baseURL: at(baseURL), apiKey, api: 'anthropic' };
    const { session } = open({ spec: { roles: { default: { trainable: false, default: server } } } });
    const system = { role: 'system' as const, content: 'Be brief.' };
    const asked: Message[] = [system, ...ask];
    const settings = { temperature: 0.5, topK: 7, maxTokens: 50, stop: ['never'] };
    const { message, toolCalls } = await session.model().generate({ messages: asked, tools, ...settings });
    expect(toolCalls).toMatchObject([{ function: { name: 'lookup', arguments: '{"item":"Binklex glove"}' } }]);
    const [first] = house.session.turns;
    expect(first).toMatchObject({
      request: { dialect: 'messages', messages: asked, tools },
      sampling: { requested: { topK: 7 } },
    });
    const result: Message = { role: 'tool', content: '$81', tool_call_id: toolCalls[0]!.id };
    const last = await session.model().generate({ messages: [...asked, message, result], tools, maxTokens: 3 });
    expect(last).toMatchObject({ stopReason: 'length', turn: { model: 'house', stopReason: 'length' } });
    expect(house.session.turns[1]!.request.messages.slice(2)).toMatchObject([{ role: 'assistant', content: null }, result]);
  });

  it('tells what it counted', async () => {
    const house = open({ replies: [ANSWER] });
    await using _listener = await listen(house.gateway);
    const { baseURL, apiKey } = house.session.model();
    for (const api of ['openai', 'anthropic'] as const) {
      const { generate } = defaultModelOf({ name: 'house', baseURL, apiKey, api });
      const { usage } = await generate({ messages: ask, tools: [], sampling: {}, signal });
      const { promptIds, sampledIds } = house.session.turns.at(-1)!;
      expect(usage).toEqual({ promptTokens: promptIds.length, completionTokens: sampledIds.length });
    }
  });
});

describe('a conversation in Anthropic’s format', () => {
  it('has one message for parallel results, system texts at the top, no empty texts, and arguments that are objects', () => {
    const messages: Message[] = [
      { role: 'system', content: 'One.' },
      { role: 'user', content: 'Look both up.' },
      { role: 'assistant', content: '', tool_calls: [call('call:1', '{"item":1}'), call('b', 'not JSON')] },
      { role: 'tool', content: '1', tool_call_id: 'call:1' },
      { role: 'tool', content: null, tool_call_id: 'b' },
      { role: 'user', content: 'And?' },
      { role: 'system', content: 'Two.' },
    ];
    const [, init] = messagesRequest({ name: 'm', baseURL: 'http://x' }, { messages, tool: true });
    expect(JSON.parse(String(init.body))).toEqual({
      model: 'm',
      max_tokens: 4096,
      tool_choice: { type: 'any' },
      system: 'One.\n\nTwo.',
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'Look both up.' }] },
        {
          role: 'assistant',
          content: [
            { type: 'tool_use', id: 'call_1', name: 'lookup', input: { item: 1 } },
            { type: 'tool_use', id: 'b', name: 'lookup', input: { arguments: 'not JSON' } },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 'call_1', content: '1' },
            { type: 'tool_result', tool_use_id: 'b', content: '' },
            { type: 'text', text: 'And?' },
          ],
        },
      ],
    });
  });

  it.each([
    ['max_tokens', { stopReason: 'length', withheld: false }],
    ['model_context_window_exceeded', { stopReason: 'length', withheld: false }],
    ['end_turn', { stopReason: 'stop', withheld: false }],
    ['refusal', { withheld: true }],
  ])('ends as it says: %s', (reason, ending) => {
    const content = [
      { type: 'thinking', thinking: 'hm' },
      { type: 'text', text: 'a' },
      { type: 'text', text: 'b' },
    ];
    const usage = { input_tokens: 1, cache_read_input_tokens: 2, output_tokens: 3 };
    const answer = messagesAnswerIn(JSON.stringify({ content, stop_reason: reason, usage }));
    expect(answer).toMatchObject({ content: 'ab', toolCalls: [], usage: { promptTokens: 3, completionTokens: 3 }, ...ending });
  });

  it.each(['', 'null', '[]', '{"content": "a"}', '{"type":"error"}'])('is not %s', (text) => {
    expect(messagesAnswerIn(text)).toBeUndefined();
  });
});
