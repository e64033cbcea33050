/**
 * Rollout server: runs a workflow for a controller that trains elsewhere. It accepts a rollout at once and reports the outcome by
 * callbacks. The server is a function (Request) → Response; `listen` serves it over HTTP. Callers authenticate with a bearer token, and the
 * URLs that they name are only reached under the rules of `outbound.ts`. Errors are `{"detail": …}`, as in FastAPI.
 */
import { deadlineSignal, orAborted } from '../../core/async.ts';
import { checkNames } from '../../core/describe.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { GATEWAY_LIMITS } from '../../gateway/wire-protocol.ts';
import { bearerOf, isLoopback, isSameSecret } from '../../http/guard.ts';
import { type HttpServerOptions, KeyedServer, type Listener, serve } from '../../http/http-server.ts';
import { type HttpReply, type HttpRequest, jsonReply, Router, readJson } from '../../http/message.ts';
import { type ErrorTable, failureOf, type Headers, refusals } from '../../http/refusal.ts';
import { PATIENCE, type Patience, Reporter } from './callbacks.ts';
import { type ExecutionBackend, type Fault, type ReadRequest, RequestFaults, readRollout, readSelector } from './execution.ts';
import { Outbound } from './outbound.ts';

export interface RolloutServerOptions {
  readonly backend: ExecutionBackend;
  /** Callers send it as `Authorization: Bearer …`. Required to bind to anything but loopback. */
  readonly token?: string | undefined;
  /** `host` or `host:port` that may be reached, even if private. Default: any public address, and this machine while bound to loopback. */
  readonly allowedHosts?: readonly string[] | undefined;
  readonly patience?: Partial<Patience>;
  /** Milliseconds that closing waits for running rollouts before it cancels them. Default 10,000. */
  readonly drainMs?: number;
  /** Receives warnings that do not end a rollout. Default: a process warning. */
  readonly warn?: (text: string) => void;
}

type ListenAddress = Pick<HttpServerOptions, 'host' | 'port'>;

interface Route {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  /** `body` is the parsed JSON of a POST; `id` is the path segment of that name. */
  reply(call: { readonly body: unknown; readonly id: string }): HttpReply | Promise<HttpReply>;
}

const DRAIN_MS = 10_000;
/** Time for cancelled rollouts to report that they were cancelled. */
const LAST_WORDS_MS = 2000;
const RETRY_LATER = { headers: { 'retry-after': '5' } };

const refusal = refusals({ rollout_under_way: 409, queue_full: 429, closing: 503 });
const ERRORS: ErrorTable = {
  rows: {
    REQUEST_INVALID: { status: 422, code: 'invalid_request' },
    REQUEST_CONFLICT: { status: 409, code: 'conflict' },
    SESSION_UNKNOWN: { status: 401, code: 'invalid_token' },
  },
  otherwise: { status: 500, code: 'internal_error' },
};

export function createRolloutServer(options: RolloutServerOptions): RolloutServer {
  return new RolloutServer(options);
}

interface Told {
  readonly status: number;
  readonly detail: string | readonly object[];
  readonly headers: Headers | undefined;
}

export class RolloutServer extends KeyedServer<Told> implements AsyncDisposable {
  readonly #options: RolloutServerOptions;
  readonly #outbound: Outbound;
  readonly #live = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();
  readonly #router: Router<Route>;
  readonly #warn: (text: string) => void;
  #bound: { readonly host: string; readonly listener: Listener } | undefined;
  #closed: Promise<void> | undefined;

