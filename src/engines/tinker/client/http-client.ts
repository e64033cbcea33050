/**
 * HTTP client for a Tinker server: time and size limits, retries, and the mapping of failures to errors. Few sockets carry many requests;
 * long polls have their own pools, so a thousand pending samples never delay a submission, a heartbeat or a training result. It follows no
 * redirects. While the server is unreachable, busy (429), unpaid (402) or failing (5xx), requests are retried with backoff of up to 30 s,
 * for a limited time; callers judge all other responses. A request that may have arrived is resent only if that is harmless. Otherwise its
 * effect is unknown, and what it was meant for counts as lost.
 */
import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import type { z } from 'zod';
import { type Downtime, Semaphore, yieldToEventLoop } from '../../../core/async.ts';
import type { ErrorCode } from '../../../core/error-codes.ts';
import { messageOf, TrainyardError } from '../../../core/errors.ts';
import { isObject, parsedJson } from '../../../core/json.ts';
import { readBytes, retryAfterMs } from '../../../http/message.ts';
import { Refusal } from '../../../http/refusal.ts';
import type { failedReply } from '../wire/tinker-messages.ts';

/** Across all pools; below the limit of 256 open files on some systems. */
const MOST_SOCKETS = 220;
/** Idle sockets close before servers close them (5 s at the earliest), or a request could be lost on a dying socket. */
const IDLE_MS = 3000;
const REPLY_BYTES = 64 * 1024 * 1024;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 30_000;
const HEALTH_TIMEOUT_MS = 10_000;
const PATIENCE_MS = 120_000;

export interface ConnectionSettings {
  readonly baseURL: string;
  readonly apiKey: string;
  /** Called once when trouble begins and once when it ends, however many requests it affects. */
  readonly onTrouble?: (message: string) => void;
  readonly downtime?: Downtime | undefined;
  /** How long to retry while the server is unreachable or busy. */
  readonly patienceMs?: number;
  readonly signal?: AbortSignal | undefined;
}

interface ClientRequest {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Below /api/v1/. */
  readonly path: string;
  /** Name in error messages. Default: the path. */
  readonly name?: string;
  readonly pool: 'submit' | 'sample' | 'train' | 'control';
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array;
  /** False if a second arrival would have a second effect. Such a request gets its own socket, which the server is not about to close. */
  readonly repeatable?: boolean;
  /** Default: that of the settings. */
  readonly patienceMs?: number | undefined;
  /** Some servers hold a poll for minutes: a timeout becomes status 408 as long as the server is alive. */
  readonly longPoll?: boolean;
  readonly isTrial?: boolean | undefined;
}

export interface ServerReply {
  readonly status: number;
  readonly contentType: string;
  readonly retryAfter: string | undefined;
  readonly body: Buffer;
}

/** `unsent`: the server never got the request. `broken`: it may have. `silent`: it got it but did not answer in time. */
interface ExchangeFailure {
  readonly kind: 'unsent' | 'broken' | 'silent';
  readonly message: string;
}

const NOT_YET: ServerReply = { status: 408, contentType: '', retryAfter: undefined, body: Buffer.alloc(0) };

export class HttpClient {
  /** The base URL without credentials, query and trailing slash, for display and records. */
  readonly address: string;
  readonly errors: ReplyErrors;
  readonly #settings: ConnectionSettings;
  readonly #request: typeof http.request;
  /** Parsed once: parsing a URL costs more than sending a small request. */
  readonly #base: { readonly hostname: string; readonly port: string; readonly path: string };
  readonly #agent: http.Agent;
  /** Requests wait for a socket before they are created: creating a thousand at once would block the event loop. */
  readonly #sockets = {
    submit: new Semaphore(32),
    sample: new Semaphore(160),
    train: new Semaphore(24),
    control: new Semaphore(4),
  };
  /** Requests that failed and have not been answered since. */
  readonly #troubled = new Set<ClientRequest>();
  #troubledSince = 0;
  /** Time of the first failure since the server last answered any request. */
  #silentSince: number | undefined;

  /** Throws USAGE if the base URL or the key is invalid. */
  constructor(settings: ConnectionSettings) {
    const { protocol, origin, hostname, port, pathname } = parseBase(settings.baseURL);
    const path = pathname.replace(/\/+$/, '');
    if (!/^[\x21-\x7e]+$/.test(settings.apiKey)) {
      throw new TrainyardError(
        'USAGE',
        'the API key is empty or holds characters that no header can carry',
        'set TINKER_API_KEY',
      );
    }
    const { Agent, request } = protocol === 'https:' ? https : http;
    this.address = `${origin}${path}`;
    this.errors = new ReplyErrors(settings.apiKey, this.address);
    this.#settings = settings;
    this.#request = request;
    this.#base = { hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port, path };
    this.#agent = new Agent({ keepAlive: true, maxSockets: MOST_SOCKETS, timeout: IDLE_MS });
  }

  /** Retries until the server answers. Throws POLICY_UNREACHABLE, POLICY_LOST, and what `exchange` throws. */
  async ask(request: ClientRequest, signal: AbortSignal): Promise<ServerReply> {
    let reply: ServerReply | undefined;
    try {
      reply = await this.#askUntilAnswered(request, signal);
      return reply;
    } finally {
      this.#endTrouble(request, reply !== undefined);
    }
  }

  /** A single attempt, which returns failures as values. Throws POLICY_GARBLED for an oversized response, and CANCELLED. */
  async exchange(request: ClientRequest, signal: AbortSignal): Promise<ServerReply | ExchangeFailure> {
    const answer = await orCancelled(
      signal,
      this.#sockets[request.pool].run(() => this.#exchange(request, signal), signal),
    );
    // A hundred responses that arrive together must not block the event loop.
    await yieldToEventLoop();
    return answer;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #exchange(asked: ClientRequest, signal: AbortSignal): Promise<ServerReply | ExchangeFailure> {
    // The signal may have aborted while this waited for the semaphore.
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<ServerReply | ExchangeFailure>();
    const request = this.#begin(asked);
    let connected = false;
    let timer: NodeJS.Timeout | undefined;
    const giveUp = (thrown: unknown) => {
      reject(thrown);
      request.destroy();
    };
    const fail = (kind: ExchangeFailure['kind'], error: unknown) => {
      resolve({ kind, message: messageIn(error) });
      request.destroy();
    };
    const onAbort = () => giveUp(signal.reason);
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
      // Counts from the last answer to any request, so a request that replaces an abandoned one does not restart the clock.
      until ??= this.#silentSince! + patienceMs;
      const left = until - performance.now();
      const retryAfter = 'kind' in answer ? 0 : retryAfterMs(answer.retryAfter ?? '');
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

  /** Called when a request was answered or given up. Trouble ends when no request is affected any more. */
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

const nameOf = ({ name, path }: ClientRequest) => name ?? path;

/** Throws a Refusal if the response breaks off. */
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
    throw new TrainyardError(
      'USAGE',
      'the base URL of the Tinker server is not an http(s) URL without credentials',
      'give an address such as http://127.0.0.1:8000, for example in TINKER_BASE_URL',
    );
  }
  return url;
}

