/**
 * A default model from whatever a developer has: an OpenAI-compatible server, a function, or a default model already.
 *
 * Never calls the policy, and knows nothing of sessions: the gateway asks it and records what it says. A server's key goes to the server that
 * was named, and is in nothing that comes back from here.
 */
import { orAborted } from '../core/async.ts';
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { SamplingSettings, StopReason, Turn } from '../core/types.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import { beforeStop, type Piece, piecesOf } from '../tokens/response-stream.ts';
import { type ChatServer, chatAnswerIn, chatRequest, whyUnreachable, withoutKey } from './chat-completions.ts';
import { invalid, type Question } from './dialects/dialect.ts';
import type { Prompt } from './prompt.ts';
import type { LiveSession } from './sessions.ts';

export function defaultModelOf(given: DefaultModelLike): DefaultModel {
  if (typeof given === 'function') {
    // A function in `{ default: () => … }` has the name of its field.
    const name = given.name === '' || given.name === 'default' ? 'function' : given.name;
    return { name, generate: async (request) => asAnswer(await given(request)) };
  }
  // What has both is a model handle: its server takes everything that a default model is asked.
  return 'baseURL' in given ? overHttp(given) : given;
}

function asAnswer(given: string | DefaultModelAnswer): DefaultModelAnswer {
  return typeof given === 'string' ? { content: given } : given;
}

interface Server extends ChatServer {
  readonly fetch?: typeof globalThis.fetch;
}

function overHttp(server: Server): DefaultModel {
  return { name: server.name, generate: (request) => askServer(server, request) };
}

async function askServer(server: Server, { sampling, ...asked }: DefaultModelRequest): Promise<DefaultModelAnswer> {
  // OpenAI's own servers know no top_k, and refuse what they do not know.
  const { topK: _, ...known } = sampling;
  const text = await replyTo(server, ...chatRequest(server, { ...asked, ...known }));
  const answer = chatAnswerIn(text);
  if (answer === undefined) throw failed(server, `answered something that is no completion: ${text.slice(0, 200)}`);
  const { content, stopReason } = answer;
  const toolCalls = answer.toolCalls.map((call) => call.function);
  return { content, stopReason, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
}

/** From the server that was named and no other: a redirect would send the conversation, and maybe the key, to somebody else. */
async function replyTo(server: Server, url: string, init: RequestInit): Promise<string> {
  const { fetch = globalThis.fetch } = server;
  let response: Response;
  let text: string;
  try {
    response = await fetch(url, { ...init, redirect: 'manual' });
    text = withoutKey(await response.text(), server);
  } catch (thrown) {
    // Not as its cause: that quotes what was sent, too.
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

export function failed({ name }: { readonly name: string }, what: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`, {
    cause,
    hint: 'check its base URL, key and name, or the function that plays the role',
  });
}

// From play.ts: A default model in the place of the policy: it is asked with the words of the question, and what it says is recorded without ids.
//
// Whatever it does wrong is DEFAULT_MODEL_FAILED. One that does not mind its signal is not waited for.

export const NO_PROMPT: Prompt = { promptIds: new Int32Array(0) };

/** What was said, and in which ids. */
export interface Spoken {
  readonly assistant: Assistant;
  readonly stopReason: StopReason;
  readonly ids: Pick<Turn, 'sampledIds' | 'logprobs' | 'policyVersion'>;
}

interface Part {
  readonly question: Question;
  readonly signal: AbortSignal;
  readonly listener: ((pieces: readonly Piece[]) => void) | undefined;
}

/** The run's settings where the agent asked for none: nothing here is trained. */
export function playedSampling(session: LiveSession, requested: Partial<SamplingSettings>): SamplingSettings {
  return { ...session.spec.sampling, ...requested };
}

/** What is asked, by which identical questions are known. */
export const wordsOf = ({ messages, tools }: Question): string => JSON.stringify([messages, tools]);

export async function play(player: DefaultModel, { question, signal, listener }: Part): Promise<Spoken> {
  if (question.promptIds !== undefined) {
    throw invalid('promptIds', `the role is played by ${player.name}, which reads words`, 'give messages');
  }
  const answer = await answerOf(player, question, signal);
  const { stopReason = 'stop' } = answer;
  const assistant = assistantOf(answer, question.stopTexts);
  listener?.(piecesOf(assistant));
  return {
    assistant,
    stopReason,
    ids: { sampledIds: new Int32Array(0), logprobs: new Float32Array(0), policyVersion: 0 },
  };
}

async function answerOf(player: DefaultModel, question: Question, signal: AbortSignal): Promise<DefaultModelAnswer> {
  const { forced, requested, stopTexts } = question;
  // Its own: what it does to them must not change what is recorded.
  const { messages, tools } = structuredClone({ messages: question.messages, tools: question.tools });
  const [sampling, stop] = [{ ...requested }, [...stopTexts]];
  const tool = forced === undefined ? {} : { tool: forced.name ?? (true as const) };
  try {
    signal.throwIfAborted();
    return checked(player, await orAborted(player.generate({ messages, tools, ...tool, stop, sampling, signal }), signal));
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof TrainyardError && cause.code === 'DEFAULT_MODEL_FAILED') throw cause;
    throw failed(player, `failed: ${messageOf(cause)}`, cause);
  }
}

function checked(player: DefaultModel, answer: unknown): DefaultModelAnswer {
  const { content = null, toolCalls = [], stopReason = 'stop' } = (answer ?? {}) as Partial<Record<string, unknown>>;
  const isText = content === null || typeof content === 'string';
  const isAnswer = typeof answer === 'object' && answer !== null && ('content' in answer || 'toolCalls' in answer);
  if (!isAnswer || !isText || (stopReason !== 'stop' && stopReason !== 'length')) {
    throw failed(player, 'answered something else than a text or { content, toolCalls, stopReason }');
  }
  if (!Array.isArray(toolCalls) || !toolCalls.every(isCall)) {
    throw failed(player, 'answered tool calls that are not a list of { name, arguments }, both of them texts');
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
