import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MINIMAL } from '../../test/fixtures/gateway/callers.ts';
import { type RawReply, rawClient, repliesIn } from '../../test/fixtures/gateway/raw-socket.ts';
import { open, specOf } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import type { Gateway } from './gateway.ts';
import { type Listener, listen } from './gateway.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

const body = JSON.stringify(MINIMAL['chat/completions']);
const timeouts = { headers: 150, request: 300, keepAlive: 150, linger: 100 };

let gateway: Gateway;
let neighbour: Session;
let listener: Listener;
let key: string;
let rollout: Session;
beforeAll(async () => {
  const opened = open({ spec: { limits: { turns: 10_000, tokens: 1e9, deadlineMs: 1000 } } });
  gateway = opened.gateway;
  rollout = opened.session;
  key = rollout.model().apiKey;
  listener = await listen(gateway, { timeouts });
  neighbour = gateway.open(specOf('neighbour', { limits: { turns: 10_000, tokens: 1e9, deadlineMs: 1000 } }));
});
afterAll(async () => await listener[Symbol.asyncDispose]());

interface Head {
  readonly start?: string;
  readonly headers?: readonly string[];
}

const head = ({ start = 'POST /v1/chat/completions HTTP/1.1', headers = [] }: Head): string =>
  `${[start, 'host: localhost', `authorization: Bearer ${key}`, 'content-type: application/json', ...headers].join('\r\n')}\r\n\r\n`;
const whole = (text = body, ...headers: string[]): string =>
  head({ headers: [`content-length: ${Buffer.byteLength(text)}`, ...headers] }) + text;

/** Sends it and gives the first reply. */
async function exchange(bytes: string | Buffer): Promise<RawReply> {
  using client = await rawClient(listener.origin);
  client.send(bytes);
  return await client.reply();
}

const codeOf = (reply: RawReply): string => (JSON.parse(reply.body) as { error: { code: string } }).error.code;

/** An error in JSON, nothing recorded, and a neighbour that notices nothing. */
async function expectRefused(reply: RawReply, status: number, code: string): Promise<void> {
  expect([reply.status, codeOf(reply)]).toEqual([status, code]);
  expect(reply.headers.get('content-type')).toBe('application/json');
  expect(rollout.turns).toEqual([]);
  const { baseURL, apiKey } = neighbour.model();
  const before = neighbour.turns.length;
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  expect((await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body })).status).toBe(200);
  expect(neighbour.turns.length).toBe(before + 1);
}

