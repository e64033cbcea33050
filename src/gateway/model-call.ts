/**
 * One model call over HTTP: reads it in its dialect, matches it with earlier attempts, has the sampler answer it and writes the response as
 * one body or as events. The caller is already authorized.
 */
import { hash } from 'node:crypto';
import { completionId, tokensOf } from '../core/turns.ts';
import type { Turn } from '../core/types.ts';
import { type HttpReply, type HttpRequest, jsonReply, parseJson, readText } from '../http/message.ts';
import type { Failure } from '../http/refusal.ts';
import { piecesOf } from '../tokens/response-stream.ts';
import { type Answer, isMarkedRetry } from './answers.ts';
import { type AnswerHead, admitted, type Dialect, type ModelRequest, type Writer } from './dialects/dialect.ts';
import { EventStream } from './event-stream.ts';
import { promptOf } from './prompt.ts';
import { type AnswerStart, answer, type SamplerParts, type StreamListener, tokenPolicy, toolCallId } from './sampling.ts';
import type { Caller, ModelCall } from './sessions.ts';
import { GATEWAY_LIMITS, gatewayFailure } from './wire-protocol.ts';

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

export async function answerCall(
  parts: ModelCallParts,
  caller: Caller,
  http: HttpRequest,
  dialect: Dialect,
  call: ModelCall,
): Promise<HttpReply> {
  const text = await readText(http, GATEWAY_LIMITS.bodyBytes);
  const { request, writer } = readRequest(caller, text, dialect);
  const { session, role, thread } = caller;
  const name = http.header('idempotency-key');
  const key = hash('sha256', `${JSON.stringify([role, thread, dialect.name, name ?? ''])}\n${text}`, 'base64');
  if (name) session.claim(JSON.stringify([role, thread, name]), key);
  const answered: ReadCall['answered'] = (signal, listener) => {
    const asking = { caller, dialect: dialect.name, request, signal, call, listener };
    return session.answers.get(key, isMarkedRetry(http.header), () => answer(parts, asking));
  };
  const read = { caller, http, request, writer, answered };
  const reply = request.stream ? await stream(parts, read) : await whole(parts, read);
  return request.ignored.length === 0 ? reply : { ...reply, headers: { 'x-trainyard-ignored': inHeader(request.ignored) } };
}

/** Returns the length of the prompt. Samples and records nothing. */
export async function countTokens(parts: SamplerParts, caller: Caller, http: HttpRequest, dialect: Dialect): Promise<HttpReply> {
  const { request } = readRequest(caller, await readText(http, GATEWAY_LIMITS.bodyBytes), dialect);
  const policy = tokenPolicy(parts, 'count_tokens');
  return jsonReply(200, { input_tokens: promptOf(policy, caller, request).prompt.promptIds.length });
}

function readRequest({ session }: Caller, text: string, dialect: Dialect): ReturnType<Dialect['read']> {
  session.receive(Buffer.byteLength(text));
  const { request, writer } = dialect.read(parseJson(text, GATEWAY_LIMITS), session);
  return { request: admitted(request), writer };
}

async function whole(parts: ModelCallParts, { caller, http, writer, answered }: ReadCall): Promise<HttpReply> {
  const { session } = caller;
  const { signal, release } = session.join(http);
  const { value: turns, miss } = await answered(signal).finally(release);
  session.assertOpen();
  return { ...jsonReply(200, writer.whole(turns, headOf(parts, caller, startOf(turns)))), undelivered: miss };
}

/** Replies at the first token; an earlier failure is an ordinary error. A retry gets the recorded turns all at once. */
async function stream(parts: ModelCallParts, read: ReadCall): Promise<HttpReply> {
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
  events.open(writer.events(headOf(parts, caller, startOf(turns))));
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
    id: completionId(caller.session.spec.identity, seeds[0]!),
    model: parts.modelName,
    toolCallId: (choice, index) => toolCallId(parts, caller.session.rolloutId, seeds[choice]!, index),
    tokenText,
    text,
  };
}

function startOf(turns: readonly Turn[]): AnswerStart {
  const { startedAt } = turns[0]!;
  return { startedAt, promptTokens: tokensOf(turns[0]!).promptTokens, seeds: turns.map((turn) => turn.sampling.seed) };
}

/** Clients choose the names, so this keeps only characters that headers allow, and no more than every client accepts. */
function inHeader(names: readonly string[]): string {
  const text = names.join(',').slice(0, MOST_REPORTED);
  return text.replaceAll(/[^\x20-\x7e]/g, '?');
}
