/** One exchange, against servers that treat their sockets as they please; and what errors quote of a reply. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, it } from 'vitest';
import { HttpClient, ReplyErrors } from './http-client.ts';

const POST = { method: 'POST', path: 'x', pool: 'submit', timeoutMs: 5000, body: Buffer.from('{}') } as const;
const never = new AbortController().signal;

/** Drops a socket, unannounced, when a second request comes on it. */
async function startFickleServer(): Promise<http.Server> {
  const used = new WeakSet<object>();
  const server = http.createServer((request, response) => {
    if (used.has(request.socket)) request.socket.destroy();
    else response.end('{}');
    used.add(request.socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

it('a request on a socket of its own is not lost on one that the server is dropping', async () => {
  await using server = await startFickleServer();
  const client = new HttpClient({ baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, apiKey: 'key' });
  try {
    expect(await client.exchange(POST, never)).toMatchObject({ status: 200 });
    expect(await client.exchange({ ...POST, repeatable: false }, never)).toMatchObject({ status: 200 });
    // The socket of the first is used again: that is what sharing means, and why not everything may be shared.
    expect(await client.exchange(POST, never)).toMatchObject({ kind: 'broken' });
  } finally {
    client.close();
  }
});

const reply = (value: unknown, contentType = 'application/json') => ({
  status: 400,
  contentType,
  retryAfter: undefined,
  body: Buffer.from(contentType === 'application/json' ? JSON.stringify(value) : String(value)),
});

describe('a key that a server sends back is not shown', () => {
  const quoted = 'tml-with"quotes"and\\more';
  const long = `tml-${'0123456789'.repeat(60)}`;

  it.each([
    ['in a text', quoted, { detail: `the key ${quoted} is bad` }, 'the key *** is bad'],
    ['in an object', quoted, { detail: { key: quoted } }, '{"key":"***"}'],
    ['longer than what is quoted', long, { detail: long }, '***'],
  ])('%s', (_, key, value, says) => {
    expect(new ReplyErrors(key, 'http://x').ofStatus(reply(value), 'asample').message).toBe(
      `the server answered 400 to asample: ${says}`,
    );
  });

  it('cut off in a page', () => {
    const { message } = new ReplyErrors(long, 'http://x').garbled(reply(`<p>${long}</p>`, 'text/html'), 'asample');
    expect(message).not.toContain('0123');
    expect(message).toContain('it begins: <p>***');
  });
});
