import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RawClient, type RawReply, rawClient, repliesIn } from '../../test/fixtures/raw-socket.ts';
import { TrainyardError } from '../core/errors.ts';
import { bearerOf, HTTP_LIMITS, isSameSecret } from './guard.ts';
import { KeyedServer, type Listener, serve } from './http-server.ts';
import { type HttpReply, type HttpRequest, jsonReply, type RoutePattern, Router, readJson } from './message.ts';
import { type Failure, failureOf } from './refusal.ts';

const MOST = 2 * 1024 * 1024;
const body = JSON.stringify({ hello: 'world' });
const timeouts = { headers: 150, request: 300, keepAlive: 150, linger: 100 };
const secret = { name: 'token', value: undefined };

type Reply = (server: Echo, request: HttpRequest) => Promise<HttpReply> | HttpReply;
const ROUTER = new Router<RoutePattern & { readonly reply: Reply }>([
  { method: 'GET', path: '/health', reply: () => jsonReply(200, { status: 'ok' }) },
  { method: 'POST', path: '/echo', reply: (server, request) => server.echo(request) },
  { method: 'GET', path: '/names/{name}', reply: () => Promise.reject(new Error('a defect')) },
]);

/** Echoes JSON to whoever has the key; has its own shape of errors; counts what it answered, refused, aborted and could not deliver. */
class Echo extends KeyedServer {
  readonly failures: string[];
  readonly echoed: unknown[] = [];
  undelivered = 0;
  aborted = 0;
  /** Requests that wait for `held`. */
  waiting = 0;
  held: Promise<void> | undefined;

  constructor() {
    const failures: string[] = [];
    super({ onFailure: ({ code }, path) => void failures.push(`${code} ${path}`) });
    this.failures = failures;
  }

  async echo(request: HttpRequest): Promise<HttpReply> {
    request.signal?.addEventListener('abort', () => this.aborted++);
    const said = await readJson(request, { bodyBytes: MOST, nesting: 10 });
    this.waiting++;
    await this.held;
    this.echoed.push(said);
    return { ...jsonReply(200, { said }), undelivered: () => void this.undelivered++ };
  }

  protected async route(request: HttpRequest): Promise<HttpReply> {
    if (request.path !== '/health' && !isSameSecret('right', bearerOf(request)))
      throw new TrainyardError('SESSION_UNKNOWN', 'who?');
    return await ROUTER.find(request.method, request.path).route.reply(this, request);
  }

  protected failureOf(thrown: unknown): Failure {
    const rows = {
      REQUEST_INVALID: { status: 400, code: 'invalid_request' },
      SESSION_UNKNOWN: { status: 401, code: 'wrong_key' },
    };
    return failureOf(thrown, { rows, otherwise: { status: 500, code: 'defect' } });
  }

  protected replyTo({ status, code, message, headers }: Failure): HttpReply {
    return jsonReply(status, { code, message }, headers);
  }
}

let echo: Echo;
let listener: Listener;
beforeAll(async () => {
  echo = new Echo();
  listener = await serve(echo, { secret, timeouts });
});
afterAll(async () => await listener[Symbol.asyncDispose]());

interface Head {
  readonly start?: string;
  readonly headers?: readonly string[];
}

const head = ({ start = 'POST /echo HTTP/1.1', headers = [] }: Head): string =>
  `${[start, 'host: localhost', 'authorization: Bearer right', 'content-type: application/json', ...headers].join('\r\n')}\r\n\r\n`;
const whole = (text = body, ...headers: string[]): string =>
  head({ headers: [`content-length: ${Buffer.byteLength(text)}`, ...headers] }) + text;
const stranger = (bytes: string): string => bytes.replace('Bearer right', 'Bearer wrong');

/** Sends it and gives the first reply. */
async function exchange(bytes: string | Buffer): Promise<RawReply> {
  using client = await rawClient(listener.origin);
  client.send(bytes);
  return await client.reply();
}

/** An error in the server's own shape, its code not called for it, and the next request served. */
async function expectRefused(reply: RawReply, status: number, code: string): Promise<void> {
  expect([reply.status, (JSON.parse(reply.body) as { code: string }).code]).toEqual([status, code]);
  expect(reply.headers.get('content-type')).toBe('application/json');
  expect(echo.echoed.splice(0)).toEqual([]);
  expect((await fetch(`${listener.origin}/health`)).status).toBe(200);
}

