import { describe, expect, it } from 'vitest';
import { messageTools, postTo } from '../../../test/fixtures/gateway/messages.ts';
import { open } from '../../../test/fixtures/gateway/streams.ts';
import { TrainyardError } from '../../core/errors.ts';

describe('a Messages request that is refused', () => {
  const messages = [{ role: 'user', content: 'q' }];
  const said = (...content: unknown[]) => ({ messages: [...messages, { role: 'assistant', content }, ...messages] });
  const asked = (...content: unknown[]) => ({ messages: [{ role: 'user', content }] });
  const image = { type: 'image', source: { type: 'base64', data: '' } };

  it.each<[string, unknown]>([
    ['body', null],
    ['body', []],
    ['body', 'text'],
    ['messages', {}],
    ['messages', { messages: [] }],
    ['messages', { messages: {} }],
    ['messages.0.role', { messages: [{ role: 'tool', content: 'x' }] }],
    ['messages.0.content', { messages: [{ role: 'user', content: null }] }],
    ['messages.0.content', asked({ text: 'x' })],
    ['messages.0.content', asked('x')],
    ['messages.0.content.1.type', asked({ type: 'text', text: 'x' }, image)],
    ['messages.0.content.0.type', asked({ type: 'document' })],
    ['messages.0.content.0.type', asked({ type: 'tool_use', id: 'c', name: 'f', input: {} })],
    ['messages.0.content.0.text', asked({ type: 'text' })],
    ['messages.0.content.0.tool_use_id', asked({ type: 'tool_result', content: '' })],
    ['messages.0.content.0.content', asked({ type: 'tool_result', tool_use_id: 'c', content: 1 })],
    ['messages.0.content.0.content.0.type', asked({ type: 'tool_result', tool_use_id: 'c', content: [image] })],
    ['messages.1.content.0.type', said({ type: 'redacted_thinking', data: 'x' })],
    ['messages.1.content.0.type', said({ type: 'server_tool_use', id: 'c', name: 'f', input: {} })],
    ['messages.1.content.0.id', said({ type: 'tool_use', name: 'f', input: {} })],
    ['messages.1.content.0.name', said({ type: 'tool_use', id: 'c', input: {} })],
    ['messages.1.content.0.thinking', said({ type: 'thinking' })],
    ['messages.1.role', { messages: [...messages, { role: 'assistant', content: 'The price is' }] }],
    ['system', { messages, system: 1 }],
    ['system.0.type', { messages, system: [image] }],
    ['tools', { messages, tools: {} }],
    ['tools.0.name', { messages, tools: [{ input_schema: {} }] }],
    ['tools.1.input_schema', { messages, tools: [...messageTools, { name: 'f' }] }],
    ['tool_choice', { messages, tool_choice: { type: 'any' } }],
    ['tool_choice', { messages, tool_choice: { type: 'tool', name: 'lookup' } }],
    ['tool_choice', { messages, tool_choice: 'auto' }],
    ['temperature', { messages, temperature: -1 }],
    ['top_p', { messages, top_p: 0 }],
    ['top_k', { messages, top_k: 0.5 }],
    ['max_tokens', { messages, max_tokens: 0 }],
    ['stop_sequences.0', { messages, stop_sequences: [''] }],
    ['stop_sequences', { messages, stop_sequences: 'x' }],
    ['stream', { messages, stream: 'yes' }],
    ['mcp_servers', { messages, mcp_servers: [{ type: 'url', url: 'https://example.com', name: 'x' }] }],
    ['output_format', { messages, output_format: { type: 'grammar' } }],
    ['output_format.schema', { messages, output_format: { type: 'json_schema' } }],
    ['output_config.format', { messages, output_config: { format: { type: 'grammar' } } }],
  ])('for its %s says so in Anthropic’s words and leaves nothing (%#)', async (param, body) => {
    const { session, engine } = open();
    const response = await postTo(session, 'messages', JSON.stringify(body));
    expect(response.status).toBe(400);
    const error = { type: 'invalid_request_error', code: 'invalid_request', param, message: expect.stringContaining(param) };
    expect(await response.json()).toMatchObject({ type: 'error', error });
    expect(engine.requests.length).toBe(0);
    expect(session.seal()).toEqual([]);
  });

  it.each([
    { messages, thread: { type: 'create' } },
    { messages: [], thread: { type: 'continue', previous_message_id: 'msg_1' } },
  ])('for a thread is refused in the form that makes the stock client send everything (%#)', async (body) => {
    const { session, engine } = open();
    const response = await postTo(session, 'messages', body);
    expect(response.status).toBe(400);
    expect(await response.json()).toStrictEqual({
      type: 'error',
      error: {
        type: 'invalid_request_error',
        message: expect.any(String),
        details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] },
      },
    });
    expect(engine.requests.length).toBe(0);
    expect(session.seal()).toEqual([]);
  });

  it('for what is not about its body has Anthropic’s type for the status', async () => {
    const errorOf = async (response: Promise<Response>) => {
      const { status } = await response;
      const { type, error } = (await (await response).json()) as {
        type: string;
        error: Record<'type' | 'code' | 'message', string>;
      };
      expect(type).toBe('error');
      return { status, ...error };
    };
    const thrown = [new Error('no'), new TrainyardError('CONTEXT_OVERFLOW', 'the prompt has 9 tokens, the context 8')];
    const { session } = open({
      reply: (_, call) => {
        throw thrown[call];
      },
    });
    const wrong = { authorization: 'Bearer wrong' };
    expect(await errorOf(postTo(session, 'messages', { messages }, wrong))).toMatchObject({
      status: 401,
      type: 'authentication_error',
    });
    expect(await errorOf(postTo(session, 'messages', { messages }))).toMatchObject({ status: 503, type: 'api_error' });
    const overflow = await errorOf(postTo(session, 'messages', { messages }));
    expect(overflow).toMatchObject({ status: 400, type: 'invalid_request_error', code: 'context_length_exceeded' });
    expect(overflow.message).toMatch(/^prompt is too long/);
    expect(session.seal()).toEqual([]);
    expect(await errorOf(postTo(session, 'messages', { messages }))).toMatchObject({
      status: 410,
      type: 'invalid_request_error',
      code: 'rollout_ended',
    });
  });
});
