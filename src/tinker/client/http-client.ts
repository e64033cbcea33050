/**
 * HTTP to a Tinker server: requests within limits of time and size, repeated until the server answers, and what its errors mean.
 *
 * Few sockets carry many requests. Long polls hold a socket each, so they have pools of their own: a thousand samples that are waited for
 * never hold up a submission, a heartbeat or the result of a training verb. No redirect is followed.
 *
 * A server that is away (refused, reset, silent), busy (429), unpaid (402) or broken (5xx) is asked again: after longer and longer waits of
 * at most half a minute, and not for ever. Every other reply is the caller's to judge. A request that may have arrived is only sent again
 * where that is harmless: otherwise nobody can know whether it took effect, and what it was meant for counts as lost.
 */
import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import type { z } from 'zod';
import { type Downtime, Semaphore, yieldToEventLoop } from '../../core/async.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../../core/errors.ts';
import { isObject, parsedJson } from '../../core/json.ts';
import { readBytes } from '../../http/message.ts';
import { Refusal } from '../../http/refusal.ts';
import type { failedReply } from '../wire/tinker-messages.ts';

/** Of all pools; within the 256 open files that some systems allow. */
const MOST_SOCKETS = 220;
/** An idle socket is dropped before servers drop it (the shortest habit is 5 s), or a request could be lost on a dying one. */
const IDLE_MS = 3000;
const REPLY_BYTES = 64 * 1024 * 1024;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 30_000;
const HEALTH_TIMEOUT_MS = 10_000;
const PATIENCE_MS = 120_000;

export interface ConnectionSettings {
  readonly baseURL: string;
  readonly apiKey: string;
  /** Called once when trouble begins and once when it is over, however many requests are in it. */
  readonly onTrouble?: (message: string) => void;
  /** Runs as long as trouble lasts. */
  readonly downtime?: Downtime | undefined;
  /** How long an unreachable or busy server is waited for. */
  readonly patienceMs?: number;
  readonly signal?: AbortSignal;
}

export interface ClientRequest {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Below /api/v1/. */
  readonly path: string;
  /** What errors call it, where that is not the path. */
  readonly name?: string;
  readonly pool: 'submit' | 'sample' | 'train' | 'control';
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array;
  /** False where a second arrival would be a second effect. It then has a socket of its own, which the server is not about to drop. */
  readonly repeatable?: boolean;
  /** Less than the settings'. */
  readonly patienceMs?: number | undefined;
  /** Some servers hold these for minutes: no answer in time is status 408 as long as the server is alive. */
  readonly longPoll?: boolean;
  /** Status 500 is an answer. */
  readonly isTrial?: boolean | undefined;
}

export interface ServerReply {
  readonly status: number;
  readonly contentType: string;
  readonly retryAfter: string | undefined;
  readonly body: Buffer;
}

/** `unsent`: the server never got the request. `broken`: it may have. `silent`: it got it and did not answer in time. */
export interface ExchangeFailure {
  readonly kind: 'unsent' | 'broken' | 'silent';
  readonly message: string;
}

const NOT_YET: ServerReply = { status: 408, contentType: '', retryAfter: undefined, body: Buffer.alloc(0) };

