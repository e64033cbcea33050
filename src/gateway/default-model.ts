/**
 * Default models answer for roles that are not trained: an OpenAI-compatible server, a function or a `DefaultModel`. The gateway asks them
 * in place of the policy and records their completions without token ids. Every failure is DEFAULT_MODEL_FAILED; a model that ignores its
 * abort signal is not awaited. A server's key is sent only to that server and never appears in results or errors.
 */
import { orAborted } from '../core/async.ts';
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { StopReason, Turn } from '../core/types.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import { beforeStop, type Piece, piecesOf } from '../tokens/response-stream.ts';
import { type ChatServer, chatAnswerIn, chatRequest, whyUnreachable, withoutKey } from './chat-client.ts';
import { invalid, type ModelRequest } from './dialects/dialect.ts';

export function defaultModelOf(given: DefaultModelLike): DefaultModel {
  if (typeof given === 'function') {
    // JavaScript names the function in `{ default: () => … }` after its field.
    const name = given.name === '' || given.name === 'default' ? 'function' : given.name;
    const asAnswer = (said: string | DefaultModelAnswer): DefaultModelAnswer =>
      typeof said === 'string' ? { content: said } : said;
    return { name, generate: async (request) => asAnswer(await given(request)) };
  }
  // A model handle has both `generate` and `baseURL`. Its server accepts everything that a default model is asked.
  return 'baseURL' in given ? { name: given.name, generate: (request) => askServer(given, request) } : given;
}

export interface Sampled {
  readonly assistant: Assistant;
  readonly stopReason: StopReason;
  readonly ids: Pick<Turn, 'sampledIds' | 'logprobs' | 'policyVersion' | 'constrained'>;
}

export async function askDefaultModel(
  model: DefaultModel,
  request: ModelRequest,
  signal: AbortSignal,
  onPieces: ((pieces: readonly Piece[]) => void) | undefined,
): Promise<Sampled> {
  if (request.promptIds !== undefined) {
    throw invalid('promptIds', `the role is played by ${model.name}, which reads words`, 'give messages');
  }
  const answer = await answerOf(model, request, signal);
  const assistant = assistantOf(answer, request.stopTexts);
  onPieces?.(piecesOf(assistant));
  const ids = { sampledIds: new Int32Array(0), logprobs: new Float32Array(0), policyVersion: 0 };
  return { assistant, stopReason: answer.stopReason ?? 'stop', ids };
}

async function answerOf(model: DefaultModel, request: ModelRequest, signal: AbortSignal): Promise<DefaultModelAnswer> {
  const { forced, requested, stopTexts } = request;
  // Copies, so that the model cannot change what is recorded.
  const { messages, tools } = structuredClone({ messages: request.messages, tools: request.tools });
  const [sampling, stop] = [{ ...requested }, [...stopTexts]];
  const tool = forced === undefined ? {} : { tool: forced.name ?? (true as const) };
  try {
    signal.throwIfAborted();
    return checked(model, await orAborted(model.generate({ messages, tools, ...tool, stop, sampling, signal }), signal));
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof TrainyardError && cause.code === 'DEFAULT_MODEL_FAILED') throw cause;
    throw failed(model, `failed: ${messageOf(cause)}`, cause);
  }
}

function checked(model: DefaultModel, answer: unknown): DefaultModelAnswer {
  const { content = null, toolCalls = [], stopReason = 'stop' } = (answer ?? {}) as Partial<Record<string, unknown>>;
  const isText = content === null || typeof content === 'string';
  const isAnswer = typeof answer === 'object' && answer !== null && ('content' in answer || 'toolCalls' in answer);
  if (!isAnswer || !isText || (stopReason !== 'stop' && stopReason !== 'length')) {
    throw failed(model, 'answered something else than a text or { content, toolCalls, stopReason }');
  }
  if (!Array.isArray(toolCalls) || !toolCalls.every(isCall)) {
    throw failed(model, 'answered tool calls that are not a list of { name, arguments }, both of them texts');
  }
  return { content, toolCalls: toolCalls.map(({ name, arguments: given }) => ({ name, arguments: given })), stopReason };
}

function isCall(call: unknown): call is { readonly name: string; readonly arguments: string } {
  const { name, arguments: given } = (call ?? {}) as { readonly name?: unknown; readonly arguments?: unknown };
  return typeof name === 'string' && name !== '' && typeof given === 'string';
}

function assistantOf({ content, toolCalls = [] }: DefaultModelAnswer, stopTexts: readonly string[]): Assistant {
  const said = content === null ? null : (beforeStop(content, stopTexts) ?? content);
  return { content: said || (toolCalls.length === 0 ? '' : null), toolCalls };
}

interface Server extends ChatServer {
  readonly fetch?: typeof globalThis.fetch;
}

async function askServer(server: Server, { sampling, ...asked }: DefaultModelRequest): Promise<DefaultModelAnswer> {
  // OpenAI's own servers reject unknown parameters, including top_k.
  const { topK: _, ...known } = sampling;
  const text = await replyTo(server, ...chatRequest(server, { ...asked, ...known }));
  const answer = chatAnswerIn(text);
  if (answer === undefined) throw failed(server, `answered something that is no completion: ${text.slice(0, 200)}`);
  const { content, stopReason } = answer;
  const toolCalls = answer.toolCalls.map((call) => call.function);
  return { content, stopReason, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
}

/** Follows no redirect: it would send the conversation, and possibly the key, to another server. */
async function replyTo(server: Server, url: string, init: RequestInit): Promise<string> {
  const { fetch = globalThis.fetch } = server;
  let response: Response;
  let text: string;
  try {
    response = await fetch(url, { ...init, redirect: 'manual' });
    text = withoutKey(await response.text(), server);
  } catch (thrown) {
    // Without the cause, which may quote the request too.
    throw failed(server, `cannot be reached: ${whyUnreachable(thrown, server)}`);
  }
  const { status, headers } = response;
  if (status >= 300 && status < 400) {
    const target = withoutKey(originIn(headers.get('location'), url), server);
    throw failed(server, `answered ${status}, a redirect to ${target}: redirects are not followed`);
  }
  if (!response.ok) throw failed(server, `answered ${status}: ${text.slice(0, 500)}`);
  return text;
}

function originIn(location: string | null, url: string): string {
  return location !== null && URL.canParse(location, url) ? new URL(location, url).origin : 'nowhere';
}

function failed({ name }: { readonly name: string }, what: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`, {
    cause,
    hint: 'check its base URL, key and name, or the function that plays the role',
  });
}
