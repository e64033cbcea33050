/**
 * The door to the policy: an ordinary OpenAI-compatible server as a function (Request) → Promise<Response>.
 *
 * Each call is answered from the engine's tokens and recorded as a Turn with exactly those tokens. The prompt of a call that
 * continues a recorded conversation is the recorded ids plus the new messages; nothing that was sampled is tokenised again.
 * `ctx.model().fetch` and the HTTP listener call the same function. The gateway knows nothing about rewards.
 */
import { createHash } from 'node:crypto';
import type { Clock, Engine, ModelHandle, Session, SessionHost, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import { extendsHistory } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { isMarkedRetry } from './answers.ts';
import { type ChatRequest, decodeChat, encodeChat } from './dialects/chat.ts';
import { errorResponse, notFound } from './http-errors.ts';
import { effectiveSampling, type LiveSession, SessionTable } from './sessions.ts';

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
  readonly #options: GatewayOptions;
  readonly #clock: Clock;
  readonly #sessions = new SessionTable();
  readonly #undeliver = new WeakMap<Response, () => void>();
  /** Origin of the listener; until one listens, base URLs work in process only. */
  origin = 'http://trainyard.invalid';

  constructor(options: GatewayOptions) {
    this.#options = options;
    this.#clock = options.clock ?? { now: Date.now };
  }

  get openSessions(): number {
    return this.#sessions.openSessions;
  }

  open(spec: SessionSpec): Session {
    return this.#sessions.open(spec, (session, role, key) => this.#handle(session, role, key));
  }

  /** Answers one request. Never throws: a failure is an error response in the dialect's shape. */
  readonly fetch = async (request: Request): Promise<Response> => {
    try {
      const { pathname } = new URL(request.url);
      const route = ROUTE.exec(pathname);
      if (route === null) return notFound(request.method, pathname);
      const { session, role } = this.#sessions.find(bearer(request), route[1] ?? '');
      if (route[2] === 'models' && request.method === 'GET') return this.#models();
      if (route[2] !== 'chat/completions' || request.method !== 'POST') return notFound(request.method, pathname);
      return await this.#chat(session, role, request);
    } catch (thrown) {
      return errorResponse(thrown);
    }
  };

  /** The listener could not deliver this response: the client's retry must get it again instead of sampling a second turn. */
  undelivered(response: Response): void {
    this.#undeliver.get(response)?.();
  }

  #handle(session: LiveSession, role: string, apiKey: string): ModelHandle {
    const baseURL = `${this.origin}/r/${session.pathSegment}/v1`;
    const fetch: typeof globalThis.fetch = async (input, init) =>
      this.fetch(new Request(input as string | Request, init as RequestInit));
    return { role, name: this.#options.modelName, baseURL, apiKey, fetch };
  }

  #models(): Response {
    return Response.json({
      object: 'list',
      data: [{ id: this.#options.modelName, object: 'model', created: 0, owned_by: 'trainyard' }],
    });
  }

  async #chat(session: LiveSession, role: string, request: Request): Promise<Response> {
    const text = await readBody(request);
    const key = createHash('sha256').update(`${role}\n${text}`).digest('base64');
    const body = await session.answers.get(key, isMarkedRetry(request.headers), async () => {
      const turn = await this.#sample(session, role, decodeChat(parseJson(text)), request.signal);
      const id = `chatcmpl-${session.spec.identity.rolloutId}-${turn.index}`;
      return JSON.stringify(encodeChat(turn, id, this.#options.modelName));
    });
    session.assertOpen();
    const response = new Response(body, { headers: { 'content-type': 'application/json' } });
    this.#undeliver.set(response, () => session.answers.miss(key));
    return response;
  }

  async #sample(session: LiveSession, role: string, chat: ChatRequest, signal: AbortSignal): Promise<Turn> {
    const { engine, renderer } = this.#options;
    const seat = session.role(role);
    const wanted = effectiveSampling(session, seat, chat.requested);
    const maxTokens = session.begin(wanted.maxTokens);
    try {
      const startedAt = this.#clock.now();
      const promptIds = this.#prompt(session, role, chat.messages, chat.tools);
      const effective = { ...wanted, maxTokens };
      const seed = nextSeed(session, role, promptIds);
      const result = await engine.sample(
        { promptIds, sampling: effective, stopIds: renderer.stopIds, seed, affinity: session.spec.identity.groupId },
        AbortSignal.any([session.signal, signal]),
      );
      const { content, toolCalls } = renderer.readResponse(result.ids);
      const { rolloutId } = session.spec.identity;
      const calls = toolCalls.map((call, i) => ({
        id: `call_${rolloutId}_${session.turns.length}_${i}`,
        type: 'function' as const,
        function: call,
      }));
      return session.record({
        thread: role,
        role,
        trainable: seat.trainable,
        promptIds,
        sampledIds: result.ids,
        logprobs: result.logprobs,
        policyVersion: result.policyVersion,
        stopReason: result.stopReason,
        sampling: { requested: chat.requested, effective, seed },
        request: { messages: chat.messages, tools: chat.tools },
        response: { role: 'assistant', content, ...(calls.length > 0 ? { tool_calls: calls } : {}) },
        startedAt,
        endedAt: this.#clock.now(),
      });
    } catch (thrown) {
      if (thrown instanceof TrainyardError && thrown.code === 'CONTEXT_OVERFLOW') session.limitHit ??= 'context';
      throw thrown;
    } finally {
      session.end(maxTokens);
    }
  }

  /** The latest recorded turn that this conversation continues is extended; any other conversation is rendered afresh. */
  #prompt(session: LiveSession, role: string, messages: readonly Message[], tools: readonly Tool[]): Int32Array {
    const { renderer } = this.#options;
    if (renderer.extends) {
      for (const turn of session.turns.toReversed()) {
        if (turn.role !== role || JSON.stringify(turn.request.tools) !== JSON.stringify(tools)) continue;
        const tail = extendsHistory(turn.request.messages, turn.response, messages);
        if (tail !== undefined) return renderer.extend(turn, tail);
      }
    }
    return renderer.open(messages, tools);
  }
}

