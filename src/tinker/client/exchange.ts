/**
 * One HTTP exchange with a Tinker server: a request, a whole reply, within a time limit and a size limit.
 *
 * Few sockets carry many requests. Long polls wait for their answer on a socket each, so they have pools of their own: a thousand samples
 * that are waited for never hold up a submission, a heartbeat or the result of a training verb. Nothing is repeated here and no redirect
 * is followed. `ReplyErrors` says what a reply that is no result means; which replies are worth another try is decided in `retry.ts`.
 */
import http from 'node:http';
import https from 'node:https';
import { Semaphore, yieldToEventLoop } from '../../core/async.ts';
import { type ErrorCode, TrainyardError } from '../../core/errors.ts';
import { parsedJson } from '../../core/json.ts';
import type { FailureCategory } from '../wire/tinker-messages.ts';

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

export interface ServerReply {
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

/** What the work gives; CANCELLED where it fails after the signal has aborted. */
export async function orCancelled<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (thrown) {
    if (!signal?.aborted) throw thrown;
    throw new TrainyardError('CANCELLED', 'the request to the server of the policy was cancelled');
  }
}

export class HttpClient {
  /** The base URL as it is shown and kept: without credentials, query and closing slash. */
  readonly address: string;
  readonly #request: typeof http.request;
  /** Taken apart once: a URL costs more to read than a small request to send. */
  readonly #base: { readonly hostname: string; readonly port: string; readonly path: string };
  readonly #headers: Readonly<Record<string, string>>;
  readonly #agents: Readonly<Record<SocketPool, http.Agent>>;
  /** A request waits for a socket before it is made: a thousand requests made at once would block the event loop. */
  readonly #limits: Readonly<Record<SocketPool, Semaphore>>;

  /** Throws USAGE for a base URL or a key that is none. */
  constructor(baseURL: string, apiKey: string) {
    const { protocol, origin, hostname, port, pathname } = parseBase(baseURL);
    const path = pathname.replace(/\/+$/, '');
    this.address = `${origin}${path}`;
    this.#base = { hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port, path };
    if (!/^[\x21-\x7e]+$/.test(apiKey)) {
      throw new TrainyardError('USAGE', 'the API key is empty or holds characters that no header can carry', {
        hint: 'set TINKER_API_KEY',
      });
    }
    this.#headers = { 'x-api-key': apiKey, 'user-agent': 'trainyard' };
    const { Agent, request } = protocol === 'https:' ? https : http;
    this.#request = request;
    this.#agents = perPool((maxSockets) => new Agent({ keepAlive: true, maxSockets, timeout: IDLE_MS }));
    this.#limits = perPool((sockets) => new Semaphore(sockets));
  }

  /** Rejects with ExchangeFailure, or with CANCELLED as soon as the signal aborts. */
  async exchange(asked: ExchangeRequest, signal: AbortSignal): Promise<ServerReply> {
    const reply = await orCancelled(
      signal,
      this.#limits[asked.pool].run(() => this.#exchange(asked, signal), signal),
    );
    // A hundred replies that arrive together must not block everything else.
    await yieldToEventLoop();
    return reply;
  }

  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  async #exchange(asked: ExchangeRequest, signal: AbortSignal): Promise<ServerReply> {
    // It may have aborted after the semaphore let this in.
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<ServerReply>();
    const request = this.#begin(asked);
    let connected = false;
    let timer: NodeJS.Timeout | undefined;
    const fail = (error: unknown): void => {
      reject(error);
      request.destroy();
    };
    const onAbort = (): void => fail(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    request.on('socket', (socket) => {
      if (!socket.connecting) connected = true;
      else socket.once('connect', () => (connected = true));
      const late = (): void =>
        fail(new ExchangeFailure(connected ? 'silent' : 'unsent', `no answer within ${asked.timeoutMs / 1000} s`));
      timer = setTimeout(late, asked.timeoutMs);
    });
    request.on('error', (error) => fail(new ExchangeFailure(connected ? 'broken' : 'unsent', messageIn(error))));
    request.on('response', (response) => readReply(response).then(resolve, fail));
    request.end(asked.body);
    return promise.finally(() => {
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
    });
  }

  #begin({ method, path, pool, headers, body, alone = false }: ExchangeRequest): http.ClientRequest {
    const length = body === undefined ? {} : { 'content-length': String(body.byteLength) };
    return this.#request({
      ...this.#base,
      path: this.#base.path + path,
      method,
      agent: alone ? false : this.#agents[pool],
      headers: { ...this.#headers, ...headers, ...length },
    });
  }
}

function readReply(response: http.IncomingMessage): Promise<ServerReply> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    response.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > REPLY_BYTES) reject(new ExchangeFailure('oversized', `a reply of more than ${REPLY_BYTES} bytes`));
      else chunks.push(chunk);
    });
    response.on('error', (error) => reject(new ExchangeFailure('broken', messageIn(error))));
    response.on('end', () => {
      const { statusCode: status = 0, headers } = response;
      const contentType = headers['content-type'] ?? '';
      resolve({ status, contentType, retryAfter: headers['retry-after'], body: Buffer.concat(chunks) });
    });
  });
}

