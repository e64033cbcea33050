/**
 * One question on its way through the gateway: read in its dialect, matched with earlier attempts, answered by the sampler, written back
 * as one body or as events. Who may ask is settled before.
 */
import { hash } from 'node:crypto';
import { completionId } from '../core/turns.ts';
import type { Turn } from '../core/types.ts';
import { type HttpReply, type HttpRequest, jsonReply, parseJson } from '../http/message.ts';
import type { Failure } from '../http/refusal.ts';
import { piecesOf } from '../tokens/response-stream.ts';
import { isMarkedRetry } from './answers.ts';
import type { AnswerHead, Dialect, Question, Writer } from './dialects/dialect.ts';
import { checkSize } from './dialects/dialect.ts';
import { EventStream } from './event-stream.ts';
import { promptOf } from './prompt.ts';
import { answer, type Beginning, type SamplerParts, toolCallId } from './sampling.ts';
import type { ModelCall, Seat } from './sessions.ts';
import { GATEWAY_LIMITS, gatewayFailure } from './wire-protocol.ts';

export interface AskParts extends SamplerParts {
  readonly modelName: string;
  readonly onFailure?: (failure: Failure, path: string) => void;
}

/** Characters of the header that names ignored parameters. */
const MOST_REPORTED = 2000;

/** Who asks what, in which words, and by which name its retries are known. */
interface Asking {
  readonly seat: Seat;
  readonly call: HttpRequest;
  readonly dialect: Dialect;
  readonly question: Question;
  readonly writer: Writer;
  readonly key: string;
  readonly modelCall: ModelCall;
}

/** Reads the call, has it answered, and writes the reply; throws what the gateway turns into an error reply. */
export async function ask(
  parts: AskParts,
  seat: Seat,
  call: HttpRequest,
  text: string,
  dialect: Dialect,
  modelCall: ModelCall,
): Promise<HttpReply> {
  seat.session.receive(Buffer.byteLength(text));
  const { question, writer } = dialect.read(parseJson(text, GATEWAY_LIMITS), seat.session);
  checkSize(question);
  const name = call.header('idempotency-key');
  const who = JSON.stringify([seat.role, seat.thread, dialect.name, name ?? '']);
  const key = hash('sha256', `${who}\n${text}`, 'base64');
  if (name) seat.session.claim(JSON.stringify([seat.role, seat.thread, name]), key);
  const asking = { seat, call, dialect, question, writer, key, modelCall };
  const reply = question.stream ? await stream(parts, asking) : await whole(parts, asking);
  return question.ignored.length === 0 ? reply : { ...reply, headers: { 'x-trainyard-ignored': inHeader(question.ignored) } };
}

async function whole(parts: AskParts, { seat, call, dialect, question, writer, key, modelCall }: Asking): Promise<HttpReply> {
  const { session } = seat;
  const { signal, release } = session.join(call);
  const sample = () => answer(parts, seat, dialect.name, question, signal, modelCall);
  try {
    const { value: turns, miss } = await session.answers.get(key, isMarkedRetry(call.header), sample);
    session.assertOpen();
    return { ...jsonReply(200, writer.whole(turns, headOf(parts, seat, beginningOf(turns)))), undelivered: miss };
  } finally {
    release();
  }
}

/** Replies with the first token; what fails before it is an ordinary error. A retry gets the recorded turn, all at once. */
async function stream(parts: AskParts, asking: Asking): Promise<HttpReply> {
  const { seat, call, dialect, question, writer, key, modelCall } = asking;
  const { session } = seat;
  const events = new EventStream();
  const left = new AbortController();
  const first = Promise.withResolvers<void>();
  const signal = AbortSignal.any([session.signal, left.signal, ...(call.signal ? [call.signal] : [])]);
  const audience = {
    start: (beginning: Beginning) => {
      events.open(writer.events(headOf(parts, seat, beginning)));
      first.resolve();
    },
    push: events.push.bind(events),
  };
  const sample = () => answer(parts, seat, dialect.name, question, signal, modelCall, audience);
  const answered = session.answers.get(key, isMarkedRetry(call.header), sample);
  answered.then(
    ({ value: turns }) => {
      if (!events.opened) replay(parts, asking, turns, events);
      events.finish(turns);
    },
    (thrown) => {
      if (events.opened && !signal.aborted) parts.onFailure?.(gatewayFailure(thrown), call.path);
      events.fail(thrown);
    },
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

function replay(parts: AskParts, { seat, question, writer }: Asking, turns: readonly Turn[], events: EventStream): void {
  events.open(writer.events(headOf(parts, seat, beginningOf(turns))));
  for (const [choice, { response, sampledIds: ids, logprobs }] of turns.entries()) {
    const { content, reasoning, tool_calls: calls = [] } = response;
    if (question.logprobs) events.push(choice, [{ kind: 'tokens', ids, logprobs }]);
    const said = { content, toolCalls: calls.map((one) => one.function) };
    events.push(choice, piecesOf(reasoning === undefined ? said : { ...said, reasoning }));
  }
}

function headOf({ renderer, modelName }: AskParts, seat: Seat, { startedAt, promptTokens, seeds }: Beginning): AnswerHead {
  return {
    id: completionId(seat.session.spec.identity, seeds[0]!),
    model: modelName,
    startedAt,
    promptTokens,
    toolCallId: (choice, index) => toolCallId(renderer, seat, seeds[choice]!, index),
    tokenText: renderer.tokenText,
    text: renderer.text,
  };
}

/** How long the prompt would be if this were asked. Nothing is sampled or recorded. */
export function countTokens(parts: AskParts, seat: Seat, body: string, dialect: Dialect): HttpReply {
  seat.session.receive(Buffer.byteLength(body));
  const { question } = dialect.read(parseJson(body, GATEWAY_LIMITS), seat.session);
  checkSize(question);
  return jsonReply(200, { input_tokens: promptOf(parts, seat, question).prompt.promptIds.length });
}

function beginningOf(turns: readonly Turn[]): Beginning {
  const { startedAt, promptIds } = turns[0]!;
  return { startedAt, promptTokens: promptIds.length, seeds: turns.map((turn) => turn.sampling.seed) };
}

/** Names come from the client: only characters that a header may have, and no more than every client takes. */
function inHeader(names: readonly string[]): string {
  return names
    .join(',')
    .slice(0, MOST_REPORTED)
    .replaceAll(/[^\x20-\x7e]/g, '?');
}
