/**
 * The node:http server behind every server of this package. It binds addresses beyond loopback only with a secret. A request whose head is
 * malformed or ambiguous, or that comes from another's web page or through a foreign DNS name (rebinding), never reaches a server's code. A
 * client that hangs up aborts its request; undelivered replies are reported. Streams send one text at a time, so slow clients need no buffer.
 * Input that never becomes a request (invalid HTTP, endless headers, an upgrade) also gets a reply in the server's format before the
 * connection closes.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Clock } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { checkSecret, HTTP_LIMITS, isLoopback, type Secret, WrongKeys } from './guard.ts';
import { type BodyStream, fetchWith, type HttpReply, type HttpRequest, headersOf, isStream, readBytes } from './message.ts';
import { type Failure, httpRefusal, type Refusal } from './refusal.ts';

export interface HttpHandler {
  /** Never rejects: a failure is a reply too. */
  answer(request: HttpRequest): Promise<HttpReply>;
  refuse(refusal: Refusal, header: HttpRequest['header']): HttpReply;
}

export interface KeyedServerOptions<Told = Failure> {
  readonly clock?: Clock | undefined;
  /** Called for every request that is answered with an error. */
  readonly onFailure?: ((failure: Told, path: string) => void) | undefined;
}

/**
 * The one way from a request to its reply, whatever the server: it counts wrong keys, and what a route throws becomes a reply. A server says
 * what its routes do, and what an error looks like.
 */
export abstract class KeyedServer<Told = Failure> implements HttpHandler {
  /** Like the global `fetch`, for the server's own URLs. */
  readonly fetch = fetchWith((request) => this.answer(request));
  readonly #wrongKeys: WrongKeys;
  readonly #onFailure: KeyedServerOptions<Told>['onFailure'];

  constructor({ clock = Date, onFailure }: KeyedServerOptions<Told> = {}) {
    this.#wrongKeys = new WrongKeys(clock);
    this.#onFailure = onFailure;
  }

  /** May throw; SESSION_UNKNOWN for a wrong key. */
  protected abstract route(request: HttpRequest): Promise<HttpReply>;

  protected abstract failureOf(thrown: unknown): Told;

  /** In the server's own format. `path` is `/` if the request was refused before it was read. */
  protected abstract replyTo(failure: Told, request: Pick<HttpRequest, 'path' | 'header'>): HttpReply;

  async answer(request: HttpRequest): Promise<HttpReply> {
    try {
      return await this.route(request);
    } catch (thrown) {
      return this.#failed(this.#wrongKeys.count(thrown, request.address), request);
    }
  }

  refuse(refusal: Refusal, header: HttpRequest['header']): HttpReply {
    return this.#failed(refusal, { path: '/', header });
  }

  #failed(thrown: unknown, request: Pick<HttpRequest, 'path' | 'header'>): HttpReply {
    const failure = this.failureOf(thrown);
    this.#onFailure?.(failure, request.path);
    return this.replyTo(failure, request);
  }
}

export interface Timeouts {
  /** Milliseconds from the connection, or the previous request, to the end of the headers. */
  readonly headers: number;
  /** Milliseconds to the end of the body. */
  readonly request: number;
  /** Milliseconds between two requests. */
  readonly keepAlive: number;
  /** Milliseconds for a client to read a reply: a refusal while it is still sending, or a response before it counts as read. */
  readonly linger: number;
}

export const TIMEOUTS: Timeouts = { headers: 10_000, request: 60_000, keepAlive: 60_000, linger: 1000 };

export interface HttpServerOptions {
  /** Default: 127.0.0.1. */
  readonly host?: string | undefined;
  /** Default: a free port. */
  readonly port?: number | undefined;
  /** Required for any address other than loopback. */
  readonly secret: Secret;
  readonly timeouts?: Partial<Timeouts> | undefined;
}

export interface Listener extends AsyncDisposable {
  readonly origin: string;
  /** Resolves once no request is unanswered and no response is being sent. New requests are still taken. */
  idle(): Promise<void>;
}