function perPool<T>(make: (sockets: number) => T): Readonly<Record<SocketPool, T>> {
  const { submit, sample, train, control } = SOCKETS;
  return { submit: make(submit), sample: make(sample), train: make(train), control: make(control) };
}

function parseBase(baseURL: string): URL {
  const url = URL.parse(baseURL);
  if (url === null || !['http:', 'https:'].includes(url.protocol) || url.username !== '' || url.password !== '') {
    throw new TrainyardError('USAGE', 'the base URL of the Tinker server is not an http(s) URL without credentials', {
      hint: 'give an address such as http://127.0.0.1:8000, for example in TINKER_BASE_URL',
    });
  }
  return url;
}

/** A name that several addresses answer to fails with one error for each of them. */
function messageIn(error: Error): string {
  if (error instanceof AggregateError && error.errors.length > 0) return messageIn(error.errors[0] as Error);
  return error.message === '' ? String((error as NodeJS.ErrnoException).code ?? error.name) : error.message;
}

// What a reply that is no result means, as an error: whose fault it is and what to do.

/** Servers without a status for it say so in words. */
const LOST = /\bmodel\b.{0,120}\bnot (loaded|found)\b|\bunknown (model|session|sampling session)\b/i;

/** As many letters of a key are no accident. */
const KEY_START = 12;

/** Quotes the server's own words, shortened and printable. The API key never shows, even where the server sends it back. */
export class ReplyErrors {
  readonly #apiKey: string;
  readonly #address: string;

  constructor(apiKey: string, address: string) {
    this.#apiKey = apiKey;
    this.#address = address;
  }

  /** Of a reply with a status of 300 or more. */
  ofStatus(reply: ServerReply, verb: string): TrainyardError {
    const { status } = reply;
    const details = { status };
    if (status < 400) {
      return new TrainyardError('POLICY_REFUSED', `the server at ${this.#address} answered ${verb} with a redirect (${status})`, {
        hint: 'give the address that the server itself listens at',
        details,
      });
    }
    const words = this.#wordsOf(reply);
    const found = `the server answered ${status} to ${verb}${words === undefined ? '' : `: ${words}`}`;
    const hint = { 401: 'check TINKER_API_KEY', 402: 'check the billing of the account', 403: 'check TINKER_API_KEY' }[status];
    if (hint !== undefined) return new TrainyardError('POLICY_REFUSED', found, { hint, details });
    if (words === undefined) return this.garbled(reply, verb);
    if (status === 404 || status === 410 || LOST.test(words)) return lost(found, details);
    return new TrainyardError('POLICY_REFUSED', found, { details });
  }

  /** Of a request that was accepted and then failed. */
  ofFailure(error: string, category: FailureCategory, verb: string, code: ErrorCode): TrainyardError {
    const words = this.quote(error, 500);
    const found = `${verb} failed at the server: ${words}`;
    if (LOST.test(words)) return lost(found, { category });
    return new TrainyardError(category === 'user' ? 'POLICY_REFUSED' : code, found, { details: { category } });
  }

  /** Of a reply that is not what the API says. */
  garbled({ status, contentType, body }: ServerReply, verb: string, why = 'not JSON'): TrainyardError {
    const start = this.quote(body.subarray(0, 400).toString('utf8'), 100);
    const kind = contentType === '' ? 'no content-type' : this.quote(contentType, 60);
    return new TrainyardError('POLICY_GARBLED', `the reply to ${verb} (${status}, ${kind}) is ${why}; it begins: ${start}`, {
      hint: `check that ${this.#address} is a Tinker server`,
    });
  }

  /** Printable, on one line, shortened. */
  quote(text: string, length: number): string {
    const plain = this.#withoutKey(text)
      .replace(/[\p{C}\s]+/gu, ' ')
      .trim();
    return plain.length > length ? `${plain.slice(0, length)}…` : plain;
  }

  /** The key may stand there as JSON writes it, or be cut off: then what is left of it goes too. */
  #withoutKey(text: string): string {
    const written = JSON.stringify(this.#apiKey).slice(1, -1);
    const whole = text.replaceAll(this.#apiKey, '***').replaceAll(written, '***');
    const parts = whole.split(this.#apiKey.slice(0, KEY_START));
    return parts.map((part, i) => (i === 0 ? part : part.replace(/^[^\s"'<]*/, ''))).join('***');
  }

  #wordsOf({ body }: ServerReply): string | undefined {
    const value = jsonIn(body);
    if (typeof value !== 'object' || value === null) return undefined;
    const { detail, error, message } = value as Record<string, unknown>;
    const words = detail ?? error ?? message ?? value;
    return this.quote(typeof words === 'string' ? words : JSON.stringify(words), 500);
  }
}

/** Undefined for what is not JSON. */
export function jsonIn(body: Buffer): unknown {
  return parsedJson(body.toString());
}

/** `details`: of what the server said; without them, it said nothing of the kind, and what became of a request is unknown. */
export function lost(found: string, details?: Readonly<Record<string, string | number>>): TrainyardError {
  return new TrainyardError('POLICY_LOST', found, {
    hint: 'go on from what was saved last: the server has dropped the rest, or cannot say what became of it',
    ...(details && { details }),
  });
}

export function isLost(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST';
}
