/**
 * The door to the policy: an ordinary OpenAI- and Anthropic-compatible server as a function (Request) → Promise<Response>.
 *
 * Each call is answered from the engine's tokens and recorded as a Turn with exactly those tokens, whatever dialect it came in, whether
 * the answer is one JSON body or a stream of events. `ctx.model().fetch` and the HTTP listener call the same function. The gateway
 * knows nothing about rewards.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest } from 'node:http';
import { currentRollout } from '../core/context.ts';
import type { Clock, GenerateRequest, ModelHandle, Session, SessionHost, SessionSpec } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Engine } from '../core/policy.ts';
import { WrongKeys } from '../http/guard.ts';
import { type Listener, serve, type Timeouts } from '../http/http-server.ts';
import { fetchWith, type HttpReply, type HttpRequest, jsonReply, parseJson, readText } from '../http/message.ts';
import type { Failure, Refusal } from '../http/refusal.ts';
import { decoded, routeFor } from '../http/router.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { listSessions, openSession, type SessionDefaults, sealSession, showSession } from './control.ts';
import { chat } from './dialects/chat.ts';
import type { Dialect } from './dialects/dialect.ts';
import { anthropicModels, messages } from './dialects/messages.ts';
import { responses } from './dialects/responses.ts';
import { authorize, seatOf } from './identity.ts';
import { type Grant, Keyring } from './keys.ts';
import { ask, countTokens } from './model-call.ts';
import { type Generated, type GenerateParts, generate, modelHandle } from './model-handle.ts';
import { type LiveSession, SessionTable, sealed } from './sessions.ts';
import {
  type Capability,
  GATEWAY_LIMITS,
  gatewayFailure,
  type MatchedPath,
  matchPath,
  openAIError,
  type Route,
  refused,
} from './wire-protocol.ts';

export interface GatewayOptions {
  readonly engine: Engine;
  readonly renderer: Renderer;
  /** Reported as the model's name. */
  readonly modelName: string;
  readonly clock?: Clock;
  /** Until it resolves, model calls are answered 503; without it the engine is ready. */
  readonly ready?: Promise<unknown>;
  /** After this long without a call a session is sealed; one hour. */
  readonly idleMs?: number;
  /** Without them no session is opened over HTTP. */
  readonly sessionDefaults?: SessionDefaults;
  /** Told of every call that is answered with an error. */
  readonly onFailure?: (failure: Failure, path: string) => void;
}

const IDLE_MS = 3_600_000;
const ROUTES_HINT = 'a base URL ends in /r/<rollout>/v1; clients add chat/completions, responses or messages to it';
/** By route. */
export const DIALECTS: Readonly<Record<string, Dialect>> = { 'chat/completions': chat, responses, messages };

/** Routes of another protocol on the same listener; undefined for a path that it does not know either. What it throws is the reply. */
export type OtherRoutes = (call: HttpRequest) => Promise<HttpReply | undefined>;

/** A question asked on behalf of a rollout, as one of its seats, in one of its conversations. */
export type SeatedRequest = GenerateRequest & { readonly role?: string; readonly thread?: string };

export class Gateway implements SessionHost {
  readonly #options: GatewayOptions & { readonly clock: Clock };
  readonly #sessions: SessionTable;
  readonly #keyring = new Keyring();
  readonly #wrongKeys: WrongKeys;
  readonly #readiness: Readiness;
  readonly #others: OtherRoutes[] = [];
  /** Origin of the listener; until one listens, base URLs work in process only. */
  origin = 'http://trainyard.invalid';

  constructor(options: GatewayOptions) {
    this.#options = { clock: { now: Date.now }, ...options };
    const { clock, idleMs = IDLE_MS, ready } = this.#options;
    this.#sessions = new SessionTable({ clock, idleMs, handle: (session, role) => this.#modelHandle(session, role) });
    this.#wrongKeys = new WrongKeys(clock);
    this.#readiness = new Readiness(ready);
  }