/** Throws USAGE if the secret is missing or weak, or the address cannot be bound. */
export async function serve(handler: HttpHandler, options: HttpServerOptions): Promise<Listener> {
  const { host = '127.0.0.1', port = 0, secret } = options;
  checkSecret(host, secret);
  const exchanges = new Exchanges(handler, isLoopback(host), { ...TIMEOUTS, ...options.timeouts });
  const server = serverOf(exchanges);
  const origin = await bind(server, host, port);
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return { origin, idle: () => exchanges.idle(), [Symbol.asyncDispose]: close };
}

async function bind(server: Server, host: string, port: number): Promise<string> {
  await once(server.listen(port, host), 'listening').catch((cause) => Promise.reject(cannotListen(cause, host, port)));
  const bound = (server.address() as AddressInfo).port;
  // A server bound to every interface is also reachable on loopback.
  const name = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return `http://${name.includes(':') ? `[${name}]` : name}:${bound}`;
}

function cannotListen(cause: NodeJS.ErrnoException, host: string, port: number): TrainyardError {
  const taken = cause.code === 'EADDRINUSE';
  const message = taken ? `port ${port} of ${host} is taken` : `cannot listen on ${host}, port ${port}: ${cause.message}`;
  return new TrainyardError('USAGE', message, {
    cause,
    hint: taken ? 'give another port, or none for a free one' : 'give an address of this machine and a port that you may use',
  });
}

function serverOf(exchanges: Exchanges): Server {
  const { timeouts } = exchanges;
  const settings = {
    headersTimeout: timeouts.headers,
    requestTimeout: timeouts.request,
    keepAliveTimeout: timeouts.keepAlive,
    connectionsCheckingInterval: Math.ceil(Math.min(timeouts.headers, timeouts.request) / 2),
    maxHeaderSize: HTTP_LIMITS.headerBytes,
    // The guard refuses a missing Host, as JSON.
    requireHostHeader: false,
  };
  const headers = { upgrade: 'HTTP/1.1' };
  const required = { hint: 'send the request without Upgrade', headers };
  const upgrade = httpRefusal('upgrade_required', 'only HTTP/1.1 is spoken here', required);
  // Without an upgrade listener, Node answers other offers (h2c, by Java and curl) as if they had not been made, as HTTP allows.
  const take = (incoming: IncomingMessage, outgoing: ServerResponse): void => {
    if (incoming.headers.upgrade?.toLowerCase() === 'websocket') exchanges.endWith(upgrade, incoming.socket);
    else void exchanges.take(incoming, outgoing);
  };
  const server = createServer(settings, take);
  server.on('checkContinue', take);
  server.on('checkExpectation', take);
  server.on('connect', (_, socket) => exchanges.endWith(httpRefusal('malformed_http', 'this is no proxy'), socket));
  server.on('clientError', (error, socket) => exchanges.clientError(error, socket));
  return server;
}

/** Shared: an error with a stack for each client that hangs up would cost more than a small request. */
const HUNG_UP = new DOMException('the client hung up', 'AbortError');
/** Unread bodies up to this size are read and dropped, so that the connection can be reused. */
const DROPPED_BYTES = 1024 * 1024;

class Exchanges {
  readonly timeouts: Timeouts;
  readonly #handler: HttpHandler;
  readonly #local: boolean;
  /** Callbacks for whole replies that may turn out to be unread; several if requests were pipelined. */
  readonly #unread = new WeakMap<Duplex, { readonly miss: () => void; readonly sentAt: number }[]>();
  readonly #answering = new WeakMap<Duplex, ServerResponse>();
  #open = 0;
  #idle = Promise.withResolvers<void>();

  constructor(handler: HttpHandler, local: boolean, timeouts: Timeouts) {
    this.#handler = handler;
    this.#local = local;
    this.timeouts = timeouts;
  }

  async idle(): Promise<void> {
    while (this.#open > 0) {
      this.#idle = Promise.withResolvers<void>();
      await this.#idle.promise;
    }
  }