describe('bytes that are no request', () => {
  const many = Array.from({ length: 2001 }, (_, i) => `a${i}: b`);
  it.each([
    ['TE and CL', () => head({ headers: ['content-length: 4', 'transfer-encoding: chunked'] }), 400, 'malformed_http'],
    ['two different lengths', () => head({ headers: ['content-length: 4', 'content-length: 5'] }), 400, 'malformed_http'],
    ['a negative length', () => head({ headers: ['content-length: -1'] }), 400, 'malformed_http'],
    ['a length that overflows', () => head({ headers: ['content-length: 99999999999999999999999'] }), 400, 'malformed_http'],
    [
      'a chunk size that overflows',
      () => `${head({ headers: ['transfer-encoding: chunked'] })}fffffffffffffffff\r\n`,
      400,
      'malformed_http',
    ],
    ['a chunk that is none', () => `${head({ headers: ['transfer-encoding: chunked'] })}xyz\r\n`, 400, 'malformed_http'],
    ['an unknown transfer coding', () => head({ headers: ['transfer-encoding: gzip'] }), 400, 'malformed_http'],
    ['17 KiB of header', () => head({ headers: [`x-long: ${'x'.repeat(17 * 1024)}`] }), 431, 'headers_too_large'],
    ['a key of 64 KiB', () => head({ headers: [`x-api-key: ${'k'.repeat(64 * 1024)}`] }), 431, 'headers_too_large'],
    ['a path of 17 KiB', () => head({ start: `GET /${'x'.repeat(17 * 1024)} HTTP/1.1` }), 431, 'headers_too_large'],
    ['201 headers', () => head({ headers: many.slice(0, GATEWAY_LIMITS.headers) }), 431, 'headers_too_large'],
    ['2,001 headers', () => head({ headers: many }), 431, 'headers_too_large'],
    ['HTTP/0.9', () => 'GET /health\r\n\r\n', 400, 'malformed_http'],
    ['HTTP/2 right away', () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400, 'malformed_http'],
    ['no HTTP at all', () => '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 400, 'malformed_http'],
    ['NUL in a header', () => head({ headers: ['x-api-key: a\0b'] }), 400, 'malformed_http'],
    ['a folded header', () => head({ headers: ['x-api-key: a', ' b'] }), 400, 'malformed_http'],
    ['a bare line feed in a header', () => head({ headers: ['x-api-key: a\nx-b: c\rd'] }), 400, 'malformed_http'],
    ['no Host', () => `GET /health HTTP/1.1\r\n\r\n`, 400, 'malformed_http'],
    ['two Hosts', () => head({ headers: ['host: localhost'] }), 400, 'malformed_http'],
    ['two Authorization headers', () => head({ headers: ['Authorization: Bearer x'] }), 400, 'malformed_http'],
    ['two x-rollout-id headers', () => head({ headers: ['x-rollout-id: r1', 'X-Rollout-Id: r1'] }), 400, 'malformed_http'],
    ['CONNECT', () => 'CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n', 400, 'malformed_http'],
    ['TRACE', () => head({ start: 'TRACE /v1/chat/completions HTTP/1.1' }), 405, 'method_not_allowed'],
    ['an absolute URI', () => head({ start: 'POST http://evil.example/v1/chat/completions HTTP/1.1' }), 400, 'malformed_http'],
    ['OPTIONS *', () => head({ start: 'OPTIONS * HTTP/1.1' }), 400, 'malformed_http'],
    ['an encoded dot segment', () => head({ start: 'POST /r/x/%2e%2e/r1/v1/chat/completions HTTP/1.1' }), 400, 'malformed_http'],
    ['a dot segment', () => head({ start: 'GET /v1/../sessions HTTP/1.1' }), 400, 'malformed_http'],
    ['an empty segment', () => head({ start: 'GET //evil.example/health HTTP/1.1' }), 400, 'malformed_http'],
    ['an encoded NUL', () => head({ start: 'GET /r/a%00b/models HTTP/1.1' }), 400, 'malformed_http'],
    ['a bad percent', () => head({ start: 'GET /r/%zz/models HTTP/1.1' }), 400, 'malformed_http'],
    ['bytes that are no UTF-8 in the path', () => head({ start: 'GET /r/%ff/models HTTP/1.1' }), 400, 'malformed_http'],
    ['a backslash', () => head({ start: 'GET /r\\r1 HTTP/1.1' }), 400, 'malformed_http'],
    ['gzip', () => whole(body, 'content-encoding: gzip'), 415, 'unsupported_media_type'],
    ['an unknown encoding', () => whole(body, 'content-encoding: x-bomb'), 415, 'unsupported_media_type'],
    ['1 GiB announced', () => head({ headers: [`content-length: ${2 ** 30}`] }), 413, 'request_too_large'],
  ])('%s', async (_, bytes, status, code) => {
    await expectRefused(await exchange(bytes()), status, code);
  });

  it.each(['websocket', 'h2c', 'TLS/1.0'])('a wish to speak %s: 426 on any path, from anywhere', async (protocol) => {
    for (const path of ['/v1/responses', '/r/r1/v1/responses', '/nowhere']) {
      const wish = ['host: localhost', 'connection: Upgrade', `upgrade: ${protocol}`, 'origin: http://evil.example'];
      const reply = await exchange(`GET ${path} HTTP/1.1\r\n${wish.join('\r\n')}\r\n\r\n`);
      await expectRefused(reply, 426, 'upgrade_required');
      expect(reply.headers.get('upgrade')).toBe('HTTP/1.1');
    }
  });
});

describe('a web page', () => {
  it.each([
    'host: evil.example',
    'host: evil.example:80',
    'host: 127.0.0.1.evil.example',
    'host: localhost@evil.example',
    'host: 10.0.0.1',
  ])('reaches nothing by another name: %s', async (host) => {
    const reply = await exchange(`GET /health HTTP/1.1\r\n${host}\r\n\r\n`);
    expect(reply.status).toBe(host.includes('@') ? 400 : 403);
  });

  it.each(['localhost', 'localhost:1', '127.0.0.1', '127.3.2.1:99', '[::1]:8', 'a.localhost'])(
    'or %s, which is ours',
    async (host) => {
      expect((await exchange(`GET /health HTTP/1.1\r\nhost: ${host}\r\n\r\n`)).status).toBe(200);
    },
  );

  it.each([
    'origin: http://evil.example',
    'origin: null',
    'origin: http://localhost:3000',
    'sec-fetch-site: cross-site',
    'sec-fetch-site: same-site',
  ])('is refused, even with a key: %s', async (header) => {
    await expectRefused(await exchange(whole(body, header)), 403, 'forbidden_origin');
  });

  it('cannot send a form', async () => {
    for (const type of [
      'text/plain',
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
      'application/jsonp',
    ]) {
      const bytes = whole().replace('application/json', type);
      await expectRefused(await exchange(bytes), 415, 'unsupported_media_type');
    }
  });
});

describe('a client that takes its time', () => {
  it.each([
    ['with its headers', () => 'POST /v1/chat/completions HTTP/1.1\r\nhost: loc', 'a'],
    ['with its body', () => head({ headers: ['content-length: 1000'] }), ' '],
    ['and says nothing', () => '', ''],
  ])('%s is told so and cut off', async (_, start, drip) => {
    using client = await rawClient(listener.origin);
    client.send(start());
    const dripping = setInterval(() => drip && client.send(drip), 20);
    const reply = await client.reply();
    await client.closed;
    clearInterval(dripping);
    await expectRefused(reply, 408, 'request_timeout');
  });

  it('has less of it for its headers than for its body', async () => {
    await using own = await listen(open().gateway, { timeouts: { headers: 100, request: 3_600_000 } });
    using client = await rawClient(own.origin);
    client.send('GET /health HTTP/1.1\r\n');
    expect((await client.reply()).status).toBe(408);
  });

  it('is not cut off in the midst of what it sends before it could read why', async () => {
    await using own = await listen(open().gateway, { timeouts: { linger: 3_600_000 } });
    using client = await rawClient(own.origin, { allowHalfOpen: true });
    client.send('no request\r\n\r\n');
    expect((await client.reply()).status).toBe(400);
    for (let i = 0; i < 5; i++) {
      client.send('nor this\r\n\r\n');
      await sleep(10);
    }
    expect(client.socket.destroyed).toBe(false);
    expect(repliesIn(client.text()).length).toBe(1);
  });

  it('between two requests is cut off, as are many at once', async () => {
    const clients = await Promise.all(Array.from({ length: 300 }, () => rawClient(listener.origin)));
    for (const client of clients.slice(0, 150)) client.send('GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n');
    await expectRefused(await exchange(head({ headers: ['content-length: x'] })), 400, 'malformed_http');
    await Promise.all(clients.map(({ closed }) => closed));
    expect(clients.slice(0, 150).map((client) => repliesIn(client.text())[0]?.status)).toEqual(Array(150).fill(200));
  });
});

describe('a body', () => {
  it('shorter than announced records nothing', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: [`content-length: ${body.length + 10}`] }) + body);
    client.socket.end();
    await client.closed;
    await sleep(20);
    expect(rollout.turns).toEqual([]);
  });

  it('that grows beyond the limit, chunk by chunk, is refused then, and the client gets to know', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: ['transfer-encoding: chunked'] }));
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(0x100000, 32), Buffer.from('\r\n')]);
    for (let sent = 0; sent <= GATEWAY_LIMITS.bodyBytes; sent += 0x100000) client.send(chunk);
    const reply = await client.reply();
    expect(reply.headers.get('connection')).toBe('close');
    await expectRefused(reply, 413, 'request_too_large');
    await client.closed;
  });

  it('announced too large is refused before any of it was sent', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: [`content-length: ${GATEWAY_LIMITS.bodyBytes + 1}`, 'expect: 100-continue'] }));
    const reply = await client.reply();
    expect(client.text()).not.toContain('100 Continue');
    await expectRefused(reply, 413, 'request_too_large');
  });

  it('of a stranger is refused unread', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: ['content-length: 1000', 'expect: 100-continue'] }).replace(key, 'ty-wrong'));
    const reply = await client.reply();
    expect(client.text()).not.toContain('100 Continue');
    await expectRefused(reply, 401, 'invalid_api_key');
  });

  it('that follows another leaves the connection in use: a refusal is no reason to hang up', async () => {
    using client = await rawClient(listener.origin);
    client.send(`${whole().replace(key, 'ty-wrong')}GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n`);
    while (repliesIn(client.text()).length < 2) await sleep(2);
    expect(repliesIn(client.text()).map(({ status }) => status)).toEqual([401, 200]);
  });

  it('longer than announced: what follows is no request', async () => {
    using client = await rawClient(listener.origin);
    client.send(`${head({ headers: [`content-length: ${body.length}`] }).replace(key, 'ty-wrong')}${body}SMUGGLED`);
    await client.closed;
    expect(
      repliesIn(client.text())
        .map(({ status }) => status)
        .slice(-1),
    ).toEqual([400]);
    expect(rollout.turns).toEqual([]);
  });
});

