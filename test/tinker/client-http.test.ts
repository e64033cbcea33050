/** The HTTP client against servers that are away, busy, silent or drop their sockets, with time limits of a test; and what errors quote. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, vi } from 'vitest';
import { Downtime } from '../../src/core/async.ts';
import { HttpClient, ReplyErrors } from '../../src/engines/tinker/client/http-client.ts';
import { failure, scripted } from '../fixtures/tinker/scripted-server.ts';

const poll = { method: 'POST', path: 'retrieve_future', pool: 'train', timeoutMs: 60, body: Buffer.from('{}') } as const;
const never = new AbortController().signal;
const unreachable = { code: 'POLICY_UNREACHABLE' };

const it = scripted
  .extend('downtime', () => new Downtime())
  .extend('client', ({ server, downtime }, { onCleanup }) => {
    const client = new HttpClient({ baseURL: server.url, apiKey: 'key', patienceMs: 300, downtime });
    onCleanup(() => client.close());
    return client;
  });

describe('a server that says nothing', () => {
  it('is busy as long as it is alive: a long poll is not yet answered', async ({ client, server }) => {
    server.script = ({ verb }) => (verb === 'retrieve_future' ? () => undefined : undefined);
    expect((await client.ask({ ...poll, longPoll: true }, never)).status).toBe(408);
    expect(server.of('healthz')).not.toHaveLength(0);
  });

  it('is unreachable after patience where it does not say that it is alive either', async ({ client, server }) => {
    server.script = () => () => undefined;
    const asked = client.ask({ ...poll, longPoll: true }, never);
    await expect(asked).rejects.toMatchObject(failure('POLICY_UNREACHABLE', /no answer within 0.06 s/));
  });

  it('may have done what it was asked, so what must not be done twice is lost', async ({ client, server }) => {
    server.script = () => () => undefined;
    const asked = client.ask({ ...poll, path: 'optim_step', repeatable: false }, never);
    await expect(asked).rejects.toMatchObject(failure('POLICY_LOST', /cannot be known/));
    expect(server.of('optim_step')).toHaveLength(1);
  });
});

describe('patience with a server that is away', () => {
  const away = { json: {}, status: 503 };
  const ask = (client: HttpClient, patienceMs?: number) => client.ask({ ...poll, timeoutMs: 5000, patienceMs }, never);

  it('is counted as downtime from the first failure until no request is in trouble', async ({ client, server, downtime }) => {
    server.script = () => away;
    const [first, second] = [ask(client, 60), ask(client)].map((asked) => expect(asked).rejects.toMatchObject(unreachable));
    await first;
    const atFirst = downtime.milliseconds;
    await second;
    const atSecond = downtime.milliseconds;
    expect(atSecond).toBeGreaterThan(atFirst);
    await sleep(20);
    expect(downtime.milliseconds).toBe(atSecond);
  });

  it('is not given anew to the next request, but is once the server has answered anyone', async ({ client, server }) => {
    server.script = () => away;
    await expect(ask(client, 80)).rejects.toMatchObject(unreachable);
    const { length } = server.asked;
    await expect(ask(client, 80)).rejects.toMatchObject(unreachable);
    expect(server.asked).toHaveLength(length + 1);
    server.script = () => undefined;
    await ask(client);
    server.script = () => away;
    const asked = ask(client, 10_000);
    await sleep(30);
    server.script = () => undefined;
    expect((await asked).status).toBe(200);
  });

  it('is not used up when the machine’s clock is set', async ({ client, server }) => {
    const clock = vi.spyOn(Date, 'now');
    server.script = (_, count) => (count === 1 ? away : undefined);
    const asked = ask(client, 10_000);
    clock.mockReturnValue(Date.UTC(2100, 0));
    expect((await asked).status).toBe(200);
    clock.mockRestore();
  });
});

it('a request that must not be repeated is not lost on a socket that the server is dropping', async () => {
  const used = new WeakSet<object>();
  // Drops a socket, unannounced, when a second request comes on it.
  await using server = http.createServer((request, response) => {
    if (used.has(request.socket)) request.socket.destroy();
    else response.end('{}');
    used.add(request.socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const client = new HttpClient({ baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, apiKey: 'key' });
  const request = { ...poll, timeoutMs: 5000 };
  expect(await client.exchange(request, never)).toMatchObject({ status: 200 });
  expect(await client.exchange({ ...request, repeatable: false }, never)).toMatchObject({ status: 200 });
  // The socket of the first is used again: that is what sharing means, and why not everything may be shared.
  expect(await client.exchange(request, never)).toMatchObject({ kind: 'broken' });
  client.close();
});

describe('a key that a server sends back is not shown', () => {
  const quoted = 'tml-with"quotes"and\\more';
  const long = `tml-${'0123456789'.repeat(60)}`;
  const reply = (text: string, contentType: string) => ({
    ...{ status: 400, contentType, retryAfter: undefined },
    body: Buffer.from(text),
  });

  it.each([
    ['in a text', quoted, { detail: `the key ${quoted} is bad` }, 'the key *** is bad'],
    ['in an object', quoted, { detail: { key: quoted } }, '{"key":"***"}'],
    ['longer than what is quoted', long, { detail: long }, '***'],
  ])('%s', (_, key, value, says) => {
    const { message } = new ReplyErrors(key, 'http://x').ofStatus(reply(JSON.stringify(value), 'application/json'), 'asample');
    expect(message).toBe(`the server answered 400 to asample: ${says}`);
  });

  it('cut off in a page', () => {
    const { message } = new ReplyErrors(long, 'http://x').garbled(reply(`<p>${long}</p>`, 'text/html'), 'asample');
    expect(message).not.toContain('0123');
    expect(message).toContain('it begins: <p>***');
  });
});