  async take(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const { socket } = incoming;
    const hangUp = new AbortController();
    let isGone = false;
    let undelivered: (() => void) | undefined;
    this.#answering.set(socket, outgoing);
    this.#unread.delete(socket);
    this.#open++;
    outgoing.once('close', () => {
      if (--this.#open === 0) this.#idle.resolve();
      if (this.#answering.get(socket) === outgoing) this.#answering.delete(socket);
      if (outgoing.writableFinished) return;
      isGone = true;
      hangUp.abort(HUNG_UP);
      undelivered?.();
    });
    try {
      const reply = await this.#replyTo(incoming, outgoing, hangUp);
      if (isGone) return reply.undelivered?.();
      undelivered = reply.undelivered;
      if (!isStream(reply.body)) return this.#sendWhole(reply, reply.body, incoming, outgoing);
      outgoing.writeHead(reply.status, headersOf(reply));
      await sendStream(reply.body, outgoing);
    } catch {
      // Only a cut stream gets here.
      outgoing.destroy();
    }
  }

  async #replyTo(incoming: IncomingMessage, outgoing: ServerResponse, controller: AbortController): Promise<HttpReply> {
    const header = (name: string): string | undefined => incoming.headers[name] as string | undefined;
    try {
      checkHead(incoming, this.#local);
    } catch (thrown) {
      return this.#handler.refuse(thrown as Refusal, header);
    }
    const [path] = incoming.url!.split('?', 1) as [string];
    return await this.#handler.answer({
      method: incoming.method ?? 'GET',
      path,
      query: incoming.url!.slice(path.length),
      header,
      body: (most) => {
        if (header('expect') !== undefined) outgoing.writeContinue();
        return readBytes(incoming, most);
      },
      signal: controller.signal,
      controller,
      address: incoming.socket.remoteAddress,
    });
  }

  /** If the client is still sending, replies first and discards its input for a moment; otherwise it would lose the reply. */
  #sendWhole(reply: HttpReply, body: string | Uint8Array, incoming: IncomingMessage, outgoing: ServerResponse): void {
    const { socket } = incoming;
    if (reply.undelivered) {
      const sent = this.#unread.get(socket) ?? [];
      this.#unread.set(socket, [...sent, { miss: reply.undelivered, sentAt: performance.now() }]);
    }
    const headers = { ...headersOf(reply), 'content-length': Buffer.byteLength(body) };
    const declared = Number(incoming.headers['content-length'] ?? (incoming.headers['transfer-encoding'] ? Infinity : 0));
    if (incoming.complete || declared <= DROPPED_BYTES) {
      outgoing.writeHead(reply.status, headers).end(body);
      return;
    }
    outgoing.writeHead(reply.status, { ...headers, connection: 'close' }).write(body);
    const end = (): void => void outgoing.end();
    incoming.once('end', end).once('close', end).resume();
    setTimeout(end, this.timeouts.linger).unref();
  }

  clientError(error: NodeJS.ErrnoException, socket: Duplex): void {
    // A client that closes with an unread reply resets the connection. A much later reset is just an idle connection being cut.
    const since = performance.now() - this.timeouts.linger;
    if (error.code === 'ECONNRESET') for (const { miss, sentAt } of this.#unread.get(socket) ?? []) if (sentAt > since) miss();
    // A second reply cannot be written into the middle of the first.
    if (this.#answering.get(socket)?.headersSent || !socket.writable) socket.destroy();
    else this.endWith(parserRefusal(error), socket);
  }

  /** Replies to input that never became a request. Discards further input for a while: closing over unread bytes would lose the reply. */
  endWith(refusal: Refusal, socket: Duplex): void {
    const reply = this.#handler.refuse(refusal, () => undefined);
    const body = reply.body as string;
    const headers = { ...headersOf(reply), 'content-length': Buffer.byteLength(body), connection: 'close' };
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.on('error', () => socket.destroy());
    socket.end(`HTTP/1.1 ${reply.status} ${STATUS_CODES[reply.status]}\r\n${lines.join('')}\r\n${body}`);
    socket.resume();
    setTimeout(() => socket.destroy(), this.timeouts.linger).unref();
  }
}

/** Rejects when the stream is cut or the client hangs up. */
async function sendStream(stream: BodyStream, outgoing: ServerResponse): Promise<void> {
  // Otherwise a cut stream would still wait for a client that does not read.
  stream.onCut = () => outgoing.destroy();
  for (let text = await stream.read(); text !== undefined; text = await stream.read()) {
    // Clients hang up at the last event, so the end goes out with it; otherwise a delivered response would look undelivered.
    if (stream.drained) {
      outgoing.end(text, () => stream.delivered());
      return;
    }
    await written(outgoing, text);
  }
  outgoing.end();
}

/** Resolves once the kernel has the text; rejects if the client hangs up first. */
function written(outgoing: ServerResponse, text: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    outgoing.once('close', reject);
    outgoing.write(text, () => {
      outgoing.off('close', reject);
      resolve();
    });
  });
}

