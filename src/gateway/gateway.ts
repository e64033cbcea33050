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
import { MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Turn } from '../core/types.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { piecesOf } from '../tokens/response-stream.ts';
import { isMarkedRetry } from './answers.ts';
import { type Call, callOf, type Reply, responseOf } from './call.ts';
import { chat } from './dialects/chat.ts';
import type { AnswerHead, Dialect, Question, Writer } from './dialects/dialect.ts';
import { messages } from './dialects/messages.ts';
import { responses } from './dialects/responses.ts';
import { EventStream } from './event-stream.ts';
import { type Failure, failureOf, httpFailure, openAIError } from './http-errors.ts';
import { answer, type Beginning, promptOf, toolCallId } from './sampling.ts';
import { type LiveSession, type Seat, SessionTable } from './sessions.ts';

export interface GatewayOptions {
  readonly engine: Engine;
  readonly renderer: Renderer;
  /** Reported as the model's name. */
  readonly modelName: string;
  readonly clock?: Clock;
}

/** Larger bodies are refused before they are parsed: parsing blocks every other rollout. */
export const MAX_BODY_BYTES = 16 * 1024 * 1024;
/** Characters of the header that names ignored parameters. */
const MOST_REPORTED = 2000;
const COUNT = 'messages/count_tokens';
const ROUTE = /^\/r\/([^/]+)(?:\/v1)?\/(chat\/completions|responses|messages(?:\/count_tokens)?|models)$/;
const DIALECTS: Readonly<Record<string, Dialect>> = {
  'chat/completions': chat,
  responses,
  messages,
  [COUNT]: messages,
};

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
  readonly #sessions = new SessionTable();
  /** Origin of the listener; until one listens, base URLs work in process only. */
  origin = 'http://trainyard.invalid';

  constructor(options: GatewayOptions) {
    this.#options = { clock: { now: Date.now }, ...options };
  }

  get openSessions(): number {
    return this.#sessions.openSessions;
  }

  open(spec: SessionSpec): Session {
    return this.#sessions.open(spec, (session, role, key) => this.#modelHandle(session, role, key));
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
  async answer(call: Call): Promise<Reply> {
    const { pathname } = call.url;
    const route = ROUTE.exec(pathname);
    const dialect = DIALECTS[route?.[2] ?? ''];
    const word = dialect ? dialect.failure : openAIError;
    try {
      if (route === null) return failed(notFound(call), word);
      const found = this.#sessions.find(bearer(call), route[1] ?? '');
      const seat = { ...found, thread: call.header('x-sample-id') ?? found.thread };
      if (route[2] === 'models' && call.method === 'GET') return json(200, this.#models());
      if (dialect === undefined || call.method !== 'POST') return failed(notFound(call), word);
      if (route[2] === COUNT) return this.#count(seat, call, dialect);
      return await this.#ask(seat, call, dialect);
    } catch (thrown) {
      return failed(failureOf(thrown), word);
    }
  }

  #modelHandle(session: LiveSession, role: string, apiKey: string): ModelHandle {
    const baseURL = `${this.origin}/r/${session.pathSegment}/v1`;
    return { role, name: this.#options.modelName, baseURL, apiKey, fetch: this.fetch as typeof globalThis.fetch };
  }

  #models(): object {
    const data = [{ id: this.#options.modelName, object: 'model', created: 0, owned_by: 'trainyard' }];
    return { object: 'list', data };
  }

  /** How long the prompt would be if this were asked. Nothing is sampled or recorded. */
  #count(seat: Seat, call: Call, dialect: Dialect): Reply {
    const { question } = dialect.read(parseJson(call.body), seat.session);
    return json(200, { input_tokens: promptOf(this.#options.renderer, seat, question).promptIds.length });
  }

  async #ask(seat: Seat, call: Call, dialect: Dialect): Promise<Reply> {
    const { question, writer } = dialect.read(parseJson(call.body), seat.session);
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
    const signal = call.signal ? AbortSignal.any([session.signal, call.signal]) : session.signal;
    const sample = () => answer(this.#options, seat, dialect.name, question, signal);
    const { value: turns, miss } = await session.answers.get(key, isMarkedRetry(call.header), sample);
    session.assertOpen();
    return { ...json(200, writer.whole(turns, this.#head(seat, beginningOf(turns)))), undelivered: miss };
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
    session.signal.addEventListener('abort', () => events.stop(session.signal.reason), { once: true });
    const undelivered = (): void => {
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

function failed(failure: Failure, word: Dialect['failure']): Reply {
  const reply = json(failure.status, word(failure));
  return failure.status === 429 ? { ...reply, headers: { 'retry-after': '1' } } : reply;
}

/** Names come from the client: only characters that a header may have, and no more than every client takes. */
function inHeader(names: readonly string[]): string {
  return names
    .join(',')
    .slice(0, MOST_REPORTED)
    .replaceAll(/[^\x20-\x7e]/g, '?');
}

function notFound({ method, url }: Call): Failure {
  return httpFailure(404, 'not_found', `no route ${method} ${url.pathname}`);
}

function bearer(call: Call): string {
  return /^Bearer (\S+)$/i.exec(call.header('authorization') ?? '')?.[1] ?? '';
}

function parseJson(text: string): unknown {
  if (text.length > MAX_BODY_BYTES) {
    throw new TrainyardError('REQUEST_INVALID', `the body is larger than ${MAX_BODY_BYTES} bytes`);
  }
  if (nestingOf(text) > MAX_NESTING) {
    throw new TrainyardError('REQUEST_INVALID', `the body is nested deeper than ${MAX_NESTING} levels`);
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new TrainyardError('REQUEST_INVALID', 'the body is not valid JSON');
  }
}