export class HttpClient {
  /** The base URL as it is shown and kept: without credentials, query and closing slash. */
  readonly address: string;
  readonly errors: ReplyErrors;
  readonly #settings: ConnectionSettings;
  readonly #request: typeof http.request;
  /** Taken apart once: a URL costs more to read than a small request to send. */
  readonly #base: { readonly hostname: string; readonly port: string; readonly path: string };
  readonly #agent: http.Agent;
  /** A request waits for a socket before it is made: a thousand requests made at once would block the event loop. */
  readonly #sockets = {
    submit: new Semaphore(32),
    sample: new Semaphore(160),
    train: new Semaphore(24),
    control: new Semaphore(4),
  };
  /** Requests that failed and have not been answered since. */
  readonly #troubled = new Set<ClientRequest>();
  #troubledSince = 0;
  /** The first failure since the server last answered anything. */
  #silentSince: number | undefined;

  /** Throws USAGE for a base URL or a key that is none. */
  constructor(settings: ConnectionSettings) {
    const { protocol, origin, hostname, port, pathname } = parseBase(settings.baseURL);
    const path = pathname.replace(/\/+$/, '');
    if (!/^[\x21-\x7e]+$/.test(settings.apiKey)) {
      throw new TrainyardError('USAGE', 'the API key is empty or holds characters that no header can carry', {
        hint: 'set TINKER_API_KEY',
      });
    }
    const { Agent, request } = protocol === 'https:' ? https : http;
    this.address = `${origin}${path}`;
    this.errors = new ReplyErrors(settings.apiKey, this.address);
    this.#settings = settings;
    this.#request = request;
    this.#base = { hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port, path };
    this.#agent = new Agent({ keepAlive: true, maxSockets: MOST_SOCKETS, timeout: IDLE_MS });
  }

  /** Asks until the server answers. Throws POLICY_UNREACHABLE, POLICY_LOST, and what `exchange` throws. */
  async ask(request: ClientRequest, signal: AbortSignal): Promise<ServerReply> {
    let reply: ServerReply | undefined;
    try {
      reply = await this.#askUntilAnswered(request, signal);
      return reply;
    } finally {
      this.#endTrouble(request, reply !== undefined);
    }
  }

  /** One exchange; its failure is a value. Throws POLICY_GARBLED for a reply too large to be one, and CANCELLED. */
  async exchange(request: ClientRequest, signal: AbortSignal): Promise<ServerReply | ExchangeFailure> {
    const answer = await orCancelled(
      signal,
      this.#sockets[request.pool].run(() => this.#exchange(request, signal), signal),
    );
    // A hundred replies that arrive together must not block everything else.
    await yieldToEventLoop();
    return answer;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #exchange(asked: ClientRequest, signal: AbortSignal): Promise<ServerReply | ExchangeFailure> {
    // It may have aborted after the semaphore let this in.
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<ServerReply | ExchangeFailure>();
    const request = this.#begin(asked);
    let connected = false;
    let timer: NodeJS.Timeout | undefined;
    const giveUp = (thrown: unknown): void => {
      reject(thrown);
      request.destroy();
    };
    const fail = (kind: ExchangeFailure['kind'], error: unknown): void => {
      resolve({ kind, message: messageIn(error) });
      request.destroy();
    };
    const onAbort = (): void => giveUp(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    request.on('socket', (socket) => {
      if (!socket.connecting) connected = true;
      else socket.once('connect', () => (connected = true));
      const late = `no answer within ${asked.timeoutMs / 1000} s`;
      timer = setTimeout(() => fail(connected ? 'silent' : 'unsent', late), asked.timeoutMs);
    });
    request.on('error', (error) => fail(connected ? 'broken' : 'unsent', error));
    request.on('response', (response) => {
      readReply(response, nameOf(asked)).then(resolve, (thrown) =>
        thrown instanceof Refusal ? fail('broken', thrown) : giveUp(thrown),
      );
    });
    request.end(asked.body);
    return promise.finally(() => {
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
    });
  }

  #begin({ method, path, headers, body, repeatable = true }: ClientRequest): http.ClientRequest {
    const length = body === undefined ? {} : { 'content-length': String(body.byteLength) };
    return this.#request({
      ...this.#base,
      path: `${this.#base.path}/api/v1/${path}`,
      method,
      agent: repeatable && this.#agent,
      headers: { 'x-api-key': this.#settings.apiKey, 'user-agent': 'trainyard', ...headers, ...length },
    });
  }

  async #askUntilAnswered(request: ClientRequest, signal: AbortSignal): Promise<ServerReply> {
    const { repeatable = true, longPoll = false, patienceMs = this.#settings.patienceMs ?? PATIENCE_MS } = request;
    const name = nameOf(request);
    let until: number | undefined;
    for (let tries = 0; ; tries++) {
      const answer = await this.exchange(request, signal);
      if ('status' in answer && (isFinal(answer) || (request.isTrial && answer.status === 500))) return answer;
      const isSilent = 'kind' in answer && answer.kind === 'silent';
      if (longPoll && isSilent && (await this.#isAlive(request.timeoutMs, signal))) return NOT_YET;
      const found = this.#describe(answer, name);
      if (!repeatable && mayHaveArrived(answer)) {
        throw lost(`${found}; whether ${name} took effect cannot be known, and this server may do it again if it is asked again`);
      }
      this.#beginTrouble(request, `${found}; trying again for up to ${Math.round(patienceMs / 1000)} s`);
      // From when the server was last heard of by anyone: a request that takes the place of one that was given up does not begin anew.
      until ??= this.#silentSince! + patienceMs;
      const left = until - performance.now();
      const retryAfter = 'kind' in answer ? 0 : retryAfterMs(answer.retryAfter);
      if (left <= 0 || retryAfter > left) {
        if ('status' in answer && answer.status === 402) throw this.errors.ofStatus(answer, name);
        throw unreachable(found, retryAfter, patienceMs);
      }
      const backoff = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** tries) * (0.5 + Math.random() / 2);
      await pause(Math.min(Math.max(backoff, retryAfter), left), signal);
    }
  }

  #beginTrouble(request: ClientRequest, message: string): void {
    this.#silentSince ??= performance.now();
    if (this.#troubled.size === 0) {
      this.#troubledSince = performance.now();
      this.#settings.downtime?.begin();
      this.#settings.onTrouble?.(message);
    }
    this.#troubled.add(request);
  }

  /** The request was answered, or has given up. Trouble is over when no request is in it any more. */
  #endTrouble(request: ClientRequest, answered: boolean): void {
    if (answered) this.#silentSince = undefined;
    if (!this.#troubled.delete(request) || this.#troubled.size > 0) return;
    this.#settings.downtime?.end();
    const seconds = Math.round((performance.now() - this.#troubledSince) / 1000);
    if (answered) this.#settings.onTrouble?.(`the server answers again, after ${seconds} s`);
  }

  async #isAlive(mostMs: number, signal: AbortSignal): Promise<boolean> {
    const timeoutMs = Math.min(mostMs, HEALTH_TIMEOUT_MS);
    const answer = await this.exchange({ method: 'GET', path: 'healthz', pool: 'control', timeoutMs }, signal);
    return 'status' in answer && isFinal(answer);
  }

  #describe(answer: ServerReply | ExchangeFailure, name: string): string {
    if ('status' in answer) return this.errors.ofStatus(answer, name).message;
    return `the server of the policy at ${this.address} did not answer ${name}: ${answer.message}`;
  }
}

