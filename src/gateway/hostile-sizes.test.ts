import { describe, expect, it } from 'vitest';
import { toldBy } from '../../test/fixtures/gateway/callers.ts';
import { open, post } from '../../test/fixtures/gateway/streams.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

const user = { role: 'user', content: 'hello' };
const told = async (response: Response) => toldBy(response.status, await response.text(), response.headers);

describe('a body of very many tiny values', () => {
  const many = `[${Array(GATEWAY_LIMITS.values).fill(0).join(',')}]`;
  const few = `[${Array(GATEWAY_LIMITS.values - 20)
    .fill(0)
    .join(',')}]`;

  it.each(['messages', 'tools', 'stop', 'metadata'])('is refused before each of them is looked at, in %s', async (name) => {
    const { session } = open();
    const body = JSON.stringify({ messages: [user], [name]: 'HERE' }).replace('"HERE"', many);
    const { status, message } = await told(await post(session, body));
    expect([status, message]).toEqual([400, expect.stringContaining(`at most ${GATEWAY_LIMITS.values} are read`)]);
  });

  it('is read up to the limit, and brackets and commas in a text are no values', async () => {
    const { session } = open();
    const text = '[{,'.repeat(GATEWAY_LIMITS.values);
    const body = JSON.stringify({ messages: [{ role: 'user', content: text }], metadata: 'HERE' }).replace('"HERE"', few);
    expect((await post(session, body)).status).toBe(200);
  });
});

describe('more text than any context holds is refused before it is tokenised', () => {
  // Tokenising so long a word fails, and so would be noticed.
  const long = 'x'.repeat(5e6);
  const called = { id: 'c', type: 'function', function: { name: 'f', arguments: long } };

  it.each([
    [
      'the description of a tool',
      { messages: [user], tools: [{ type: 'function', function: { name: 'f', description: long } }] },
    ],
    ['the arguments of a call', { messages: [user, { role: 'assistant', content: null, tool_calls: [called] }, user] }],
    ['a thought', { messages: [user, { role: 'assistant', content: 'a', reasoning_content: long }, user] }],
  ])('in %s', async (_, body) => {
    const { session } = open({ contextLength: 4096 });
    expect(await told(await post(session, JSON.stringify(body)))).toMatchObject({ status: 400, code: 'context_length_exceeded' });
    expect(session.turns).toEqual([]);
  });
});
