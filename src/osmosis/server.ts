/**
 * A rollout server: runs a workflow for whoever trains somewhere else. A rollout is asked for and taken at once; how it went is told by
 * callbacks. As a function (Request) → Response that never listens by itself, and over HTTP on demand.
 *
 * Callers are known by a bearer token. Whatever they name to call back, and the policy, is only reached by the rules of `outbound.ts`.
 */
import { hash, timingSafeEqual } from 'node:crypto';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { GATEWAY_LIMITS } from '../gateway/limits.ts';
import { isLoopback, WrongKeys } from '../http/guard.ts';
import type { Listener } from '../http/http-server.ts';
import { fetchWith, type HttpReply, type HttpRequest, jsonReply, parseJson, readText } from '../http/message.ts';
import { httpRefusal } from '../http/refusal.ts';
import { PATIENCE, type Patience, Reporter } from './callbacks.ts';
import type { ExecutionBackend } from './execution.ts';
import { type ListenAddress, listen } from './listener.ts';
import { Outbound } from './outbound.ts';
import { Denial, type Fault, type Reply, RequestFaults, replyOf } from './refusals.ts';
import { type ReadRequest, readRollout, readSelector } from './wire.ts';

export interface RolloutServerOptions {
  readonly backend: ExecutionBackend;
  /** Callers send it as `Authorization: Bearer …`. Anything but loopback is only bound with one. */
  readonly token?: string | undefined;
  /**
   * `host` or `host:port` of controllers and policies: these and no others, wherever they are. Absent: whatever has a public address, and
   * this machine while the server is bound to loopback.
   */
  readonly allowedHosts?: readonly string[] | undefined;
  /** How often and how long a callback is tried. */
  readonly patience?: Partial<Patience>;
  /** Milliseconds for which closing waits for rollouts under way. Default 10,000. */
  readonly drainMs?: number;
  /** What a person should know and what ends nothing. Default: a warning of the process. */
  readonly warn?: (text: string) => void;
}

const DRAIN_MS = 10_000;
/** For what was cancelled to say so. */
const LAST_WORDS_MS = 2000;
const RETRY_AFTER_SEC = 5;
const STATUS_PATH = /^\/rollout\/([^/]+)\/status$/;
const clock = { now: Date.now };

export function createRolloutServer(options: RolloutServerOptions): RolloutServer {
  return new RolloutServer(options);
}

export class RolloutServer implements AsyncDisposable {
  readonly #options: RolloutServerOptions;
  readonly #outbound: Outbound;
  readonly #wrongKeys = new WrongKeys(clock);
  readonly #live = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();
  readonly #listeners = new Set<Listener>();
  #bound: { readonly host: string; readonly port: number } | undefined;
  #closed: Promise<void> | undefined;