describe('bytes that are no request', () => {
  const many = Array.from({ length: 2001 }, (_, i) => `a${i}: b`);
  const chunked = ['transfer-encoding: chunked'];
  it.each<[string, string, number?, string?]>([
    ['TE and CL', head({ headers: ['content-length: 4', ...chunked] })],
    ['two different lengths', head({ headers: ['content-length: 4', 'content-length: 5'] })],
    ['a negative length', head({ headers: ['content-length: -1'] })],
    ['a length that overflows', head({ headers: ['content-length: 99999999999999999999999'] })],
    ['a chunk size that overflows', `${head({ headers: chunked })}fffffffffffffffff\r\n`],
    ['a chunk that is none', `${head({ headers: chunked })}xyz\r\n`],
    ['an unknown transfer coding', head({ headers: ['transfer-encoding: gzip'] })],
    ['17 KiB of header', head({ headers: [`x-long: ${'x'.repeat(17 * 1024)}`] }), 431, 'headers_too_large'],
    ['a path of 17 KiB', head({ start: `GET /${'x'.repeat(17 * 1024)} HTTP/1.1` }), 431, 'headers_too_large'],
    ['201 headers', head({ headers: many.slice(0, HTTP_LIMITS.headers) }), 431, 'headers_too_large'],
    ['2,001 headers', head({ headers: many }), 431, 'headers_too_large'],
    ['HTTP/0.9', 'GET /health\r\n\r\n'],
    ['HTTP/2 right away', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
    ['no HTTP at all', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'],
    ['NUL in a header', head({ headers: ['x-api-key: a\0b'] })],
    ['a folded header', head({ headers: ['x-api-key: a', ' b'] })],
    ['a bare line feed in a header', head({ headers: ['x-api-key: a\nx-b: c\rd'] })],
    ['no Host', `GET /health HTTP/1.1\r\n\r\n`],
    ['two Hosts', head({ headers: ['host: localhost'] })],
    ['two Authorization headers', head({ headers: ['Authorization: Bearer x'] })],
    ['two x-rollout-id headers', head({ headers: ['x-rollout-id: r1', 'X-Rollout-Id: r1'] })],
    ['CONNECT', 'CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n'],
    ['TRACE', head({ start: 'TRACE /echo HTTP/1.1' }), 405, 'method_not_allowed'],
    ['an absolute URI', head({ start: 'POST http://evil.example/echo HTTP/1.1' })],
    ['OPTIONS *', head({ start: 'OPTIONS * HTTP/1.1' })],
    ['an encoded dot segment', head({ start: 'POST /r/x/%2e%2e/echo HTTP/1.1' })],
    ['a dot segment', head({ start: 'GET /v1/../health HTTP/1.1' })],
    ['an empty segment', head({ start: 'GET //evil.example/health HTTP/1.1' })],
    ['an encoded NUL', head({ start: 'GET /a%00b HTTP/1.1' })],
    ['a bad percent', head({ start: 'GET /%zz HTTP/1.1' })],
    ['a backslash', head({ start: 'GET /r\\r1 HTTP/1.1' })],
    ['gzip', whole(body, 'content-encoding: gzip'), 415, 'unsupported_media_type'],
    ['an unknown encoding', whole(body, 'content-encoding: x-bomb'), 415, 'unsupported_media_type'],
    ['1 GiB announced', head({ headers: [`content-length: ${2 ** 30}`] }), 413, 'request_too_large'],
  ])('%s', async (_, bytes, status = 400, code = 'malformed_http') => {
    await expectRefused(await exchange(bytes), status, code);
  });

  it('HTTP/1.0, as proxies speak it, is answered', async () => {
    expect((await exchange('GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n')).status).toBe(200);
  });

  it('an offer of HTTP/2, as Java and curl make it, is not taken up, and the request is answered', async () => {
    const offer = ['host: localhost', 'connection: Upgrade, HTTP2-Settings', 'upgrade: h2c', 'http2-settings: AAEAAEAA'];
    expect((await exchange(`GET /health HTTP/1.1\r\n${offer.join('\r\n')}\r\n\r\n`)).status).toBe(200);
  });

  it('an upgrade to a web socket: 426 on any path, from anywhere', async () => {
    const wish = ['host: localhost', 'connection: Upgrade', 'upgrade: WebSocket', 'origin: http://evil.example'];
    const reply = await exchange(`GET /nowhere HTTP/1.1\r\n${wish.join('\r\n')}\r\n\r\n`);
    await expectRefused(reply, 426, 'upgrade_required');
    expect(reply.headers.get('upgrade')).toBe('HTTP/1.1');
  });
});

describe('a web page', () => {
  const health = (host: string) => exchange(`GET /health HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
  it.each([
    ['evil.example', 403],
    ['evil.example:80', 403],
    ['127.0.0.1.evil.example', 403],
    ['localhost@evil.example', 400],
    ['10.0.0.1', 403],
  ])('reaches nothing by another name: %s', async (host, status) => {
    expect((await health(host)).status).toBe(status);
  });

  it.each(['localhost:1', '127.0.0.1', '127.3.2.1:99', '[::1]:8', 'a.localhost'])('or %s, which is ours', async (host) => {
    expect((await health(host)).status).toBe(200);
  });

  it.each([
    'origin: http://evil.example',
    'origin: null',
    'origin: http://localhost:3000',
    'sec-fetch-site: cross-site',
    'sec-fetch-site: same-site',
  ])('is refused, even with a key: %s', async (header) => {
    await expectRefused(await exchange(whole(body, header)), 403, 'forbidden_origin');
  });

  it.each(['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x', 'application/jsonp'])(
    'cannot send a form: %s',
    async (type) => {
      await expectRefused(await exchange(whole().replace('application/json', type)), 415, 'unsupported_media_type');
    },
  );
});

describe('a client that takes its time', () => {
  it.each([
    ['with its headers', 'POST /echo HTTP/1.1\r\nhost: loc', 'a'],
    ['with its body', head({ headers: ['content-length: 1000'] }), ' '],
    ['and says nothing', '', ''],
  ])('%s is told so and cut off', async (_, start, drip) => {
    using client = await rawClient(listener.origin);
    client.send(start);
    const dripping = setInterval(() => drip && client.send(drip), 20);
    const reply = await client.reply();
    await client.closed;
    clearInterval(dripping);
    await expectRefused(reply, 408, 'request_timeout');
  });

  it('has less of it for its headers than for its body', async () => {
    await using own = await serve(new Echo(), { secret, timeouts: { headers: 100, request: 3_600_000 } });
    using client = await rawClient(own.origin);
    client.send('GET /health HTTP/1.1\r\n');
    expect((await client.reply()).status).toBe(408);
  });

  it('is not cut off in the midst of what it sends before it could read why', async () => {
    await using own = await serve(new Echo(), { secret, timeouts: { linger: 3_600_000 } });
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
    // Time enough for the headers of all, on a machine that is busy.
    await using own = await serve(new Echo(), { secret, timeouts: { headers: 2000, keepAlive: 150 } });
    const connected = async (_: unknown, i: number): Promise<RawClient> => {
      const client = await rawClient(own.origin);
      if (i < 150) client.send('GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n');
      return client;
    };
    const clients = await Promise.all(Array.from({ length: 300 }, connected));
    await Promise.all(clients.map(({ closed }) => closed));
    expect(clients.slice(0, 150).map((client) => repliesIn(client.text())[0]?.status)).toEqual(Array(150).fill(200));
  });
});

describe('a key', () => {
  const ask = (path: string, authorization: string, method = 'GET') =>
    fetch(listener.origin + path, { method, headers: { authorization } });

  it.each(['', 'Bearer wrong', 'Bearer rightx', 'Bearer righ', 'Basic right', 'right', 'Bearer '])(
    'that is %j is 401 on every path',
    async (authorization) => {
      for (const path of ['/echo', '/nowhere', '/names/x']) expect((await ask(path, authorization)).status).toBe(401);
      expect((await ask('/health', authorization)).status).toBe(200);
    },
  );

  it('may be sent after bearer in any letters', async () => {
    expect((await ask('/nowhere', 'bearer  right')).status).toBe(404);
  });

  it('that was guessed too often is 429, but not the right one from the same address', async () => {
    await using own = await serve(new Echo(), { secret });
    const guess = async (authorization: string) => (await fetch(`${own.origin}/nowhere`, { headers: { authorization } })).status;
    const { wrongKeys, wrongKeysPerSecond } = HTTP_LIMITS;
    const began = performance.now();
    const statuses = await Promise.all(Array.from({ length: wrongKeys + 100 }, () => guess('Bearer wrong')));
    const refused = statuses.filter((status) => status === 401).length;
    expect(statuses.filter((status) => status === 429).length).toBe(statuses.length - refused);
    expect(refused).toBeGreaterThanOrEqual(wrongKeys);
    expect(refused).toBeLessThanOrEqual(wrongKeys + 1 + ((performance.now() - began) / 1000) * wrongKeysPerSecond);
    expect(await guess('Bearer right')).toBe(404);
  });

  it('is no help on paths that are not there, and methods that a path does not take', async () => {
    const bearer = 'Bearer right';
    const wrong = [
      await ask('/nowhere', bearer),
      await ask('/echo', bearer),
      await ask('/names/%ff', bearer),
      await ask('/names/x', bearer),
    ];
    expect(wrong.map(({ status }) => status)).toEqual([404, 405, 400, 500]);
    expect(wrong[1]!.headers.get('allow')).toBe('POST');
    expect(echo.failures.slice(-4)).toEqual([
      'not_found /nowhere',
      'method_not_allowed /echo',
      'malformed_http /names/%ff',
      'defect /names/x',
    ]);
  });
});

describe('a body', () => {
  it('shorter than announced reaches nobody', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: [`content-length: ${body.length + 10}`] }) + body);
    client.socket.end();
    await client.closed;
    await sleep(20);
    expect(echo.echoed).toEqual([]);
  });

  it('that grows beyond the limit, chunk by chunk, is refused then, and the client gets to know', async () => {
    using client = await rawClient(listener.origin);
    client.send(head({ headers: ['transfer-encoding: chunked'] }));
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(0x100000, 32), Buffer.from('\r\n')]);
    for (let sent = 0; sent <= MOST; sent += 0x100000) client.send(chunk);
    const reply = await client.reply();
    expect(reply.headers.get('connection')).toBe('close');
    await expectRefused(reply, 413, 'request_too_large');
    await client.closed;
  });

  it.each([
    [
      'announced too large is refused before any of it was sent',
      head({ headers: [`content-length: ${MOST + 1}`, 'expect: 100-continue'] }),
      413,
    ],
    ['of a stranger is refused unread', stranger(head({ headers: ['content-length: 1000', 'expect: 100-continue'] })), 401],
  ])('%s', async (_, bytes, status) => {
    using client = await rawClient(listener.origin);
    client.send(bytes);
    expect((await client.reply()).status).toBe(status);
    expect(client.text()).not.toContain('100 Continue');
  });

  it('that follows another leaves the connection in use: a refusal is no reason to hang up', async () => {
    using client = await rawClient(listener.origin);
    client.send(`${stranger(whole())}GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n`);
    while (repliesIn(client.text()).length < 2) await sleep(2);
    expect(repliesIn(client.text()).map(({ status }) => status)).toEqual([401, 200]);
  });

  it('longer than announced: what follows is no request', async () => {
    using client = await rawClient(listener.origin);
    client.send(`${stranger(whole())}SMUGGLED`);
    await client.closed;
    expect(repliesIn(client.text()).at(-1)?.status).toBe(400);
    expect(echo.echoed).toEqual([]);
  });

  it.each<[string, string | Buffer]>([
    ['empty', ''],
    ['truncated', body.slice(0, -1)],
    ['two values', `${body}${body}`],
    ['with a byte order mark', `\uFEFF${body}`],
    ['UTF-16', Buffer.from(body, 'utf16le')],
    ['invalid UTF-8', Buffer.from(body.replace('world', 'caf\xe9'), 'latin1')],
    ['NaN', '{"a":NaN}'],
    ['nested too deeply', `${'['.repeat(1e5)}${']'.repeat(1e5)}`],
  ])('that is no JSON to be read is 400: %s', async (_, bytes) => {
    const headers = { authorization: 'Bearer right', 'content-type': 'application/json' };
    const response = await fetch(`${listener.origin}/echo`, { method: 'POST', headers, body: bytes as string });
    expect([response.status, ((await response.json()) as { code: string }).code]).toEqual([400, 'invalid_request']);
    expect(echo.echoed).toEqual([]);
  });

  it('may be JSON by another name', async () => {
    const bytes = whole().replace('application/json', 'application/vnd.api+json; charset="UTF-8"');
    expect((await exchange(bytes)).status).toBe(200);
    expect(echo.echoed.splice(0).length).toBe(1);
  });
});

describe('a client that leaves', () => {
  const serveEcho = async (linger = 1000) => {
    const handler = new Echo();
    const own = await serve(handler, { secret, timeouts: { linger } });
    return { handler, own, [Symbol.asyncDispose]: () => own[Symbol.asyncDispose]() };
  };

  it('aborts all requests that it sent on the connection, and gets none of the answers', async () => {
    await using place = await serveEcho();
    const { handler } = place;
    const { promise, resolve: answer } = Promise.withResolvers<void>();
    handler.held = promise;
    const client = await rawClient(place.own.origin);
    client.send(whole() + whole());
    await expect.poll(() => handler.waiting).toBe(2);
    client.socket.destroy();
    await expect.poll(() => handler.aborted).toBe(2);
    answer();
    await expect.poll(() => handler.undelivered).toBe(2);
  });

  it('with answers unread, though they are out of our hands, did not get them', async () => {
    await using place = await serveEcho();
    const client = await rawClient(place.own.origin);
    client.socket.pause();
    client.send(whole() + whole());
    await expect.poll(() => place.handler.echoed.length).toBe(2);
    client.socket.resetAndDestroy();
    await expect.poll(() => place.handler.undelivered).toBe(2);
  });

  it('with its answers read got them, also where the idle connection is cut much later', async () => {
    await using place = await serveEcho(50);
    using client = await rawClient(place.own.origin);
    client.send(whole());
    await client.reply();
    await sleep(100);
    client.socket.resetAndDestroy();
    await sleep(50);
    expect([place.handler.aborted, place.handler.undelivered]).toEqual([0, 0]);
  });
});

it('many requests in one go are answered in their order', async () => {
  using client = await rawClient(listener.origin);
  client.send('GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nPUT /health HTTP/1.1\r\nhost: localhost\r\n\r\n'.repeat(500));
  while (repliesIn(client.text()).length < 1000) await sleep(5);
  expect(repliesIn(client.text()).map(({ status }) => status)).toEqual(Array(500).fill([200, 405]).flat());
});

it('bytes changed at random, or broken off, are answered or refused, and the next one is served', async () => {
  const handler = new Echo();
  await using bound = await serve(handler, { secret, timeouts });
  const request = Buffer.from(whole());
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
  expect(handler.echoed.length).toBe(replies.flat().filter(({ body: said }) => said.includes('"said"')).length);
  expect((await fetch(`${bound.origin}/health`)).status).toBe(200);
});

describe('binding', () => {
  const bind = (host: string, token?: string) => serve(new Echo(), { host, secret: { name: 'token', value: token } });

  it.each(['0.0.0.0', '::', '', '10.1.2.3', 'example.com', '127.0.0.1.evil.example'])(
    '%j without a secret is refused',
    async (host) => {
      await expect(bind(host)).rejects.toMatchObject({ code: 'USAGE', hint: expect.stringContaining('token') });
    },
  );

  it.each(['short', `${'x'.repeat(20)} y`, 'ä'.repeat(20)])('with the secret %j is refused', async (token) => {
    await expect(bind('0.0.0.0', token)).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('elsewhere takes any Host', async () => {
    await using bound = await bind('0.0.0.0', 'correct-horse-battery');
    using client = await rawClient(bound.origin);
    client.send('GET /health HTTP/1.1\r\nhost: trainer.example\r\n\r\n');
    expect((await client.reply()).status).toBe(200);
  });

  it('to a port that is taken says so, and what to do', async () => {
    const port = Number(new URL(listener.origin).port);
    await expect(serve(new Echo(), { port, secret })).rejects.toMatchObject({
      code: 'USAGE',
      message: `port ${port} of 127.0.0.1 is taken`,
    });
  });

  it('to IPv6 loopback needs no secret', async () => {
    await using bound = await bind('::1').catch((thrown: Error) => {
      const { code } = (thrown.cause ?? thrown) as NodeJS.ErrnoException;
      if (code === 'EADDRNOTAVAIL' || code === 'EAFNOSUPPORT') return undefined;
      throw thrown;
    });
    if (bound) expect((await fetch(`${bound.origin}/health`)).status).toBe(200);
  });
});
