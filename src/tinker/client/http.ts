/**
 * One HTTP exchange with a server: a request, a whole reply, within a time limit and a size limit.
 *
 * Few sockets carry many requests. Long polls wait for their answer on a socket each, so they have pools of their own: a thousand
 * samples that are waited for never stand in the way of a submission, a heartbeat or the result of a training verb. Does not repeat
 * anything, does not follow redirects and does not read what a body says.
 */
import http from 'node:http';
import https from 'node:https';
import { TrainyardError } from '../../core/errors.ts';
import { cancelled, Places } from './places.ts';
import { Turns } from './turns.ts';

/** Sockets at most, by what they are for: together within the 256 open files that some systems allow. */
const SOCKETS = { submit: 32, sample: 160, train: 24, control: 4 } as const;
export type SocketPool = keyof typeof SOCKETS;

/** An idle socket is dropped before servers drop it (the shortest habit is 5 s), or a request could be lost on a dying one. */
const IDLE_MS = 3000;
const REPLY_BYTES = 64 * 1024 * 1024;

export interface ExchangeRequest {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Behind the base URL. */
  readonly path: string;
  readonly pool: SocketPool;
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array;
  /** On a socket of its own: for what must not be lost on one that the server is about to drop. */
  readonly alone?: boolean;
}

export interface HttpReply {
  readonly status: number;
  readonly contentType: string;
  readonly retryAfter: string | undefined;
  readonly body: Buffer;
}

/**
 * `unsent`: the server never got the request. `broken`: it may have. `silent`: it got it and did not answer in time. `oversized`: the
 * reply is larger than any reply has reason to be.
 */
export type FailureKind = 'unsent' | 'broken' | 'silent' | 'oversized';

export class ExchangeFailure extends Error {
  override readonly name = 'ExchangeFailure';
  readonly kind: FailureKind;

  constructor(kind: FailureKind, message: string) {
    super(message);
    this.kind = kind;
  }
}

export class HttpClient {
  readonly #base: URL;
  /** Taken apart once: a URL costs more to read than a small request to send. */
  readonly #place: { readonly hostname: string; readonly port: string; readonly path: string };
  readonly #headers: Readonly<Record<string, string>>;
  readonly #agents: Readonly<Record<SocketPool, http.Agent>>;
  /** Who waits for a socket waits here, before the request is made: a thousand requests made at once would stop everything else. */
  readonly #places: Readonly<Record<SocketPool, Places>>;

  readonly #turns = new Turns();

  /** Throws USAGE for a base URL that is none. */
  constructor(baseURL: string, apiKey: string) {
    this.#base = parseBase(baseURL);
    const { hostname, port, pathname } = this.#base;
    this.#place = { hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port, path: pathname.replace(/\/+$/, '') };
    if (!/^[\x21-\x7e]+$/.test(apiKey)) {
      throw new TrainyardError('USAGE', 'the API key is empty or holds characters that no header can carry', {
        hint: 'set TINKER_API_KEY',
      });
    }
    this.#headers = { 'x-api-key': apiKey, 'user-agent': 'trainyard' };
    const { Agent } = this.#base.protocol === 'https:' ? https : http;
    const agent = (pool: SocketPool) => new Agent({ keepAlive: true, maxSockets: SOCKETS[pool], timeout: IDLE_MS });
    this.#agents = perPool(agent);
    this.#places = perPool((pool) => new Places(SOCKETS[pool]));
  }

  /** The base URL as it is shown and kept: without credentials, query and closing slash. */
  get address(): string {
    return `${this.#base.origin}${this.#base.pathname.replace(/\/+$/, '')}`;
  }

  /** Rejects with ExchangeFailure, or with CANCELLED as soon as the signal aborts. */
  exchange(asked: ExchangeRequest, signal: AbortSignal): Promise<HttpReply> {
    return this.#places[asked.pool].within(signal, () => this.#exchange(asked, signal));
  }

  #exchange(asked: ExchangeRequest, signal: AbortSignal): Promise<HttpReply> {
    // It may have aborted while the place was being taken.
    if (signal.aborted) return Promise.reject(cancelled());
    const { promise, resolve, reject } = Promise.withResolvers<HttpReply>();
    const request = this.#request(asked);
    let connected = false;
    let timer: NodeJS.Timeout | undefined;
    const fail = (error: Error): void => {
      reject(error);
      request.destroy();
    };
    const onAbort = (): void => fail(cancelled());
    signal.addEventListener('abort', onAbort, { once: true });
    request.on('socket', (socket) => {
      if (!socket.connecting) connected = true;
      else socket.once('connect', () => (connected = true));
      const late = () =>
        fail(new ExchangeFailure(connected ? 'silent' : 'unsent', `no answer within ${asked.timeoutMs / 1000} s`));
      timer = setTimeout(late, asked.timeoutMs);
    });
    request.on('error', (error) => fail(new ExchangeFailure(connected ? 'broken' : 'unsent', said(error))));
    const arrived = (reply: HttpReply): void => this.#turns.enter(() => resolve(reply));
    request.on('response', (response) => readReply(response, arrived, fail));
    request.end(asked.body);
    return promise.finally(() => {
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
    });
  }

  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  #request({ method, path, pool, headers, body, alone = false }: ExchangeRequest): http.ClientRequest {
    const { request } = this.#base.protocol === 'https:' ? https : http;
    return request({
      ...this.#place,
      path: this.#place.path + path,
      method,
      agent: alone ? false : this.#agents[pool],
      headers: {
        ...this.#headers,
        ...headers,
        ...(body === undefined ? {} : { 'content-length': String(body.byteLength) }),
      },
    });
  }
}

function readReply(response: http.IncomingMessage, resolve: (reply: HttpReply) => void, fail: (error: Error) => void): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  response.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > REPLY_BYTES) fail(new ExchangeFailure('oversized', `a reply of more than ${REPLY_BYTES} bytes`));
    else chunks.push(chunk);
  });
  response.on('error', (error) => fail(new ExchangeFailure('broken', said(error))));
  response.on('end', () => {
    const { statusCode = 0, headers } = response;
    const contentType = headers['content-type'] ?? '';
    resolve({ status: statusCode, contentType, retryAfter: headers['retry-after'], body: Buffer.concat(chunks) });
  });
}

function perPool<T>(make: (pool: SocketPool) => T): Readonly<Record<SocketPool, T>> {
  return { submit: make('submit'), sample: make('sample'), train: make('train'), control: make('control') };
}

function parseBase(baseURL: string): URL {
  const url = URL.canParse(baseURL) ? new URL(baseURL) : undefined;
  if (url === undefined || !['http:', 'https:'].includes(url.protocol) || url.username !== '' || url.password !== '') {
    throw new TrainyardError('USAGE', 'the base URL of the Tinker server is not an http(s) URL without credentials', {
      hint: 'give an address such as http://127.0.0.1:8000, for example in TINKER_BASE_URL',
    });
  }
  return url;
}

/** A name that several addresses answer to fails with one error for each of them. */
function said(error: Error): string {
  if (error instanceof AggregateError && error.errors.length > 0) return said(error.errors[0] as Error);
  return error.message === '' ? String((error as NodeJS.ErrnoException).code ?? error.name) : error.message;
}
