/**
 * The door to the policy: an ordinary OpenAI- and Anthropic-compatible server as a function (Request) → Promise<Response>.
 *
 * Each call is answered from the engine's tokens and recorded as a Turn with exactly those tokens, whatever dialect it came in, whether
 * the answer is one JSON body or a stream of events. `ctx.model().fetch` and the HTTP listener call the same function. The gateway
 * knows nothing about rewards.
 */
import type { Clock, GenerateRequest, ModelHandle, Session, SessionHost, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Engine } from '../core/policy.ts';
import { WrongKeys } from '../http/guard.ts';
import { fetchWith, type HttpReply, type HttpRequest, jsonReply, parseJson, readText } from '../http/message.ts';
import type { Failure, Refusal } from '../http/refusal.ts';
import { decoded, routeFor } from '../http/router.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { ask, countTokens } from './ask.ts';
import { listSessions, openSession, type SessionDefaults, sealSession, showSession } from './control.ts';
import { chat } from './dialects/chat.ts';
import type { Dialect } from './dialects/dialect.ts';
import { messages } from './dialects/messages.ts';
import { responses } from './dialects/responses.ts';
import { gatewayFailure, openAIError, refused } from './http-errors.ts';
import { authorize, seatOf } from './identity.ts';
import { type Capability, type Grant, Keyring } from './keys.ts';
import { GATEWAY_LIMITS } from './limits.ts';
import { type Generated, type GenerateParts, generate, modelHandle } from './model-handle.ts';
import { modelList, modelNamed } from './models.ts';
import { Readiness } from './readiness.ts';
import { type MatchedPath, matchPath, type Route } from './routes.ts';
import { SessionTable } from './session-table.ts';
import { type LiveSession, sealed } from './sessions.ts';

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