describe('many requests', () => {
  it('in one go are answered in their order', async () => {
    using client = await rawClient(listener.origin);
    client.send('GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n'.repeat(500));
    while (repliesIn(client.text()).length < 1000) await sleep(5);
    expect(repliesIn(client.text()).map(({ status }) => status)).toEqual(Array(500).fill([200, 404]).flat());
  });

  it('with wrong keys are slowed down; one with a right key from the same address is not', async () => {
    const slow = await listen(gateway);
    const guess = async () => (await fetch(`${slow.origin}/v1/models`, { headers: { 'x-api-key': 'ty-guess' } })).status;
    const statuses = await Promise.all(Array.from({ length: 300 }, guess));
    expect(new Set(statuses)).toEqual(new Set([401, 429]));
    expect((await fetch(`${slow.origin}/v1/models`, { headers: { 'x-api-key': key } })).status).toBe(200);
    await slow[Symbol.asyncDispose]();
    gateway.origin = listener.origin;
  });
});

it('bytes changed at random, or broken off, are answered or refused, and the next one is served', async () => {
  const { gateway: own, session } = open({ spec: { limits: { turns: 10_000, tokens: 1e9, deadlineMs: 1000 } } });
  await using bound = await listen(own, { timeouts });
  const request = Buffer.from(whole().replace(key, session.model().apiKey));
  const places = fc.nat({ max: request.length - 1 });
  const changes = fc.array(fc.tuple(places, fc.nat({ max: 255 })), { minLength: 1, maxLength: 4 });
  const cases = fc.sample(fc.record({ changes, length: fc.option(places, { freq: 3 }) }), { numRuns: 300, seed: 7 });
  const replies = await Promise.all(
    cases.map(async (one) => {
      const bytes = Buffer.from(request);
      for (const [place, byte] of one.changes) bytes[place] = byte;
      using client = await rawClient(bound.origin);
      client.send(bytes.subarray(0, one.length ?? bytes.length));
      await client.closed;
      return repliesIn(client.text());
    }),
  );
  const first = replies.map(([reply]) => reply?.status ?? 0);
  expect(first.filter((status) => status < 200 || status >= 500)).toEqual([]);
  for (const reply of replies.flat()) expect(() => JSON.parse(reply.body)).not.toThrow();
  expect(session.turns.length).toBe(
    replies.flat().filter(({ status, body: said }) => status === 200 && said.includes('chatcmpl')).length,
  );
  expect((await fetch(`${bound.origin}/health`)).status).toBe(200);
});