const nameOf = ({ name, path }: ClientRequest): string => name ?? path;

/** Throws a Refusal where the reply breaks off. */
async function readReply(response: http.IncomingMessage, name: string): Promise<ServerReply> {
  const { statusCode: status = 0, headers } = response;
  const body = await readBytes(response, REPLY_BYTES).catch((thrown: Refusal) => {
    if (thrown.row.code !== 'request_too_large') throw thrown;
    throw new TrainyardError('POLICY_GARBLED', `${name} got a reply of more than ${REPLY_BYTES} bytes`);
  });
  return { status, contentType: headers['content-type'] ?? '', retryAfter: headers['retry-after'], body };
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
function messageIn(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0) return messageIn(error.errors[0]);
  return messageOf(error) || String((error as NodeJS.ErrnoException).code ?? 'an error without a message');
}

function isFinal({ status }: ServerReply): boolean {
  return status !== 402 && status !== 429 && status < 500;
}

/** 402, 429 and 503 are said before anything is done. */
function mayHaveArrived(answer: ServerReply | ExchangeFailure): boolean {
  return 'kind' in answer ? answer.kind !== 'unsent' : answer.status >= 500 && answer.status !== 503;
}

function unreachable(found: string, afterMs: number, patienceMs: number): TrainyardError {
  const [wanted, most] = [Math.round(afterMs / 1000), Math.round(patienceMs / 1000)];
  const why =
    afterMs > patienceMs ? `it wants to be asked again in ${wanted} s, longer than is waited` : `given up after ${most} s`;
  return new TrainyardError('POLICY_UNREACHABLE', `${found}; ${why}`, {
    hint: 'check that the server runs and that TINKER_BASE_URL is its address',
  });
}

/** Milliseconds that a Retry-After header asks for: seconds, or a date. */
function retryAfterMs(header: string | undefined): number {
  if (header === undefined) return 0;
  const seconds = Number(header);
  const wait = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(wait) ? Math.max(0, wait) : 0;
}

/** The result of the work; CANCELLED where it fails after the signal has aborted. */
export async function orCancelled<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (thrown) {
    if (!signal?.aborted) throw thrown;
    throw new TrainyardError('CANCELLED', 'the request to the server of the policy was cancelled');
  }
}

/** Rejects with CANCELLED as soon as the signal aborts. */
export async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await orCancelled(signal, sleep(milliseconds, undefined, { signal }));
}

// ── replies that are no result, as errors: whose fault it is and what to do ─────────────────────────────────────────────────

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
  ofFailure({ error, category }: z.infer<typeof failedReply>, verb: string, code: ErrorCode): TrainyardError {
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
    const { detail, error, message } = isObject(value) ? value : {};
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