  constructor(options: RolloutServerOptions) {
    super();
    checkNames(options, ['backend', 'token', 'allowedHosts', 'patience', 'drainMs', 'warn'], 'createRolloutServer');
    this.#options = options;
    const { backend, allowedHosts, warn = (text) => process.emitWarning(text, 'TrainyardWarning') } = options;
    this.#warn = warn;
    this.#outbound = new Outbound({
      allowedHosts,
      loopback: () => this.#bound !== undefined && isLoopback(this.#bound.host),
      ownPort: () => this.#bound && Number(new URL(this.#bound.listener.origin).port),
    });
    this.#router = new Router<Route>([
      { method: 'GET', path: '/health', reply: () => jsonReply(200, backend.health()) },
      { method: 'POST', path: '/rollout', reply: ({ body }) => this.#accept(readRollout(body)) },
      { method: 'GET', path: '/rollout/{id}/status', reply: ({ id }) => this.#status(id) },
      {
        method: 'POST',
        path: '/rollout/cancel',
        reply: ({ body }) => jsonReply(200, { dispositions: backend.cancel(readSelector(body)) }),
      },
    ]);
  }

  /** Starts the backend, then listens, by default on 127.0.0.1 and a free port. Throws USAGE. */
  async listen(address: ListenAddress = {}): Promise<Listener> {
    if (this.#bound !== undefined) throw new TrainyardError('USAGE', 'the rollout server listens already');
    await this.#options.backend.start();
    const listener = await serve(this, { ...address, secret: { name: 'token', value: this.#options.token } });
    this.#bound = { host: address.host ?? '127.0.0.1', listener };
    return listener;
  }

  protected failureOf(thrown: unknown): Told {
    const { status, message, hint, headers } = failureOf(thrown, ERRORS);
    if (thrown instanceof RequestFaults) {
      const detail = thrown.faults.map(({ field, message: msg }) => ({ loc: ['body', field], msg, type: 'value_error' }));
      return { status, detail, headers };
    }
    // Internal errors may contain what the caller must not see.
    if (status === 500) return { status, detail: 'Internal server error', headers };
    const detail = `${message.slice(0, 1000)}${hint === undefined ? '' : ` (${hint})`}`;
    return { status, detail, headers: status === 401 ? { 'www-authenticate': 'Bearer' } : headers };
  }

  protected replyTo({ status, detail, headers }: Told): HttpReply {
    return jsonReply(status, { detail }, headers);
  }

  /** Waits for running rollouts, then cancels them; nothing of theirs runs or is reported afterwards. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    await this.#closed;
  }

  protected async route(request: HttpRequest): Promise<HttpReply> {
    const { method, path } = request;
    if (path !== '/health') this.#authorize(request);
    const { route, segments } = this.#router.find(method, path);
    const body = route.method === 'POST' ? await readJson(request, GATEWAY_LIMITS) : undefined;
    return await route.reply({ body, id: segments['id'] ?? '' });
  }

  #authorize(request: HttpRequest): void {
    const { token } = this.#options;
    if (token === undefined) return;
    const given = bearerOf(request);
    if (isSameSecret(token, given)) return;
    throw new TrainyardError(
      'SESSION_UNKNOWN',
      given === undefined ? 'the request carries no token' : 'this is not the token',
      'send Authorization: Bearer <token>',
    );
  }

  async #accept(read: ReadRequest): Promise<HttpReply> {
    const { rolloutId } = read.request;
    await this.#checkUrls(read);
    // No await from here on, so the checks still hold when the rollout is accepted.
    if (this.#closed !== undefined) throw refusal('closing', 'the server is closing', RETRY_LATER);
    if (this.#live.has(rolloutId)) throw refusal('rollout_under_way', `rollout ${JSON.stringify(rolloutId)} is under way`);
    if (!this.#options.backend.hasCapacity()) {
      throw refusal('queue_full', 'rollout queue is full; retry later', RETRY_LATER);
    }
    const running = this.#run(read)
      .catch((thrown: unknown) => this.#warn(`rollout ${rolloutId}: its end could not be reported: ${messageOf(thrown)}`))
      .finally(() => this.#live.delete(rolloutId));
    this.#live.set(rolloutId, running);
    return jsonReply(202, read.isNamedHere ? { rollout_id: rolloutId } : {});
  }

  async #run({ request, callbacks }: ReadRequest): Promise<void> {
    const { rolloutId } = request;
    const warn = this.#warn;
    const fetch = this.#outbound.fetch as typeof globalThis.fetch;
    const patience = { ...PATIENCE, ...this.#options.patience };
    const reporter = new Reporter({ rolloutId, callbacks, fetch, patience, signal: this.#closing.signal, warn });
    try {
      const completed = reporter.completed.bind(reporter);
      await this.#options.backend.execute(request, { completed, graded: reporter.graded.bind(reporter), fetch, warn });
    } catch (thrown) {
      warn(`rollout ${rolloutId}: the backend failed: ${thrown instanceof Error ? thrown.stack : String(thrown)}`);
      await reporter.crashed();
    }
  }

  async #checkUrls({ request, callbacks }: ReadRequest): Promise<void> {
    const urls = {
      chat_completions_url: request.chatCompletionsUrl,
      completion_callback_url: callbacks.completionUrl,
      grader_callback_url: callbacks.graderUrl,
    };
    const checked = Object.entries(urls).map(async ([field, url]): Promise<readonly Fault[]> => {
      const message = url === null ? undefined : await this.#outbound.faultNow(url);
      return message === undefined ? [] : [{ field, message }];
    });
    const faults = (await Promise.all(checked)).flat();
    if (faults.length > 0) throw new RequestFaults(faults);
  }

  #status(rolloutId: string): HttpReply {
    const { status, reward, errMessage } = this.#options.backend.status(rolloutId);
    return jsonReply(200, { rollout_id: rolloutId, status, reward, err_message: errMessage });
  }

  async #close(): Promise<void> {
    const { backend, drainMs = DRAIN_MS } = this.#options;
    await this.#settled(drainMs);
    backend.cancel({ all: true });
    await this.#settled(LAST_WORDS_MS);
    this.#closing.abort(new TrainyardError('CANCELLED', 'the rollout server was closed'));
    await this.#bound?.listener[Symbol.asyncDispose]();
    this.#outbound.close();
    await backend[Symbol.asyncDispose]();
  }

  async #settled(milliseconds: number): Promise<void> {
    using late = deadlineSignal(milliseconds, () => undefined);
    await orAborted(Promise.all(this.#live.values()), late.signal).catch(() => undefined);
  }
}
