/** One exchange, against servers that treat their sockets as they please. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { HttpClient } from './http.ts';

const POST = { method: 'POST', path: '/', pool: 'submit', timeoutMs: 5000, body: Buffer.from('{}') } as const;
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
  const client = new HttpClient(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'key');
  try {
    expect(await client.exchange(POST, never)).toMatchObject({ status: 200 });
    expect(await client.exchange({ ...POST, alone: true }, never)).toMatchObject({ status: 200 });
    // The socket of the first is used again: that is what sharing means, and why not everything may be shared.
    await expect(client.exchange(POST, never)).rejects.toMatchObject({ kind: 'broken' });
  } finally {
    client.close();
  }
});