/** The seed of a call depends on what is asked and how often, never on when it arrives. */
function nextSeed(session: LiveSession, role: string, promptIds: Int32Array): number {
  const { seed, identity } = session.spec;
  const hash = createHash('sha256').update(`${seed}\n${identity.rolloutId}\n${role}\n`);
  const prompt = hash.update(new Uint8Array(promptIds.buffer, promptIds.byteOffset, promptIds.byteLength)).digest('base64');
  const occurrence = session.occurrences.get(prompt) ?? 0;
  session.occurrences.set(prompt, occurrence + 1);
  return createHash('sha256').update(`${prompt}\n${occurrence}`).digest().readUIntBE(0, 6);
}

function bearer(request: Request): string {
  return /^Bearer (\S+)$/i.exec(request.headers.get('authorization') ?? '')?.[1] ?? '';
}

async function readBody(request: Request): Promise<string> {
  const declared = Number(request.headers.get('content-length') ?? 0);
  const text = declared > MAX_BODY_BYTES ? undefined : await request.text();
  if (text === undefined || text.length > MAX_BODY_BYTES) {
    throw new TrainyardError('REQUEST_INVALID', `the body is larger than ${MAX_BODY_BYTES} bytes`);
  }
  return text;
}

function parseJson(text: string): unknown {
  if (nestingOf(text) > MAX_NESTING)
    throw new TrainyardError('REQUEST_INVALID', `the body is nested deeper than ${MAX_NESTING} levels`);
  try {
    return JSON.parse(text);
  } catch {
    throw new TrainyardError('REQUEST_INVALID', 'the body is not valid JSON');
  }
}
