/**
 * Default models answer for roles that are not trained: an OpenAI-compatible server, a function or a `DefaultModel`. The gateway asks them
 * in place of the policy and records their completions without token ids. Every failure is DEFAULT_MODEL_FAILED; a model that ignores its
 * abort signal is not awaited. A server's key is sent only to that server and never appears in results or errors.
 */
import { type Downtime, orAborted } from '../core/async.ts';
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest, ModelServer } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { StopReason, Turn } from '../core/types.ts';
import { Refusal } from '../http/refusal.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import { beforeStop, type Piece, piecesOf } from '../tokens/response-parser.ts';
import { isCount } from './chat-client.ts';
import { invalid, type ModelRequest } from './dialects/dialect.ts';
import { askServer, ServerFailure } from './model-server.ts';

export function defaultModelOf(given: DefaultModelLike): DefaultModel {
  if (typeof given === 'function') {
    // JavaScript names the function in `{ default: () => … }` after its field.
    const name = given.name === '' || given.name === 'default' ? 'function' : given.name;
    const asAnswer = (said: string | DefaultModelAnswer): DefaultModelAnswer =>
      typeof said === 'string' ? { content: said } : said;
    return { name, generate: async (request) => asAnswer(await given(request)) };
  }
  // A model handle has both `generate` and `baseURL`. Its server accepts everything that a default model is asked.
  return 'baseURL' in given ? { name: given.name, generate: (request, waits) => serverAnswer(given, request, waits) } : given;
}

export interface Sampled {
  readonly assistant: Assistant;
  readonly stopReason: StopReason;
  readonly ids: Pick<Turn, 'sampledIds' | 'logprobs' | 'policyVersion' | 'constrained'>;
  readonly usage?: DefaultModelAnswer['usage'];
}

interface Bounds {
  readonly thread: string;
  readonly signal: AbortSignal;
  readonly waits: Downtime | undefined;
}

export async function askDefaultModel(
  model: DefaultModel,
  request: ModelRequest,
  bounds: Bounds,
  onPieces: ((pieces: readonly Piece[]) => void) | undefined,
): Promise<Sampled> {
  if (request.promptIds !== undefined) {
    throw invalid('promptIds', `the role is played by ${model.name}, which reads words`, 'give messages');
  }
  let isTold = false;
  const tell: DefaultModelRequest['tell'] = (piece) => {
    isTold = true;
    onPieces?.([piece]);
  };
  const isHeard = onPieces !== undefined && request.stopTexts.length === 0;
  const answer = await answerOf(model, request, bounds, isHeard ? { tell } : {});
  const assistant = assistantOf(answer, request.stopTexts);
  onPieces?.(piecesOf(isTold ? { content: null, toolCalls: assistant.toolCalls } : assistant));
  const ids = { sampledIds: new Int32Array(0), logprobs: new Float32Array(0), policyVersion: 0 };
  return { assistant, stopReason: answer.stopReason ?? 'stop', ids, usage: answer.usage };
}

async function answerOf(
  model: DefaultModel,
  request: ModelRequest,
  { signal, waits, thread }: Bounds,
  heard: Pick<DefaultModelRequest, 'tell'>,
): Promise<DefaultModelAnswer> {
  const { forced, requested, stopTexts, chat } = request;
  // Copies, so that the model cannot change what is recorded.
  const { messages, tools } = structuredClone({ messages: request.messages, tools: request.tools });
  const sampling = { ...requested };
  const stop = [...stopTexts];
  const format = request.formatErrorOf && { format: structuredClone(request.formatErrorOf.format) };
  const tool = forced === undefined ? {} : { tool: forced.name ?? (true as const) };
  try {
    signal.throwIfAborted();
    const asked = { messages, tools, ...tool, stop, ...format, sampling, signal, thread, ...(chat && { chat }), ...heard };
    return checked(model, await orAborted(model.generate(asked, waits), signal));
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof Refusal || (cause instanceof TrainyardError && cause.code === 'DEFAULT_MODEL_FAILED')) throw cause;
    throw failed(model, `failed: ${messageOf(cause)}`, cause);
  }
}

type Fields = Readonly<Record<string, unknown>>;

function checked(model: DefaultModel, answer: unknown): DefaultModelAnswer {
  const { content = null, reasoning, toolCalls = [], stopReason = 'stop', usage } = (answer ?? {}) as Fields;
  const isText = content === null || typeof content === 'string';
  const isAnswer = typeof answer === 'object' && answer !== null && ('content' in answer || 'toolCalls' in answer);
  if (!isAnswer || !isText || (stopReason !== 'stop' && stopReason !== 'length')) {
    throw failed(model, 'answered something else than a text or { content, toolCalls, stopReason }');
  }
  if (!Array.isArray(toolCalls) || !toolCalls.every(isCall)) {
    throw failed(model, 'answered tool calls that are not a list of { name, arguments }, both of them texts');
  }
  const { promptTokens, completionTokens } = (usage ?? {}) as NonNullable<DefaultModelAnswer['usage']>;
  if (usage !== undefined && !(isCount(promptTokens) && isCount(completionTokens))) {
    throw failed(model, 'answered a usage that is not { promptTokens, completionTokens }, both of them whole numbers');
  }
  const calls = toolCalls.map(({ id, name, arguments: given }) => {
    return { ...(typeof id === 'string' && id !== '' && { id }), name, arguments: given };
  });
  return {
    content,
    toolCalls: calls,
    stopReason,
    ...(typeof reasoning === 'string' && reasoning !== '' && { reasoning }),
    ...(usage === undefined ? {} : { usage: { promptTokens, completionTokens } }),
  };
}

function isCall(call: unknown): call is { readonly id?: unknown; readonly name: string; readonly arguments: string } {
  const { name, arguments: given } = (call ?? {}) as { readonly name?: unknown; readonly arguments?: unknown };
  return typeof name === 'string' && name !== '' && typeof given === 'string';
}

function assistantOf({ content, reasoning, toolCalls = [] }: DefaultModelAnswer, stopTexts: readonly string[]): Assistant {
  const said = content === null ? null : (beforeStop(content, stopTexts) ?? content);
  return { content: said || (toolCalls.length === 0 ? '' : null), toolCalls, ...defined({ reasoning }) };
}

async function serverAnswer(
  server: ModelServer,
  { sampling, signal, thread: _thread, chat: _chat, tell: _tell, ...asked }: DefaultModelRequest,
  waits: Downtime | undefined,
): Promise<DefaultModelAnswer> {
  const { topK, ...known } = sampling;
  // 0 means all tokens. OpenAI's own servers refuse parameters that they do not know, and this is one.
  const hasTopK = topK !== undefined && topK > 0 && !/\.openai\.(azure\.)?com$/.test(new URL(server.baseURL).hostname);
  const request = { ...asked, ...known, ...(hasTopK && { topK }) };
  try {
    const { value } = await askServer(server, { request: () => request, read: (answer) => answer, signal, waits });
    const { content, stopReason, usage, toolCalls } = value;
    return { content, stopReason, toolCalls: toolCalls.map((call) => call.function), ...(usage && { usage }) };
  } catch (thrown) {
    if (!(thrown instanceof ServerFailure)) throw thrown;
    const { found, tries, seconds } = thrown.details;
    const what = found === undefined ? thrown.message : `${thrown.message}: ${found}`;
    // Without the cause, which may quote the request too.
    throw failed(server, tries === 1 ? what : `${what} (${tries} tries in ${seconds} s)`);
  }
}

function failed({ name }: { readonly name: string }, what: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`, {
    cause,
    hint: 'check its base URL, key and name, or the function that plays the role',
  });
}
