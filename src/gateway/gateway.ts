/**
 * The gateway: an OpenAI- and Anthropic-compatible server for the policy, as a function from request to reply that `ctx.model().fetch` and
 * the HTTP server share. It answers each call from the engine's tokens and records a Turn with exactly those tokens, whatever the dialect,
 * streamed or not. It knows nothing about rewards.
 */
import { hash } from 'node:crypto';
import { fetchInThread } from '../core/context.ts';
import type { Clock, GenerateRequest, Generation, ModelHandle, SessionHost, SessionSpec } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { deepCopy } from '../core/json.ts';
import { completionId, tokensOf } from '../core/turns.ts';
import type { Turn } from '../core/types.ts';
import { KeyedServer, type KeyedServerOptions, type Listener, serve, type Timeouts } from '../http/http-server.ts';
import {
  type HttpReply,
  type HttpRequest,
  jsonReply,
  parseJson,
  type RouteMatch,
  Router,
  readText,
  routeFor,
} from '../http/message.ts';
import type { Failure } from '../http/refusal.ts';
import { renderAndDecode } from '../tokens/renderer.ts';
import { piecesOf } from '../tokens/response-stream.ts';
import { type Answer, isMarkedRetry } from './answers.ts';
import { clientFields, type ModelAddress } from './chat-client.ts';
import { listSessions, models, openSession, type SessionDefaults, showSession } from './control.ts';
import { chat } from './dialects/chat.ts';
import { type AnswerHead, admitted, type Dialect, type ModelRequest, type Writer } from './dialects/dialect.ts';
import { messages } from './dialects/messages.ts';
import { responses } from './dialects/responses.ts';
import { EventStream } from './event-stream.ts';
import { inOurNames, readRequest, withOwnCalls } from './generate-request.ts';
import { authorize, callerOf, checkRollout, checkThread, type Grant, Keyring, nameCallers } from './identity.ts';
import { promptOf } from './prompt.ts';
import {
  type AnswerStart,
  answer,
  type SamplerParts,
  type ServedPolicy,
  type StreamListener,
  type TokenPolicy,
  tokenPolicy,
  toolCallId,
} from './sampling.ts';
import {
  type Caller,
  type LiveSession,
  type ModelCall,
  type RestoredSession,
  type SessionJournal,
  SessionTable,
  sealed,
} from './sessions.ts';
import { type Capability, GATEWAY_LIMITS, gatewayFailure, openAIError, ROUTES, type Route, refused } from './wire-protocol.ts';

export type { Listener };

interface CommonOptions extends KeyedServerOptions {
  /** The model name reported to clients. */
  readonly modelName: string;
  readonly clock?: Clock;
  /** Model calls get 503 until this resolves. If absent, the engine counts as ready. */
  readonly ready?: Promise<unknown>;
  /** A session without calls for this long is sealed. Default: one hour. */
  readonly idleMs?: number;
  /** Keeps sessions that are opened over HTTP, and with its secret their keys, over a restart. */
  readonly journal?: SessionJournal & { readonly secret: Uint8Array };
  /** If absent, no session can be opened over HTTP. */
  readonly sessionDefaults?: SessionDefaults;
}

export type GatewayOptions = CommonOptions & (TokenPolicy | ServedPolicy) & Pick<SamplerParts, 'recorded'>;

const IDLE_MS = 3_600_000;
const ROUTES_HINT = 'a base URL ends in /r/<rollout>/v1; clients add chat/completions, responses or messages to it';
const GEMINI = /\/models\/[^/]+(?::|%3A)(?:stream)?(?:generateContent|countTokens)$/i;
const NO_GEMINI = 'Gemini’s API is not spoken here: use a client of OpenAI’s or Anthropic’s API, or LiteLLM in between';
export const DIALECTS: Readonly<Record<string, Dialect>> = { 'chat/completions': chat, responses, messages };

/** Routes of another protocol on the same server. They return undefined for an unknown path; a thrown error becomes the reply. */
type OtherRoutes = (call: HttpRequest) => Promise<HttpReply | undefined>;

