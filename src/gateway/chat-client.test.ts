import { describe, expect, it } from 'vitest';
import { chatAnswerIn, chatRequest } from './chat-client.ts';

const server = { name: 'm', baseURL: 'http://policy.example/v1/' };
const messages = [{ role: 'user', content: 'hello' }] as const;
const completion = (message: unknown, rest: object = {}): string =>
  JSON.stringify({ id: 'c1', choices: [{ finish_reason: 'stop', message, ...rest }] });

describe('a question over Chat Completions', () => {
  it('says only what was asked for', () => {
    const [url, init] = chatRequest(server, { messages, tools: [], stop: [] });
    expect(url).toBe('http://policy.example/v1/chat/completions');
    expect(JSON.parse(String(init.body))).toEqual({ model: 'm', messages });
    expect(init.headers).toEqual({ 'content-type': 'application/json' });
  });

  it.each([
    [{ tool: true }, { tool_choice: 'required' }],
    [{ tool: 'look' }, { tool_choice: { type: 'function', function: { name: 'look' } } }],
    [{ format: {} }, { response_format: { type: 'json_object' } }],
    [
      { temperature: 0, topP: 1, topK: 3, maxTokens: 2, stop: ['x'] },
      { temperature: 0, top_p: 1, top_k: 3, max_tokens: 2, stop: ['x'] },
    ],
  ] as const)('writes %o as %o', (asked, written) => {
    const [, init] = chatRequest({ ...server, apiKey: 'key' }, { messages, ...asked });
    expect(JSON.parse(String(init.body))).toEqual({ model: 'm', messages, ...written });
    expect(init.headers).toMatchObject({ authorization: 'Bearer key' });
  });
});

describe('an answer over Chat Completions', () => {
  it('may write what there is none of as null', () => {
    const message = { role: 'assistant', content: 'hi', tool_calls: null, reasoning: null, reasoning_content: null };
    expect(chatAnswerIn(completion(message, { finish_reason: null }))).toEqual({
      id: 'c1',
      content: 'hi',
      toolCalls: [],
      reasoning: undefined,
      stopReason: 'stop',
      withheld: false,
    });
  });

  it('keeps calls, thoughts, and that it was cut', () => {
    const call = { id: '1', type: 'function', function: { name: 'look', arguments: '{}' } };
    const message = { tool_calls: [call], reasoning_content: 'hm' };
    expect(chatAnswerIn(completion(message, { finish_reason: 'length' }))).toEqual({
      id: 'c1',
      content: null,
      toolCalls: [call],
      reasoning: 'hm',
      stopReason: 'length',
      withheld: false,
    });
  });

  it.each(['', 'null', '[]', '{}', '{"choices":null}', '{"choices":[]}', '{"choices":[{"message":null}]}', '<html>'])(
    'is none where the server said %s',
    (text) => {
      expect(chatAnswerIn(text)).toBeUndefined();
    },
  );
});
