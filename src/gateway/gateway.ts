/**
 * The door to the policy: an ordinary OpenAI- and Anthropic-compatible server as a function (Request) → Promise<Response>.
 *
 * Each call is answered from the engine's tokens and recorded as a Turn with exactly those tokens, whatever dialect it came in, whether
 * the answer is one JSON body or a stream of events. `ctx.model().fetch` and the HTTP listener call the same function. The gateway
 * knows nothing about rewards.
 */
import { hash } from 'node:crypto';
import type { Clock, Engine, ModelHandle, Session, SessionHost, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { linkSignals } from '../core/linked-signal.ts';
import type { Turn } from '../core/types.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { piecesOf } from '../tokens/response-stream.ts';
import { isMarkedRetry } from './answers.ts';
import { parseJson, readBody } from './body.ts';
import { type Call, callOf, type Reply, responseOf, type UnreadCall } from './call.ts';
import { listSessions, openSession, type SessionDefaults, sealSession, showSession } from './control.ts';
import { chat } from './dialects/chat.ts';
import type { AnswerHead, Dialect, Question, Writer } from './dialects/dialect.ts';
import { messages } from './dialects/messages.ts';
import { responses } from './dialects/responses.ts';
import { EventStream } from './event-stream.ts';
import { type Failure, failureOf, headersOf, openAIError, Refusal } from './http-errors.ts';
import { authorize, decoded, seatOf } from './identity.ts';
import { type Capability, type Grant, Keyring } from './keys.ts';
import { checkSize } from './limits.ts';
import { modelList, modelNamed } from './models.ts';
import { Readiness } from './readiness.ts';
import { allowed, type Place, placeOf, type Route, routeFor } from './routes.ts';
import { answer, type Beginning, promptOf, toolCallId } from './sampling.ts';
import { SessionTable } from './session-table.ts';
import type { LiveSession, Seat } from './sessions.ts';
import { WrongKeys } from './wrong-keys.ts';

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
/** Characters of the header that names ignored parameters. */
const MOST_REPORTED = 2000;
/** By route. */
export const DIALECTS: Readonly<Record<string, Dialect>> = { 'chat/completions': chat, responses, messages };

/** One question on its way: who asks what, in which words, and by which name its retries are known. */
interface Asking {
  readonly seat: Seat;
  readonly call: Call;
  readonly dialect: Dialect;
  readonly question: Question;
  readonly writer: Writer;
  readonly key: string;
}

export class Gateway implements SessionHost {
  readonly #options: GatewayOptions & { readonly clock: Clock };
  readonly #sessions: SessionTable;
  readonly #keyring = new Keyring();
  readonly #wrongKeys: WrongKeys;
  readonly #readiness: Readiness;
  /** Origin of the listener; until one listens, base URLs work in process only. */
  origin = 'http://trainyard.invalid';

  constructor(options: GatewayOptions) {
    this.#options = { clock: { now: Date.now }, ...options };
    const { clock, idleMs = IDLE_MS, ready } = this.#options;
    this.#sessions = new SessionTable({ clock, idleMs, handle: (session, role) => this.#modelHandle(session, role) });
    this.#wrongKeys = new WrongKeys(clock);
    this.#readiness = new Readiness(ready);
  }

  get openSessions(): number {
    return this.#sessions.size;
  }

  open(spec: SessionSpec): Session {
    return this.#sessions.open(spec);
  }

  /** Ends every session. */
  sealAll(): void {
    for (const session of [...this.#sessions.all()]) session.seal();
  }

  /** A key that dies with its rollout; without one it is good for all of them, and as long as the gateway lives. */
  key(capability: Capability, { rollout, role }: Pick<Grant, 'rollout' | 'role'> = {}): string {
    const session = rollout === undefined ? undefined : this.#sessions.get(rollout);
    if (rollout !== undefined && session === undefined) {
      throw new TrainyardError('SESSION_UNKNOWN', `rollout ${JSON.stringify(rollout)} is not open`, {
        hint: 'open its session first',
      });
    }
    return this.#keyring.make({ capability, rollout, role, session: session?.number });
  }

  /** A secret that someone else chose and that is as good as a key of this capability. */
  acceptToken(token: string, capability: Capability): void {
    this.#keyring.accept(token, { capability });
  }

  /** As the global `fetch`, for the gateway's own URLs. */
  readonly fetch = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const call = await callOf(input, init);
    const reply = await this.answer(call);
    if (call.signal?.aborted) reply.undelivered?.();
    call.signal?.throwIfAborted();
    return responseOf(reply, call.signal);
  };

  /** Answers one call. Never throws: a failure is an error reply in the dialect's shape. */
  async answer(call: UnreadCall): Promise<Reply> {
    const place = placeOf(call.url.pathname);
    try {
      const route = place && routeFor(place, call.method);
      if (place === undefined) throw new Refusal('not_found', `no route ${said(call)}`, ROUTES_HINT);
      if (route === undefined) {
        const allow = allowed(place);
        throw new Refusal('method_not_allowed', `no route ${said(call)}`, `the path takes ${allow}`, { allow });
      }
      return await this.#serve(route, place, call);
    } catch (thrown) {
      return this.#failed(failureOf(this.#wrongKeys.count(thrown, call.address)), place, call);
    }
  }

  /** The reply to a call that did not even get here, in the words of its route. */
  refuse(refusal: Refusal, call: Pick<UnreadCall, 'url' | 'header'>): Reply {
    return this.#failed(failureOf(refusal), placeOf(call.url.pathname), call);
  }

  async #serve(route: Route, place: Place, call: UnreadCall): Promise<Reply> {
    const { does, who } = route;
    if (does === 'health') return json(200, { status: 'ok' });
    if (does === 'ready') return this.#ready();
    const grant = authorize(this.#keyring, call, who);
    if (does === 'ask' || does === 'count_tokens') return await this.#callModel(route, place, grant, call);
    if (does === 'models' || does === 'model') {
      if (grant.rollout !== undefined || place.rollout !== undefined) seatOf(this.#sessions, grant, place.rollout, call);
      const names = [this.#options.modelName, Boolean(call.header('anthropic-version'))] as const;
      return json(200, does === 'models' ? modelList(...names) : modelNamed(decoded(place.parameter), ...names));
    }
    if (does === 'list') return json(200, listSessions(this.#sessions));
    if (does === 'show') return json(200, showSession(this.#sessions, place.parameter));
    if (does === 'seal') return json(200, sealSession(this.#sessions, place.parameter));
    const text = await readBody(call);
    return json(201, openSession(this.#sessions, this.#options.sessionDefaults, text === '' ? {} : parseJson(text)));
  }

  async #callModel({ path, does }: Route, place: Place, grant: Grant, call: UnreadCall): Promise<Reply> {
    const seat = seatOf(this.#sessions, grant, place.rollout, call);
    const dialect = dialectOf(path);
    if (dialect === undefined) throw new Refusal('not_found', `no route ${said(call)}`);
    this.#readiness.check();
    const body = await readBody(call);
    seat.session.receive(Buffer.byteLength(body));
    if (does === 'count_tokens') return this.#count(seat, body, dialect);
    return await this.#ask(seat, { ...call, body }, dialect);
  }

  #ready(): Reply {
    this.#readiness.check();
    return json(200, { status: 'ready', policyVersion: this.#options.engine.policyVersion });
  }

  #failed(failure: Failure, place: Place | undefined, call: Pick<UnreadCall, 'header' | 'url'>): Reply {
    this.#options.onFailure?.(failure, call.url.pathname);
    const own = dialectOf(place?.routes[0]?.path ?? '') ?? (call.header('anthropic-version') ? messages : undefined);
    const word = own?.failure ?? openAIError;
    const headers = headersOf(failure);
    return { ...json(failure.status, word(failure)), ...(headers ? { headers } : {}) };
  }

  #modelHandle(session: LiveSession, role: string): ModelHandle {
    const { rolloutId: rollout, number } = session;
    const apiKey = this.#keyring.make({ capability: 'agent', rollout, role, session: number });
    const baseURL = `${this.origin}/r/${encodeURIComponent(rollout)}/v1`;
    return { role, name: this.#options.modelName, baseURL, apiKey, fetch: this.fetch as typeof globalThis.fetch };
  }

  /** How long the prompt would be if this were asked. Nothing is sampled or recorded. */
  #count(seat: Seat, body: string, dialect: Dialect): Reply {
    const { question } = dialect.read(parseJson(body), seat.session);
    checkSize(question);
    return json(200, { input_tokens: promptOf(this.#options, seat, question).promptIds.length });
  }

  async #ask(seat: Seat, call: Call, dialect: Dialect): Promise<Reply> {
    const { question, writer } = dialect.read(parseJson(call.body), seat.session);
    checkSize(question);
    const name = call.header('idempotency-key');
    const who = JSON.stringify([seat.role, seat.thread, dialect.name, name ?? '']);
    const key = hash('sha256', `${who}\n${call.body}`, 'base64');
    if (name) seat.session.claim(JSON.stringify([seat.role, seat.thread, name]), key);
    const asking = { seat, call, dialect, question, writer, key };
    const reply = question.stream ? await this.#stream(asking) : await this.#whole(asking);
    return question.ignored.length === 0 ? reply : { ...reply, headers: { 'x-trainyard-ignored': inHeader(question.ignored) } };
  }

  async #whole({ seat, call, dialect, question, writer, key }: Asking): Promise<Reply> {
    const { session } = seat;
    const { signal, release } = linkSignals(session.signal, ...(call.signal ? [call.signal] : []));
    const sample = () => answer(this.#options, seat, dialect.name, question, signal);
    try {
      const { value: turns, miss } = await session.answers.get(key, isMarkedRetry(call.header), sample);
      session.assertOpen();
      return { ...json(200, writer.whole(turns, this.#head(seat, beginningOf(turns)))), undelivered: miss };
    } finally {
      release();
    }
  }

  /** Replies with the first token; what fails before it is an ordinary error. A retry gets the recorded turn, all at once. */
  async #stream({ seat, call, dialect, question, writer, key }: Asking): Promise<Reply> {
    const { session } = seat;
    const events = new EventStream();
    const left = new AbortController();
    const first = Promise.withResolvers<void>();
    const signal = AbortSignal.any([session.signal, left.signal, ...(call.signal ? [call.signal] : [])]);
    const audience = {
      start: (beginning: Beginning) => {
        events.open(writer.events(this.#head(seat, beginning)));
        first.resolve();
      },
      push: events.push.bind(events),
    };
    const sample = () => answer(this.#options, seat, dialect.name, question, signal, audience);
    const answered = session.answers.get(key, isMarkedRetry(call.header), sample);
    answered.then(
      ({ value: turns }) => {
        if (!events.opened) this.#replay(seat, question, writer, turns, events);
        events.finish(turns);
      },
      (thrown) => events.fail(thrown),
    );
    await Promise.race([first.promise, answered]);
    session.signal.throwIfAborted();
    const stop = (): void => events.stop(session.signal.reason);
    session.signal.addEventListener('abort', stop, { once: true });
    // A rollout may stream for hours: what it asked and was told must not hang on its signal until it ends.
    events.onDelivered = () => session.signal.removeEventListener('abort', stop);
    const undelivered = (): void => {
      events.onDelivered?.();
      left.abort();
      answered.then(
        ({ miss }) => miss(),
        () => undefined,
      );
    };
    return { status: 200, body: events, undelivered };
  }

  #replay(seat: Seat, question: Question, writer: Writer, turns: readonly Turn[], events: EventStream): void {
    events.open(writer.events(this.#head(seat, beginningOf(turns))));
    for (const [choice, { response, sampledIds: ids, logprobs }] of turns.entries()) {
      const { content, reasoning, tool_calls: calls = [] } = response;
      if (question.logprobs) events.push(choice, [{ kind: 'tokens', ids, logprobs }]);
      const said = { content, toolCalls: calls.map((one) => one.function) };
      events.push(choice, piecesOf(reasoning === undefined ? said : { ...said, reasoning }));
    }
  }

  #head(seat: Seat, { startedAt, promptTokens, seeds }: Beginning): AnswerHead {
    const { renderer, modelName } = this.#options;
    const { rolloutId } = seat.session.spec.identity;
    return {
      id: `${rolloutId.replaceAll(/[^\w-]/g, '_')}-${seeds[0]!.toString(36)}`,
      model: modelName,
      startedAt,
      promptTokens,
      toolCallId: (choice, index) => toolCallId(renderer, seat, seeds[choice]!, index),
      tokenText: renderer.tokenText,
      text: renderer.text,
    };
  }
}

function beginningOf(turns: readonly Turn[]): Beginning {
  const { startedAt, promptIds } = turns[0]!;
  return { startedAt, promptTokens: promptIds.length, seeds: turns.map((turn) => turn.sampling.seed) };
}

function json(status: number, body: object): Reply {
  return { status, body: JSON.stringify(body) };
}

function said({ method, url }: UnreadCall): string {
  return `${method} ${url.pathname.slice(0, 200)}`;
}

/** Names come from the client: only characters that a header may have, and no more than every client takes. */
function inHeader(names: readonly string[]): string {
  return names
    .join(',')
    .slice(0, MOST_REPORTED)
    .replaceAll(/[^\x20-\x7e]/g, '?');
}

function dialectOf(path: string): Dialect | undefined {
  return path === 'messages/count_tokens' ? messages : DIALECTS[path];
}
