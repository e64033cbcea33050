import { describe, expect, it } from 'vitest';
import { open } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';

const instructions = 'You are a shop assistant.';

describe('a Responses request that is refused', () => {
  const user = { role: 'user', content: 'a' };
  it.each<[string, object]>([
    ['body', []],
    ['input', {}],
    ['input', { input: [] }],
    ['input', { input: 7 }],
    ['input', { instructions, input: [{ type: 'reasoning', summary: [], encrypted_content: 'x' }] }],
    ['input.0', { input: ['a'] }],
    ['input.1.type', { input: [user, { type: 'web_search_call', id: 'ws_1' }] }],
    ['input.0.role', { input: [{ role: 'tool', content: 'a' }] }],
    ['input.0.content', { input: [{ role: 'user' }] }],
    [
      'input.0.content.1.type',
      {
        input: [
          {
            role: 'user',
            content: [
              { type: 'input_text', text: 'a' },
              { type: 'input_image', image_url: 'b' },
            ],
          },
        ],
      },
    ],
    ['input.0.content.0.type', { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'b' }] }] }],
    ['input.0.content.0.text', { input: [{ role: 'user', content: [{ type: 'input_text' }] }] }],
    ['input.0.output.0.type', { input: [{ type: 'function_call_output', call_id: 'c', output: [{ type: 'input_image' }] }] }],
    ['input.0.arguments', { input: [{ type: 'function_call', call_id: 'c', name: 'f', arguments: {} }] }],
    ['input.1.id', { input: [user, { type: 'item_reference', id: 'msg_unknown' }] }],
    ['previous_response_id', { input: 'a', previous_response_id: 'resp_unknown' }],
    ['conversation', { input: 'a', conversation: 'conv_1' }],
    ['n', { input: 'a', n: 2 }],
    ['background', { input: 'a', background: true }],
    ['prompt', { input: 'a', prompt: { id: 'p' } }],
    ['truncation', { input: 'a', truncation: 'auto' }],
    ['max_tool_calls', { input: 'a', max_tool_calls: 1 }],
    ['top_logprobs', { input: 'a', top_logprobs: 2 }],
    ['tool_choice', { input: 'a', tool_choice: 'required' }],
    ['tools.0.name', { input: 'a', tools: [{ type: 'function' }] }],
    ['max_output_tokens', { input: 'a', max_output_tokens: 0 }],
    ['text.format', { input: 'a', text: { format: { type: 'grammar' } } }],
    ['text.format.schema', { input: 'a', text: { format: { type: 'json_schema', name: 'x', schema: 'string' } } }],
  ])('names %s, and leaves nothing behind', async (param, body) => {
    const { session, engine } = open({});
    const response = await post(session, body);
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as { error: { param: string; message: string; type: string } };
    expect(error).toMatchObject({ param, type: 'invalid_request_error', message: expect.stringContaining(param) });
    expect(engine.requests).toEqual([]);
    expect(session.seal()).toEqual([]);
  });

  it('names the item that nobody was given', async () => {
    const { session } = open({});
    const response = await post(session, { input: [{ type: 'item_reference', id: 'msg_unknown' }] });
    expect(await response.text()).toContain('msg_unknown');
  });
});

function post(session: Session, body: object): Promise<globalThis.Response> {
  const { baseURL, apiKey, fetch } = session.model();
  const headers = { authorization: `Bearer ${apiKey}` };
  return fetch(`${baseURL}/responses`, { method: 'POST', headers, body: JSON.stringify(body) });
}