/** A host name with several addresses fails with one error per address. */
function messageIn(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0) return messageIn(error.errors[0]);
  return messageOf(error) || String((error as NodeJS.ErrnoException).code ?? 'an error without a message');
}

function isFinal({ status }: ServerReply): boolean {
  return status !== 402 && status !== 429 && status < 500;
}

/** Servers send 402, 429 and 503 before doing anything. */
function mayHaveArrived(answer: ServerReply | ExchangeFailure): boolean {
  return 'kind' in answer ? answer.kind !== 'unsent' : answer.status >= 500 && answer.status !== 503;
}

function unreachable(found: string, afterMs: number, patienceMs: number): TrainyardError {
  const wanted = Math.round(afterMs / 1000);
  const most = Math.round(patienceMs / 1000);
  const why =
    afterMs > patienceMs ? `it wants to be asked again in ${wanted} s, longer than is waited` : `given up after ${most} s`;
  return new TrainyardError(
    'POLICY_UNREACHABLE',
    `${found}; ${why}`,
    'check that the server runs and that TINKER_BASE_URL is its address',
  );
}

/** Replaces any error by CANCELLED once the signal has aborted. */
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

/** Some servers have no status for a lost model and only say so in the message. */
const LOST = /\bmodel\b.{0,120}\bnot (loaded|found)\b|\bunknown (model|session|sampling session)\b/i;
/** A match of this many leading characters of the key is no coincidence. */
const KEY_START = 12;

/** Turns failed responses into errors that quote the server, shortened and printable. Security: never shows the API key, even if echoed. */
export class ReplyErrors {
  readonly #apiKey: string;
  readonly #address: string;

  constructor(apiKey: string, address: string) {
    this.#apiKey = apiKey;
    this.#address = address;
  }

  /** For statuses of 300 and above. */
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

  ofFailure({ error, category }: z.infer<typeof failedReply>, verb: string, code: ErrorCode): TrainyardError {
    const words = this.quote(error, 500);
    const found = `${verb} failed at the server: ${words}`;
    if (LOST.test(words)) return lost(found, { category });
    return new TrainyardError(category === 'user' ? 'POLICY_REFUSED' : code, found, { details: { category } });
  }

  garbled({ status, contentType, body }: ServerReply, verb: string, why = 'not JSON'): TrainyardError {
    const start = this.quote(body.subarray(0, 400).toString('utf8'), 100);
    const kind = contentType === '' ? 'no content-type' : this.quote(contentType, 60);
    return new TrainyardError(
      'POLICY_GARBLED',
      `the reply to ${verb} (${status}, ${kind}) is ${why}; it begins: ${start}`,
      `check that ${this.#address} is a Tinker server`,
    );
  }

  quote(text: string, length: number): string {
    const plain = this.#withoutKey(text)
      .replace(/[\p{C}\s]+/gu, ' ')
      .trim();
    return plain.length > length ? `${plain.slice(0, length)}…` : plain;
  }

  /** The key may appear JSON-escaped or cut off. In the latter case the remaining part is removed too. */
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

/** Undefined if the body is not JSON. */
export function jsonIn(body: Buffer): unknown {
  return parsedJson(body.toString());
}

/** `details`: what the server reported. Without them, the effect of the request is unknown. */
export function lost(found: string, details?: Readonly<Record<string, string | number>>): TrainyardError {
  return new TrainyardError('POLICY_LOST', found, {
    hint: 'go on from what was saved last: the server has dropped the rest, or cannot say what became of it',
    details,
  });
}

export function isLost(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST';
}