  /** What it serves, for routes of other protocols. */
  get policy(): Pick<GatewayOptions, 'engine' | 'renderer' | 'modelName'> {
    return this.#options;
  }

  get openSessions(): number {
    return this.#sessions.size;
  }

  open(spec: SessionSpec): Session {
    return this.#sessions.open(spec);
  }

  /** The session of a rollout, while it is open. */
  session(rolloutId: string): LiveSession | undefined {
    return this.#sessions.get(rolloutId);
  }

  /** Whether there was one, as far as is remembered. */
  hasEnded(rolloutId: string): boolean {
    return this.#sessions.hasEnded(rolloutId);
  }

  /** A session whose owner is outside this process: it also ends when it is idle, or its deadline has come. */
  openRemote(spec: SessionSpec): LiveSession {
    return this.#sessions.open(spec, true);
  }

  /** One model call without a client, as `ModelHandle.generate`. */
  async generate(rolloutId: string, { role = 'default', thread = role, ...request }: SeatedRequest): Promise<Generated> {
    const session = this.#sessions.get(rolloutId);
    if (session === undefined) throw this.hasEnded(rolloutId) ? sealed(rolloutId) : notOpen(rolloutId);
    return await generate(this.#generateParts(), { session, role, thread }, request as GenerateRequest);
  }

  /**
   * Asks `routes` for every path that is none of the gateway's. They may look at who calls with `authorize`, and hand a call on, under a
   * path of the gateway's, to `answer`.
   */
  mount(routes: OtherRoutes): void {
    this.#others.push(routes);
  }

  /** What the call's key stands for; throws where it is none, or may not do what takes one of these. */
  authorize(call: Pick<HttpRequest, 'header'>, who: readonly Capability[]): Grant {
    return authorize(this.#keyring, call, who);
  }

  /** Ends every session. */
  sealAll(): void {
    for (const session of [...this.#sessions.all()]) session.seal();
  }

  /** A key that dies with its rollout; without one it is good for all of them, and as long as the gateway lives. */
  key(capability: Capability, { rollout, role }: Pick<Grant, 'rollout' | 'role'> = {}): string {
    const session = rollout === undefined ? undefined : this.#sessions.get(rollout);
    if (rollout !== undefined && session === undefined) throw notOpen(rollout);
    return this.#keyring.make({ capability, rollout, role, session: session?.number });
  }

  /** A secret that someone else chose and that is as good as a key of this capability. */
  acceptToken(token: string, capability: Capability): void {
    this.#keyring.accept(token, { capability });
  }

  /** As the global `fetch`, for the gateway's own URLs. */
  readonly fetch = fetchWith((request) => this.answer(request));

  /** Answers one call. Never throws: a failure is an error reply in the dialect's shape. */
  async answer(call: HttpRequest): Promise<HttpReply> {
    const match = matchPath(call.path);
    try {
      if (match === undefined) return await this.#serveOther(call);
      return await this.#serve(routeFor(match, call.method, call.path), match, call);
    } catch (thrown) {
      return this.#failed(gatewayFailure(this.#wrongKeys.count(thrown, call.address)), match, call.path, call.header);
    }
  }

  /** The reply to a call that did not even get here. */
  refuse(refusal: Refusal, header: HttpRequest['header']): HttpReply {
    return this.#failed(gatewayFailure(refusal), undefined, '/', header);
  }

  async #serve(route: Route, match: MatchedPath, call: HttpRequest): Promise<HttpReply> {
    const { does, who } = route;
    if (does === 'health') return jsonReply(200, { status: 'ok' });
    if (does === 'ready') return this.#ready();
    const grant = authorize(this.#keyring, call, who);
    if (does === 'ask' || does === 'count_tokens') return await this.#callModel(route, match, grant, call);
    if (does === 'models' || does === 'model') {
      if (grant.rollout !== undefined || match.rollout !== undefined) seatOf(this.#sessions, grant, match.rollout, call);
      const names = [this.#options.modelName, Boolean(call.header('anthropic-version'))] as const;
      return jsonReply(200, does === 'models' ? modelList(...names) : modelNamed(decoded(match.segments['id']!), ...names));
    }
    if (does === 'list') return jsonReply(200, listSessions(this.#sessions));
    if (does === 'show') return jsonReply(200, showSession(this.#sessions, match.segments['rollout']!));
    if (does === 'seal') return jsonReply(200, sealSession(this.#sessions, match.segments['rollout']!));
    const text = await readText(call, GATEWAY_LIMITS.bodyBytes);
    return jsonReply(
      201,
      openSession(this.#sessions, this.#options.sessionDefaults, text === '' ? {} : parseJson(text, GATEWAY_LIMITS)),
    );
  }

  async #serveOther(call: HttpRequest): Promise<HttpReply> {
    for (const routes of this.#others) {
      const reply = await routes(call);
      if (reply !== undefined) return reply;
    }
    throw refused('not_found', `no route ${said(call)}`, { hint: ROUTES_HINT });
  }

  async #callModel({ path, does }: Route, match: MatchedPath, grant: Grant, call: HttpRequest): Promise<HttpReply> {
    const seat = seatOf(this.#sessions, grant, match.rollout, call);
    const dialect = dialectOf(path);
    if (dialect === undefined) throw refused('not_found', `no route ${said(call)}`);
    this.#readiness.check();
    if (does === 'count_tokens') return countTokens(this.#options, seat, await readText(call, GATEWAY_LIMITS.bodyBytes), dialect);
    return await seat.session.calling(seat, call.signal, async (modelCall) =>
      ask(this.#options, seat, call, await readText(call, GATEWAY_LIMITS.bodyBytes), dialect, modelCall),
    );
  }

  #ready(): HttpReply {
    this.#readiness.check();
    return jsonReply(200, { status: 'ready', policyVersion: this.#options.engine.policyVersion });
  }

  #failed(failure: Failure, match: MatchedPath | undefined, path: string, header: HttpRequest['header']): HttpReply {
    this.#options.onFailure?.(failure, path);
    const own = dialectOf(match?.routes[0]?.path ?? '') ?? (header('anthropic-version') ? messages : undefined);
    return jsonReply(failure.status, (own?.failure ?? openAIError)(failure), failure.headers);
  }

  #generateParts(): GenerateParts {
    return { ...this.#options, checkReady: () => this.#readiness.check() };
  }

  #modelHandle(session: LiveSession, role: string): ModelHandle {
    const { rolloutId: rollout, number } = session;
    const apiKey = this.#keyring.make({ capability: 'agent', rollout, role, session: number });
    const baseURL = `${this.origin}/r/${encodeURIComponent(rollout)}/v1`;
    const door = { name: this.#options.modelName, baseURL, apiKey, fetch: this.fetch as typeof globalThis.fetch };
    return modelHandle({ ...this.#generateParts(), ...door }, { session, role, thread: role });
  }
}

function notOpen(rollout: string): TrainyardError {
  return new TrainyardError('SESSION_UNKNOWN', `rollout ${JSON.stringify(rollout)} is not open`, {
    hint: 'open its session first',
  });
}

function said({ method, path }: HttpRequest): string {
  return `${method} ${path.slice(0, 200)}`;
}

function dialectOf(path: string): Dialect | undefined {
  return path === 'messages/count_tokens' ? messages : DIALECTS[path];
}

// From models.ts: The one model there is, as OpenAI's and Anthropic's clients ask for it. Anthropic's always name the version of their API.

export function modelList(name: string, isAnthropic: boolean): object {
  return isAnthropic ? anthropicModels(name) : { object: 'list', data: [openAIModel(name)] };
}

export function modelNamed(wanted: string, name: string, isAnthropic: boolean): object {
  if (wanted !== name) throw refused('not_found', `no model ${JSON.stringify(wanted.slice(0, 100))}`);
  if (!isAnthropic) return openAIModel(name);
  return (anthropicModels(name) as { data: [object] }).data[0];
}

function openAIModel(id: string): object {
  return { id, object: 'model', created: 0, owned_by: 'trainyard' };
}

// From readiness.ts: Whether model calls can be answered: not before the engine has started, and never if it did not.

export class Readiness {
  #why: string | undefined;

  /** Without something to wait for it is there from the start. */
  constructor(ready: Promise<unknown> | undefined) {
    if (ready === undefined) return;
    this.#why = 'the engine is starting';
    ready.then(
      () => {
        this.#why = undefined;
      },
      (thrown) => {
        this.#why = `the engine did not start: ${messageOf(thrown)}`;
      },
    );
  }

  /** Throws a Refusal with 503. */
  check(): void {
    if (this.#why !== undefined) throw refused('not_ready', this.#why, { headers: { 'retry-after': '1' } });
  }
}

// From listener.ts: The gateway over HTTP: on the loopback interface, unless whoever binds it elsewhere brings a token.

export type { Listener };

export interface ListenOptions {
  /** 127.0.0.1 unless given. */
  readonly host?: string;
  readonly port?: number;
  /** As good as an admin key. Anything but loopback is only bound with one. */
  readonly token?: string;
  readonly timeouts?: Partial<Timeouts>;
}

/** Listens, and makes the gateway's base URLs point there. */
export async function listen(gateway: Gateway, { token, ...options }: ListenOptions = {}): Promise<Listener> {
  const listener = await serve(gateway, { ...options, secret: { name: 'token', value: token } });
  if (token !== undefined) gateway.acceptToken(token, 'admin');
  gateway.origin = listener.origin;
  const naming = nameCallers(gateway, listener.origin);
  const close = async (): Promise<void> => {
    naming[Symbol.dispose]();
    await listener[Symbol.asyncDispose]();
  };
  return { origin: listener.origin, [Symbol.asyncDispose]: close };
}

// From name-callers.ts: Requests that code of a rollout makes, in this process, to this gateway's own listener say whose code made them, in `x-rollout-id`. A client that
// was made with one rollout's key and is used by another's code contradicts itself then and is refused: its turns would be trained as the
// wrong rollout's. Node tells of every request before it is sent, in the context of whoever makes it; clients of other processes say nothing.

/** What `fetch` publishes. */
interface FetchRequest {
  readonly origin: string;
  readonly headers: unknown;
  addHeader(name: string, value: string): void;
}

const NAME = 'x-rollout-id';

export function nameCallers(gateway: Gateway, origin: string): Disposable {
  const caller = (): string | undefined => {
    const rolloutId = currentRollout()?.rolloutId;
    return rolloutId !== undefined && gateway.session(rolloutId) !== undefined ? rolloutId : undefined;
  };
  const byFetch = (message: unknown): void => {
    const { request } = message as { readonly request: FetchRequest };
    const rolloutId = request.origin === origin ? caller() : undefined;
    if (rolloutId !== undefined && !JSON.stringify(request.headers).includes(NAME)) request.addHeader(NAME, rolloutId);
  };
  const byHttp = (message: unknown): void => {
    const { request } = message as { readonly request: ClientRequest };
    const rolloutId = `http://${request.getHeader('host')}` === origin ? caller() : undefined;
    if (rolloutId !== undefined && !request.hasHeader(NAME) && !request.headersSent) request.setHeader(NAME, rolloutId);
  };
  subscribe('undici:request:create', byFetch);
  subscribe('http.client.request.created', byHttp);
  return {
    [Symbol.dispose]: () => {
      unsubscribe('undici:request:create', byFetch);
      unsubscribe('http.client.request.created', byHttp);
    },
  };
}