describe('binding', () => {
  it.each(['0.0.0.0', '::', '', '10.1.2.3', 'example.com', '127.0.0.1.evil.example'])(
    '%j without a token is refused',
    async (host) => {
      await expect(listen(open().gateway, { host })).rejects.toMatchObject({
        code: 'USAGE',
        hint: expect.stringContaining('token'),
      });
    },
  );

  it.each(['short', `${'x'.repeat(20)} y`, 'ä'.repeat(20)])('with the token %j is refused', async (token) => {
    await expect(listen(open().gateway, { host: '0.0.0.0', token })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('elsewhere with a token takes it as an admin key, and any Host', async () => {
    const { gateway: own } = open();
    const token = 'correct-horse-battery';
    await using bound = await listen(own, { host: '0.0.0.0', token });
    const { port } = new URL(bound.origin);
    const ask = async (headers: object) =>
      (await fetch(`http://127.0.0.1:${port}/sessions`, { headers: headers as Record<string, string> })).status;
    expect(await ask({ authorization: `Bearer ${token}` })).toBe(200);
    expect(await ask({ authorization: `Bearer ${token}x` })).toBe(401);
    expect(await ask({ authorization: `Bearer ${own.key('agent')}` })).toBe(403);
    using client = await rawClient(bound.origin);
    client.send('GET /health HTTP/1.1\r\nhost: trainer.example\r\n\r\n');
    expect((await client.reply()).status).toBe(200);
  });

  it('to a port that is taken says so, and what to do', async () => {
    const { gateway } = open();
    await using first = await listen(gateway);
    const port = Number(new URL(first.origin).port);
    await expect(listen(open().gateway, { port })).rejects.toMatchObject({
      code: 'USAGE',
      message: `port ${port} of 127.0.0.1 is taken`,
    });
  });

  it('to IPv6 loopback needs none', async () => {
    await using bound = await listen(open().gateway, { host: '::1' }).catch((thrown: Error) => {
      const { code } = (thrown.cause ?? thrown) as NodeJS.ErrnoException;
      if (code === 'EADDRNOTAVAIL' || code === 'EAFNOSUPPORT') return undefined;
      throw thrown;
    });
    if (bound) expect((await fetch(`${bound.origin}/health`)).status).toBe(200);
  });
});
