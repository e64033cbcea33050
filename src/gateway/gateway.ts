/**
 * The door to the policy: an ordinary OpenAI-compatible server as a function (Request) → Promise<Response>.
 *
 * Each call is answered from the engine's tokens and recorded as a Turn with exactly those tokens, whether the answer is one JSON
 * body or a stream of events. `ctx.model().fetch` and the HTTP listener call the same function. The gateway knows nothing about
 * rewards.
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
import { type ChatRequest, decodeChat, encodeChat } from './dialects/chat.ts';
import { chatEvents } from './dialects/chat-events.ts';
import { type EventEncoder, EventStream } from './event-stream.ts';
import { errorOf, notFound } from './http-errors.ts';
import { completionId, sampleTurn, toolCallId } from './sampling.ts';
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
const ROUTE = /^\/r\/([^/]+)(?:\/v1)?\/(chat\/completions|models)$/;

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
    try {
      const { pathname } = call.url;
      const route = ROUTE.exec(pathname);
      if (route === null) return json(notFound(call.method, pathname));
      const seat = this.#sessions.find(bearer(call), route[1] ?? '');
      if (route[2] === 'models' && call.method === 'GET') return json({ status: 200, body: this.#models() });
      if (route[2] !== 'chat/completions' || call.method !== 'POST') return json(notFound(call.method, pathname));
      return await this.#chat(seat, call);
    } catch (thrown) {
      return json(errorOf(thrown));
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

  async #chat(seat: Seat, call: Call): Promise<Reply> {
    const chat = decodeChat(parseJson(call.body));
    const named = JSON.stringify(call.header('idempotency-key') ?? '');
    const key = hash('sha256', `${seat.role}\n${named}\n${call.body}`, 'base64');
    return chat.stream ? await this.#stream(seat, call, key, chat) : await this.#whole(seat, call, key, chat);
  }

  async #whole({ session, role }: Seat, call: Call, key: string, chat: ChatRequest): Promise<Reply> {
    const signal = call.signal ? AbortSignal.any([session.signal, call.signal]) : session.signal;
    const sample = () => sampleTurn(this.#options, session, role, chat, signal);
    const { turn, miss } = await session.answers.get(key, isMarkedRetry(call.header), sample);
    session.assertOpen();
    const body = JSON.stringify(encodeChat(turn, completionId(session, turn.sampling.seed), this.#options.modelName));
    return { status: 200, body, undelivered: miss };
  }

  /** Replies with the first token; what fails before it is an ordinary error. A retry gets the recorded turn, all at once. */
  async #stream({ session, role }: Seat, call: Call, key: string, chat: ChatRequest): Promise<Reply> {
    const events = new EventStream();
    const left = new AbortController();
    const first = Promise.withResolvers<void>();
    const signal = AbortSignal.any([session.signal, left.signal, ...(call.signal ? [call.signal] : [])]);
    const audience = {
      start: (turn: { readonly startedAt: number; readonly seed: number }) => {
        events.open(this.#encoder(session, chat, turn.seed, turn.startedAt));
        first.resolve();
      },
      push: events.push.bind(events),
    };
    const sample = () => sampleTurn(this.#options, session, role, chat, signal, audience);
    const answer = session.answers.get(key, isMarkedRetry(call.header), sample);
    answer.then(
      ({ turn }) => {
        if (!events.opened) this.#replay(session, chat, turn, events);
        events.finish(turn);
      },
      (thrown) => events.fail(thrown),
    );
    await Promise.race([first.promise, answer]);
    session.signal.throwIfAborted();
    session.signal.addEventListener('abort', () => events.stop(session.signal.reason), { once: true });
    const undelivered = (): void => {
      left.abort();
      answer.then(
        ({ miss }) => miss(),
        () => undefined,
      );
    };
    return { status: 200, body: events, undelivered };
  }

  #replay(session: LiveSession, chat: ChatRequest, turn: Turn, events: EventStream): void {
    const { content, tool_calls: calls = [] } = turn.response;
    events.open(this.#encoder(session, chat, turn.sampling.seed, turn.startedAt));
    events.push(piecesOf({ content, toolCalls: calls.map((call) => call.function) }));
  }

  #encoder(session: LiveSession, chat: ChatRequest, seed: number, startedAt: number): EventEncoder {
    return chatEvents({
      id: completionId(session, seed),
      model: this.#options.modelName,
      startedAt,
      includeUsage: chat.stream?.includeUsage ?? false,
      toolCallId: (index) => toolCallId(session, seed, index),
    });
  }
}

function json({ status, body }: { readonly status: number; readonly body: object }): Reply {
  return { status, body: JSON.stringify(body) };
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