function parserRefusal({ code }: NodeJS.ErrnoException): Refusal {
  if (code === 'HPE_HEADER_OVERFLOW') return httpRefusal('headers_too_large', 'the headers are larger than 16 KiB');
  if (code === 'HPE_CHUNK_EXTENSIONS_OVERFLOW') return httpRefusal('request_too_large', 'the chunk extensions are too large');
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return httpRefusal('request_timeout', 'the request did not arrive in time');
  return httpRefusal('malformed_http', 'this is not an HTTP/1.1 request');
}

/** Headers that a request may have only once: two values would be two claims. */
const SINGLE = [
  'authorization',
  'x-api-key',
  'x-goog-api-key',
  'x-rollout-id',
  'x-sample-id',
  'idempotency-key',
  'host',
  'content-type',
  'content-encoding',
  'content-length',
  'origin',
];
const TARGET = /^\/[\x21\x23-\x5b\x5d-\x7e]*$/;
/** Empty and dot segments, NUL, and percent signs that encode nothing. */
const BAD_PATH = /\/(?=\/)|\/(?:\.|%2e){1,2}(?=\/|$)|%00|%(?![0-9a-f]{2})/i;
const HOST = /^(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?$/i;

/** Throws a Refusal. `local`: whether the server is bound to loopback only. */
function checkHead(incoming: IncomingMessage, local: boolean): void {
  const { rawHeaders, headers, headersDistinct, url = '' } = incoming;
  const count = rawHeaders.length / 2;
  if (count > HTTP_LIMITS.headers) {
    throw httpRefusal('headers_too_large', `${count} headers; at most ${HTTP_LIMITS.headers} are read`);
  }
  const twice = SINGLE.find((name) => (headersDistinct[name]?.length ?? 0) > 1);
  if (twice !== undefined) throw malformed(`two ${twice} headers`);
  if (!TARGET.test(url) || BAD_PATH.test(url.split('?', 1)[0]!)) throw malformed('the request target is not a plain path');
  checkHost(headers.host, local);
  // Only a page that the server itself gave out may call it: a request of any other page is misdirected or malicious.
  const { origin, 'sec-fetch-site': site } = headers;
  if ((origin !== undefined && origin !== `http://${headers.host}`) || site === 'cross-site' || site === 'same-site') {
    throw httpRefusal('forbidden_origin', 'the request comes from a web page of another origin');
  }
}

function checkHost(host: string | undefined, local: boolean): void {
  const [, name] = HOST.exec(host ?? '') ?? [];
  if (name === undefined) throw malformed('the Host header is missing or malformed');
  if (!local || isLoopback(name)) return;
  throw httpRefusal('forbidden_origin', `Host ${host} is not a name of this machine’s loopback`, {
    hint: 'use 127.0.0.1 or localhost',
  });
}

function malformed(message: string): Refusal {
  return httpRefusal('malformed_http', message);
}