type CallerRequest = GenerateRequest & { readonly role?: string; readonly thread?: string };

export class Gateway extends KeyedServer implements SessionHost {
  readonly #options: GatewayOptions & { readonly clock: Clock };
  readonly #sessions: SessionTable;
  readonly #keyring: Keyring;
  readonly #others: OtherRoutes[] = [];
  /** Why model calls cannot be answered, yet or ever. */
  #unready: string | undefined;
  #isStopping = false;
  /** Origin of the HTTP server. Until a server listens, base URLs work only in process. */
  origin = 'http://trainyard.invalid';

  constructor(options: GatewayOptions) {
    super(options);
    this.#options = { clock: { now: Date.now, elapsed: () => performance.now() }, ...options };
    const { clock, idleMs = IDLE_MS, ready, journal } = this.#options;
    this.#keyring = new Keyring(journal?.secret);
    this.#sessions = new SessionTable({ clock, idleMs, journal, handle: (session, role) => this.#modelHandle(session, role) });
    if (ready !== undefined) void this.#awaitEngine(ready);
  }

  /** Throws REQUEST_INVALID if the policy is behind an API. */
  get policy(): TokenPolicy & Pick<GatewayOptions, 'modelName'> {
    return { ...tokenPolicy(this.#options, 'this protocol'), modelName: this.#options.modelName };
  }

  get openSessions(): number {
    return this.#sessions.size;
  }

  open(spec: SessionSpec): LiveSession {
    return this.#sessions.open(spec);
  }

  /** Opens a session whose owner is outside this process. It is also sealed when idle or past its deadline. */
  openRemote(spec: SessionSpec): LiveSession {
    this.#checkAdmitting();
    return this.#sessions.open(spec, true);
  }

  /** Opens a session as an earlier process left it: its keys hold. */
  reopen(spec: SessionSpec, remote: boolean, restored: RestoredSession): LiveSession {
    return this.#sessions.open(spec, remote, restored);
  }

  /** Undefined unless the rollout's session is open. */
  session(rolloutId: string): LiveSession | undefined {
    return this.#sessions.get(rolloutId);
  }

  /** Whether the rollout had a session; false if it was so long ago that the gateway forgot it. */
  hasEnded(rolloutId: string): boolean {
    return this.#sessions.hasEnded(rolloutId);
  }

  /** From now on new sessions and new model calls get 503; calls in flight go on. */
  stopAdmitting(): void {
    this.#isStopping = true;
    this.#unready = 'the server is stopping';
  }

  sealAll(): void {
    for (const session of [...this.#sessions.all()]) session.seal();
  }

  /** One model call without a client, like `ModelHandle.generate`. */
  async generate(rolloutId: string, { role = 'default', thread = role, ...request }: CallerRequest): Promise<Generated> {
    const session = this.#sessions.get(rolloutId);
    if (session === undefined) throw this.hasEnded(rolloutId) ? sealed(rolloutId) : notOpen(rolloutId);
    return await generate(this.#generateParts(), { session, role, thread }, request as GenerateRequest);
  }

  /** Offers unknown paths to `routes`, which may check keys with `authorize` and pass calls on to `answer` under a gateway path. */
  mount(routes: OtherRoutes): void {
    this.#others.push(routes);
  }

  /** Returns the grant of the call's key. Throws if the key is not ours or has none of these capabilities. */
  authorize(call: Pick<HttpRequest, 'header'>, who: readonly Capability[]): Grant {
    return authorize(this.#keyring, call, who);
  }

  /** Makes a key. An `agent` key with a rollout expires with it; `admin` and `viewer` keys reach all sessions while the gateway lives. */
  key(capability: Capability, { rollout, role }: Pick<Grant, 'rollout' | 'role'> = {}): string {
    const session = rollout === undefined ? undefined : this.#sessions.get(rollout);
    if (rollout !== undefined && session === undefined) throw notOpen(rollout);
    return this.#keyring.make({ capability, rollout, role, session: session?.number });
  }

  /** Accepts an externally chosen secret as a key with this capability. */
  acceptToken(token: string, capability: Capability): void {
    this.#keyring.accept(token, { capability });
  }

  protected route(call: HttpRequest): Promise<HttpReply> {
    if (GEMINI.test(call.path)) throw refused('not_found', NO_GEMINI);
    const match = matchPath(call.path);
    return match === undefined ? this.#serveOther(call) : this.#serve(routeFor(match, call.method, call.path), match, call);
  }

  async #serve(route: Route, match: MatchedPath, call: HttpRequest): Promise<HttpReply> {
    const { does, who } = route;
    if (does === 'health') return jsonReply(200, { status: 'ok' });
    if (does === 'ready') return this.#ready();
    const grant = authorize(this.#keyring, call, who);
    if (does === 'ask' || does === 'count_tokens') return await this.#callModel(route, match, grant, call);
    if (does === 'ids') return await this.#generateTokens(match, grant, call);
    if (does === 'models' || does === 'model') return this.#models(match, grant, call);
    if (does === 'list') return listSessions(this.#sessions);
    if (does === 'open') this.#checkAdmitting();
    if (does === 'open') return await openSession(this.#sessions, this.#options.sessionDefaults, call);
    return await showSession(this.#sessions, match.segments['rollout']!, { seal: does === 'seal' });
  }

  async #serveOther(call: HttpRequest): Promise<HttpReply> {
    for (const routes of this.#others) {
      const reply = await routes(call);
      if (reply !== undefined) return reply;
    }
    throw refused('not_found', `no route ${call.method} ${call.path.slice(0, 200)}`, { hint: ROUTES_HINT });
  }

  async #callModel({ path, does }: Route, match: MatchedPath, grant: Grant, call: HttpRequest): Promise<HttpReply> {
    const caller = callerOf(this.#sessions, grant, match.rollout, call);
    const dialect = dialectOf(path)!;
    this.#checkReady();
    if (does === 'count_tokens') return await countTokens(this.#options, caller, call, dialect);
    return await caller.session.calling(caller, call.signal, (modelCall) =>
      answerCall(this.#options, caller, call, dialect, modelCall),
    );
  }

  /** `ModelHandle.generate` for a process that has no gateway: the whole turn goes back. */
  async #generateTokens({ rollout }: MatchedPath, grant: Grant, call: HttpRequest): Promise<HttpReply> {
    const { header, signal } = call;
    const caller = callerOf(this.#sessions, grant, rollout, call);
    const text = await readText(call, GATEWAY_LIMITS.bodyBytes);
    const request = { ...(parseJson(text, GATEWAY_LIMITS) as GenerateRequest), ...(signal && { signal }) };
    const sample = async () => [(await generate(this.#generateParts(), caller, request)).turn];
    const key = ['generate_tokens', caller.role, caller.thread, header('idempotency-key') ?? '', text].join('\n');
    const { value, miss } = await caller.session.answers.get(key, isMarkedRetry(header), sample);
    const { promptIds, sampledIds, logprobs, ...words } = value[0]!;
    const turn = { ...words, promptIds: [...promptIds], sampledIds: [...sampledIds], logprobs: [...logprobs] };
    const id = completionId(caller.session.spec.identity, words.sampling.seed);
    return { ...jsonReply(200, { id, turn }), undelivered: miss };
  }

  #models({ rollout, segments: { id } }: MatchedPath, grant: Grant, call: HttpRequest): HttpReply {
    if (grant.rollout !== undefined || rollout !== undefined) callerOf(this.#sessions, grant, rollout, call);
    return models(this.#options.modelName, Boolean(call.header('anthropic-version')), id);
  }

  protected readonly failureOf = gatewayFailure;

  /** In the dialect's format. */
  protected replyTo(failure: Failure, { path, header }: Pick<HttpRequest, 'path' | 'header'>): HttpReply {
    const own = dialectOf(matchPath(path)?.routes[0]?.path ?? '') ?? (header('anthropic-version') ? messages : undefined);
    return jsonReply(failure.status, (own?.failure ?? openAIError)(failure), failure.headers);
  }

  async #awaitEngine(ready: Promise<unknown>): Promise<void> {
    this.#unready = 'the engine is starting';
    try {
      await ready;
      this.#unready = undefined;
    } catch (thrown) {
      this.#unready = `the engine did not start: ${messageOf(thrown)}`;
    }
  }

  #checkReady(): void {
    if (this.#unready !== undefined) throw refused('not_ready', this.#unready, { headers: { 'retry-after': '1' } });
  }

  #checkAdmitting(): void {
    if (this.#isStopping) this.#checkReady();
  }

  #ready(): HttpReply {
    this.#checkReady();
    const policyVersion = 'engine' in this.#options ? this.#options.engine.policyVersion : 0;
    return jsonReply(200, { status: 'ready', policyVersion });
  }

  #generateParts(): GenerateParts {
    return { ...this.#options, checkReady: () => this.#checkReady() };
  }

  #modelHandle(session: LiveSession, role: string): ModelHandle {
    const { rolloutId: rollout, number } = session;
    const apiKey = this.#keyring.make({ capability: 'agent', rollout, role, session: number });
    const baseURL = `${this.origin}/r/${encodeURIComponent(rollout)}/v1`;
    const reach = { role, name: this.#options.modelName, baseURL, apiKey, fetch: this.fetch as typeof globalThis.fetch };
    return modelHandle(this.#generateParts(), reach, { session, role, thread: role });
  }
}

function notOpen(rollout: string): TrainyardError {
  const hint = 'open its session first';
  return new TrainyardError('SESSION_UNKNOWN', `rollout ${JSON.stringify(rollout)} is not open`, hint);
}

interface MatchedPath extends RouteMatch<Route> {
  /** Percent-encoded. */
  readonly rollout: string | undefined;
}

const PREFIXED = /^(?:\/r\/([^/]+))?((?:\/v1){0,2})\/(.+)$/;
const ROUTER = new Router(ROUTES);

function matchPath(pathname: string): MatchedPath | undefined {
  const [, rollout, version, path = ''] = PREFIXED.exec(pathname) ?? [];
  const match = ROUTER.match(path);
  if (match === undefined || (!match.routes[0]!.model && (rollout !== undefined || version))) return undefined;
  return { routes: match.routes, segments: match.segments, rollout };
}

function dialectOf(path: string): Dialect | undefined {
  return path === 'messages/count_tokens' ? messages : DIALECTS[path];
}

type ModelCallParts = SamplerParts & {
  readonly modelName: string;
  readonly onFailure?: ((failure: Failure, path: string) => void) | undefined;
};

/** Length, in characters, of the header that names ignored parameters. */
const MOST_REPORTED = 2000;

interface ReadCall {
  readonly caller: Caller;
  readonly http: HttpRequest;
  readonly request: ModelRequest;
  readonly writer: Writer;
  /** The turns sampled for this call, in this attempt or another. */
  answered(signal: AbortSignal, listener?: StreamListener): Promise<Answer<readonly Turn[]>>;
}

/** One model call over HTTP: read in its dialect, matched with earlier attempts, answered by the sampler, written as one body or as events. */
async function answerCall(
  parts: ModelCallParts,
  caller: Caller,
  http: HttpRequest,
  dialect: Dialect,
  call: ModelCall,
): Promise<HttpReply> {
  const text = await readText(http, GATEWAY_LIMITS.bodyBytes);
  const { request, writer } = requestOf(caller, text, dialect);
  const { session, role, thread } = caller;
  const name = http.header('idempotency-key');
  const key = hash('sha256', `${JSON.stringify([role, thread, dialect.name, name ?? ''])}\n${text}`, 'base64');
  if (name) session.claim(JSON.stringify([role, thread, name]), key);
  const answered: ReadCall['answered'] = (signal, listener) => {
    const asking = { caller, dialect: dialect.name, request, signal, call, listener };
    return session.answers.get(key, isMarkedRetry(http.header), () => answer(parts, asking));
  };
  const read = { caller, http, request, writer, answered };
  const reply = request.stream ? await streamed(parts, read) : await whole(parts, read);
  return request.ignored.length === 0 ? reply : { ...reply, headers: { 'x-trainyard-ignored': inHeader(request.ignored) } };
}

/** Returns the length of the prompt. Samples and records nothing. */
async function countTokens(parts: SamplerParts, caller: Caller, http: HttpRequest, dialect: Dialect): Promise<HttpReply> {
  const { request } = requestOf(caller, await readText(http, GATEWAY_LIMITS.bodyBytes), dialect);
  const policy = tokenPolicy(parts, 'count_tokens');
  return jsonReply(200, { input_tokens: promptOf(policy, caller, request).prompt.promptIds.length });
}

function requestOf({ session }: Caller, text: string, dialect: Dialect): ReturnType<Dialect['read']> {
  session.receive(Buffer.byteLength(text));
  const { request, writer } = dialect.read(parseJson(text, GATEWAY_LIMITS), session);
  return { request: admitted(request), writer };
}

async function whole(parts: ModelCallParts, { caller, http, writer, answered }: ReadCall): Promise<HttpReply> {
  const { session } = caller;
  const { signal, release } = session.join(http);
  const { value: turns, miss } = await answered(signal).finally(release);
  session.assertOpen();
  return { ...jsonReply(200, writer.whole(turns, headOf(parts, caller, startOf(caller, turns)))), undelivered: miss };
}

/** Replies at the first token; an earlier failure is an ordinary error. A retry gets the recorded turns all at once. */
async function streamed(parts: ModelCallParts, read: ReadCall): Promise<HttpReply> {
  const { caller, http, writer } = read;
  const { session } = caller;
  const events = new EventStream();
  const left = new AbortController();
  const first = Promise.withResolvers<void>();
  const signal = AbortSignal.any([session.signal, left.signal, ...(http.signal ? [http.signal] : [])]);
  const listener: StreamListener = {
    start: (start) => {
      events.open(writer.events(headOf(parts, caller, start)));
      first.resolve();
    },
    push: events.push.bind(events),
  };
  const answered = read.answered(signal, listener);
  answered.then(
    ({ value: turns }) => {
      if (!events.opened) replay(parts, read, turns, events);
      events.finish(turns);
    },
    (thrown) => {
      if (events.opened && !signal.aborted) parts.onFailure?.(gatewayFailure(thrown), http.path);
      events.fail(thrown);
    },
  );
  await Promise.race([first.promise, answered]);
  session.signal.throwIfAborted();
  const stop = (): void => events.stop(session.signal.reason);
  session.signal.addEventListener('abort', stop, { once: true });
  // A rollout may stream for hours, and its signal must not keep every response in memory until it ends.
  events.onDelivered = () => session.signal.removeEventListener('abort', stop);
  const undelivered = (): void => {
    events.onDelivered?.();
    left.abort();
    answered.then(({ miss }) => miss()).catch(() => undefined);
  };
  return { status: 200, body: events, undelivered };
}

function replay(parts: ModelCallParts, { caller, request, writer }: ReadCall, turns: readonly Turn[], events: EventStream): void {
  events.open(writer.events(headOf(parts, caller, startOf(caller, turns))));
  for (const [choice, { response, sampledIds: ids, logprobs }] of turns.entries()) {
    const { content, reasoning, tool_calls: calls = [] } = response;
    if (request.logprobs) events.push(choice, [{ kind: 'tokens', ids, logprobs }]);
    const said = { content, toolCalls: calls.map((one) => one.function) };
    events.push(choice, piecesOf(reasoning === undefined ? said : { ...said, reasoning }));
  }
}

function headOf(parts: ModelCallParts, caller: Caller, { seeds, ...start }: AnswerStart): AnswerHead {
  const none = (): string => '';
  const { tokenText, text } = 'renderer' in parts ? parts.renderer : { tokenText: none, text: none };
  return {
    ...start,
    model: parts.modelName,
    toolCallId: (choice, index) => toolCallId(parts, caller.session.rolloutId, seeds[choice]!, index),
    tokenText,
    text,
  };
}

function startOf({ session }: Caller, turns: readonly Turn[]): AnswerStart {
  const { startedAt } = turns[0]!;
  const seeds = turns.map((turn) => turn.sampling.seed);
  const { promptTokens } = tokensOf(turns[0]!);
  return { id: completionId(session.spec.identity, seeds[0]!), startedAt, promptTokens, seeds };
}

/** Clients choose the names, so this keeps only characters that headers allow, and no more than every client accepts. */
function inHeader(names: readonly string[]): string {
  const text = names.join(',').slice(0, MOST_REPORTED);
  return text.replaceAll(/[^\x20-\x7e]/g, '?');
}

interface ListenOptions {
  /** Default: 127.0.0.1. */
  readonly host?: string;
  readonly port?: number;
  /** Works as an admin key. Required for any address other than loopback. */
  readonly token?: string;
  readonly timeouts?: Partial<Timeouts>;
}

/** Serves the gateway over HTTP and points its base URLs there. */
export async function listen(gateway: Gateway, { token, ...options }: ListenOptions = {}): Promise<Listener> {
  const listener = await serve(gateway, { ...options, secret: { name: 'token', value: token } });
  if (token !== undefined) gateway.acceptToken(token, 'admin');
  gateway.origin = listener.origin;
  const naming = nameCallers((rolloutId) => gateway.session(rolloutId) !== undefined, listener.origin);
  const close = async (): Promise<void> => {
    naming[Symbol.dispose]();
    await listener[Symbol.asyncDispose]();
  };
  return { ...listener, [Symbol.asyncDispose]: close };
}

type GenerateParts = SamplerParts & { checkReady(): void };

/** In the gateway's own process, a generation always has its turn. */
type Generated = Generation & { readonly turn: Turn };

type Reach = ModelAddress & Pick<ModelHandle, 'fetch'>;

/** `ctx.model(role)`: what clients need to call the policy as one role of a rollout, and `generate` for calls without a client. */
function modelHandle(parts: GenerateParts, reach: Reach, caller: Caller): ModelHandle {
  const { session, role, thread } = caller;
  return {
    ...clientFields(reach, thread === role ? reach.fetch : fetchInThread(reach.fetch, thread)),
    generate: (request) => generate(parts, caller, request),
    ...renderAndDecode((what) => tokenPolicy(parts, what).renderer),
    thread: (other) => {
      checkThread(session, role, other);
      return modelHandle(parts, reach, { ...caller, thread: other });
    },
  };
}

/** Records the same turn as a client's request and throws the error that the client would get. Does not handle retries. */
async function generate(parts: GenerateParts, caller: Caller, given: GenerateRequest): Promise<Generated> {
  const { session, role, thread } = caller;
  session.assertOpen();
  checkRollout(caller);
  checkThread(session, role, thread);
  parts.checkReady();
  return await session.calling(caller, given?.signal, async (call) => {
    const { request, parameters, bytes } = readRequest(given, session.parameters);
    session.parameters = parameters;
    session.receive(bytes);
    const { signal, release } = session.join({ signal: given.signal });
    try {
      const [turn] = await answer(parts, { caller, request, signal, call });
      return generationOf(caller, turn!);
    } catch (thrown) {
      throw inOurNames(thrown);
    } finally {
      release();
    }
  });
}

/** Returns a copy, so that the caller cannot change the recorded turn. */
function generationOf({ session }: Caller, recorded: Turn): Generated {
  const message = withOwnCalls({ ...recorded.response });
  let turn: Turn | undefined;
  return {
    id: completionId(session.spec.identity, recorded.sampling.seed),
    message,
    text: message.content ?? '',
    toolCalls: message.tool_calls ?? [],
    stopReason: recorded.stopReason,
    // Copied lazily: few callers read tokens, and copying them costs more than the rest.
    get turn() {
      turn ??= copyOf(recorded);
      return turn;
    },
  };
}

function copyOf(turn: Turn): Turn {
  const { promptIds, sampledIds, logprobs, ...words } = turn;
  const ids = { promptIds: promptIds.slice(), sampledIds: sampledIds.slice(), logprobs: logprobs.slice() };
  return { ...deepCopy(words), ...ids };
}