  constructor(options: RolloutServerOptions) {
    this.#options = options;
    this.#outbound = new Outbound({
      allowedHosts: options.allowedHosts,
      loopback: () => this.#bound !== undefined && isLoopback(this.#bound.host),
      ownPort: () => this.#bound?.port,
    });
  }

  /** The server as a function, for whoever has a listener of their own. */
  readonly fetch = fetchWith((request) => this.answer(request));

  /** Starts the backend, then listens; 127.0.0.1 and a free port unless given. Throws USAGE. */
  async listen(address: ListenAddress = {}): Promise<Listener> {
    if (this.#bound !== undefined) throw new TrainyardError('USAGE', 'the rollout server listens already');
    await this.#options.backend.start();
    const listener = await listen(this, address, this.#options.token);
    this.#bound = { host: address.host ?? '127.0.0.1', port: Number(new URL(listener.origin).port) };
    this.#listeners.add(listener);
    return listener;
  }

  /** Never throws. */
  async answer(call: HttpRequest): Promise<HttpReply> {
    try {
      const { status, body, headers } = await this.#route(call);
      return jsonReply(status, body, headers);
    } catch (thrown) {
      return this.refuse(this.#wrongKeys.count(thrown, call.address));
    }
  }

  refuse(thrown: unknown): HttpReply {
    const { status, body, headers } = replyOf(thrown);
    return jsonReply(status, body, headers);
  }

  /** Waits for rollouts under way, then cancels them; afterwards nothing of theirs runs on or is told any more. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    await this.#closed;
  }

  async #route(call: HttpRequest): Promise<Reply> {
    const { method, path } = call;
    if (path === '/health') return allow(method, 'GET') ?? { status: 200, body: this.#options.backend.health() };
    this.#authorize(call);
    if (path === '/rollout')
      return (
        allow(method, 'POST') ?? (await this.#take(parseJson(await readText(call, GATEWAY_LIMITS.bodyBytes), GATEWAY_LIMITS)))
      );
    if (path === '/rollout/cancel')
      return allow(method, 'POST') ?? this.#cancel(parseJson(await readText(call, GATEWAY_LIMITS.bodyBytes), GATEWAY_LIMITS));
    const [, id] = STATUS_PATH.exec(path) ?? [];
    if (id !== undefined) return allow(method, 'GET') ?? this.#status(decoded(id));
    throw new Denial(404, `no route ${method} ${path.slice(0, 100)}`);
  }

  #authorize({ header }: HttpRequest): void {
    const { token } = this.#options;
    if (token === undefined) return;
    const given = /^Bearer +(\S+)$/i.exec(header('authorization')?.trim() ?? '')?.[1];
    if (given !== undefined && timingSafeEqual(hash('sha256', given, 'buffer'), hash('sha256', token, 'buffer'))) return;
    throw new TrainyardError('SESSION_UNKNOWN', given === undefined ? 'the request carries no token' : 'this is not the token', {
      hint: 'send Authorization: Bearer <token>',
    });
  }

  async #take(body: unknown): Promise<Reply> {
    const read = readRollout(body);
    const { rolloutId } = read.request;
    await this.#checkUrls(read);
    // From here on nothing waits: what was checked still holds when the rollout is taken.
    if (this.#closed !== undefined) throw new Denial(503, 'the server is closing', { 'retry-after': String(RETRY_AFTER_SEC) });
    if (this.#live.has(rolloutId)) throw new Denial(409, `rollout ${JSON.stringify(rolloutId)} is under way`);
    if (!this.#options.backend.hasCapacity()) {
      throw new Denial(429, 'rollout queue is full; retry later', { 'retry-after': String(RETRY_AFTER_SEC) });
    }
    const running = this.#run(read)
      .catch((thrown: unknown) => this.#warn(`rollout ${rolloutId}: its end could not be told: ${messageOf(thrown)}`))
      .finally(() => this.#live.delete(rolloutId));
    this.#live.set(rolloutId, running);
    return { status: 202, body: read.isNamedHere ? { rollout_id: rolloutId } : {} };
  }

  async #run({ request, callbacks }: ReadRequest): Promise<void> {
    const warn = (text: string): void => this.#warn(text);
    const fetch = this.#outbound.fetch as typeof globalThis.fetch;
    const { signal } = this.#closing;
    const patience = { ...PATIENCE, ...this.#options.patience };
    const reporter = new Reporter({ rolloutId: request.rolloutId, callbacks, fetch, patience, signal, warn });
    try {
      await this.#options.backend.execute(request, {
        completed: (completion) => reporter.completed(completion),
        graded: (grading) => reporter.graded(grading),
        fetch,
        warn,
      });
    } catch (thrown) {
      this.#warn(`rollout ${request.rolloutId}: the backend failed: ${thrown instanceof Error ? thrown.stack : String(thrown)}`);
      await reporter.crashed();
    }
  }

  async #checkUrls({ request, callbacks }: ReadRequest): Promise<void> {
    const urls: readonly (readonly [string, string | null])[] = [
      ['chat_completions_url', request.chatCompletionsUrl],
      ['completion_callback_url', callbacks.completionUrl],
      ['grader_callback_url', callbacks.graderUrl],
    ];
    const faults = await Promise.all(
      urls.map(async ([field, url]): Promise<readonly Fault[]> => {
        const message = url === null ? undefined : await this.#outbound.faultNow(url);
        return message === undefined ? [] : [{ field, message }];
      }),
    );
    if (faults.flat().length > 0) throw new RequestFaults(faults.flat());
  }

  #status(rolloutId: string): Reply {
    const { status, reward, errMessage } = this.#options.backend.status(rolloutId);
    return { status: 200, body: { rollout_id: rolloutId, status, reward, err_message: errMessage } };
  }

  #cancel(body: unknown): Reply {
    return { status: 200, body: { dispositions: this.#options.backend.cancel(readSelector(body)) } };
  }

  async #close(): Promise<void> {
    await this.#settled(this.#options.drainMs ?? DRAIN_MS);
    this.#options.backend.cancel({ all: true });
    await this.#settled(LAST_WORDS_MS);
    this.#closing.abort(new TrainyardError('CANCELLED', 'the rollout server was closed'));
    for (const listener of this.#listeners) await listener[Symbol.asyncDispose]();
    this.#outbound.close();
    await this.#options.backend[Symbol.asyncDispose]();
  }

  /** When all that is under way has ended, or the time is over. */
  async #settled(milliseconds: number): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, milliseconds);
    await Promise.race([Promise.all(this.#live.values()), late]);
    clearTimeout(timer);
  }

  #warn(text: string): void {
    if (this.#options.warn === undefined) process.emitWarning(text, 'TrainyardWarning');
    else this.#options.warn(text);
  }
}

/** Undefined where the method is the right one. */
function allow(method: string, expected: string): undefined {
  if (method === expected) return undefined;
  throw httpRefusal('method_not_allowed', `this path takes ${expected}, not ${method}`, { headers: { allow: expected } });
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    throw new Denial(422, 'the path is not percent-encoded UTF-8');
  }
}
