/**
 * One question: request → prompt ids → the engine's ids → recorded Turns, one for each answer that was asked for.
 *
 * The prompt of a call that continues a recorded conversation is the recorded ids plus the new messages; nothing that was sampled is
 * tokenised again. Turns are made from complete ids, streamed or not; a stream is a view of them. All answers to a question are
 * recorded together, or none.
 */
import { hash } from 'node:crypto';
import { yieldToEventLoop } from '../core/async.ts';
import type { Clock } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import type { DialectName, Fork, Message, SamplingSettings, Turn } from '../core/types.ts';
import { relate } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import type { Piece } from '../tokens/response-stream.ts';
import { defaultModelOf, NO_PROMPT, play, playedSampling, type Spoken, wordsOf } from './default-model.ts';
import type { Question } from './dialects/dialect.ts';
import type { Tokens } from './event-stream.ts';
import { asked, type BegunPrompt, promptOf, remembered } from './prompt.ts';
import { effectiveSampling, type ModelCall, type Seat, sealed } from './sessions.ts';

export interface SamplerParts {
  readonly engine: Engine;
  readonly renderer: Renderer;
  readonly clock: Clock;
}

/** What is known of the answers to a question when the first token is. */
export interface Beginning {
  readonly startedAt: number;
  readonly promptTokens: number;
  /** Of each answer, in order. */
  readonly seeds: readonly number[];
}

/** Whoever listens while a question is answered. */
export interface Audience {
  /** Before the first token; not called where nothing was sampled. */
  start(beginning: Beginning): void;
  push(choice: number, pieces: readonly (Piece | Tokens)[]): void;
}

type UnrecordedTurn = Omit<Turn, 'index'>;

export async function answer(
  parts: SamplerParts,
  seat: Seat,
  dialect: DialectName | undefined,
  question: Question,
  signal: AbortSignal,
  call: ModelCall,
  audience?: Audience,
): Promise<readonly Turn[]> {
  const { session } = seat;
  // Asked once: whether a role is trained may change while it is answered.
  const role = session.role(seat.role);
  const player = role.trainable || role.default === undefined ? undefined : defaultModelOf(role.default);
  const wanted = player ? playedSampling(session, question.requested) : effectiveSampling(session, role, question.requested);
  const reservation = session.begin(question.count, player ? 0 : wanted.maxTokens);
  const draws: Draw[] = [];
  const { startedAt } = call;
  try {
    const begunPrompt = player ? { prompt: NO_PROMPT } : promptOf(parts, seat, question);
    const { prompt } = begunPrompt;
    const { promptIds } = prompt;
    call.promptTokens = promptIds.length;
    const known = session.turns.length;
    for (let choice = 0; choice < question.count; choice++) draws.push(nextDraw(seat, player ? wordsOf(question) : promptIds));
    const seeds = draws.map(({ seed }) => seed);
    const told = audience && startingOnce(audience, { startedAt, promptTokens: promptIds.length, seeds });
    const onSampled = (count: number): void => {
      call.sampledTokens += count;
    };
    const sampling = player ? wanted : { ...wanted, maxTokens: reservation.maxTokens };
    const ignored = question.ignored.length > 0 ? { ignored: question.ignored } : {};
    const before = player ? latestOf(seat) : session.turns[prompt.after ?? prompt.fork?.from ?? -1];
    const request = { ...(dialect === undefined ? {} : { dialect }), ...remembered(before, question), ...ignored };
    const sampleOne = async (seed: number, choice: number, own: AbortSignal): Promise<UnrecordedTurn> => {
      const listener = told && ((pieces: readonly (Piece | Tokens)[]) => told(choice, pieces));
      const asking = { seat, question, ...begunPrompt, sampling, seed, signal: own, listener, onSampled };
      const said = player ? await play(player, asking) : await sample(parts, asking);
      return {
        ...prompt,
        ...(player ? { model: player.name } : {}),
        ...said.ids,
        stopReason: said.stopReason,
        ...responseOf(parts, asking, said.assistant),
        thread: seat.thread,
        role: seat.role,
        trainable: role.trainable,
        sampling: { requested: question.requested, effective: sampling, seed },
        request,
        startedAt,
        endedAt: parts.clock.now(),
      };
    };
    const turns = await allOrNone(signal, seeds, sampleOne);
    const fork = player ? undefined : (prompt.fork ?? forkMeanwhile(seat, question, known));
    return session.record(fork ? turns.map((turn) => ({ ...turn, fork })) : turns, call);
  } catch (thrown) {
    for (const draw of draws) draw.giveBack();
    session.keepUnanswered(call, thrown, signal);
    // Engines say in their own words that they were cancelled; whoever waits is to hear that there is nothing to wait for.
    throw session.signal.aborted ? sealed(session.rolloutId) : thrown;
  } finally {
    reservation.release();
  }
}

function latestOf({ session, role, thread }: Seat): Turn | undefined {
  return session.turns.findLast((turn) => turn.role === role && turn.thread === thread);
}

/** Of calls side by side all but the first to be recorded find that the conversation has gone on meanwhile. */
function forkMeanwhile(seat: Seat, question: Question, known: number): Fork | undefined {
  const { session, role, thread } = seat;
  if (question.promptIds !== undefined) return undefined;
  const hasGoneOn = session.turns.slice(known).some((turn) => turn.role === role && turn.thread === thread);
  return hasGoneOn ? relate(session.turns, asked(seat, question)).fork : undefined;
}

interface Sampling extends BegunPrompt {
  readonly seat: Seat;
  readonly question: Question;
  readonly sampling: SamplingSettings;
  readonly seed: number;
  readonly signal: AbortSignal;
  readonly listener: ((pieces: readonly (Piece | Tokens)[]) => void) | undefined;
  onSampled(count: number): void;
}

async function sample({ engine, renderer }: SamplerParts, asked: Sampling): Promise<Spoken> {
  const { seat, question, prompt, begun, sampling, seed, signal, listener } = asked;
  const { stopTexts } = question;
  const view = listener || stopTexts.length > 0 ? renderer.streamResponse(stopTexts, begun) : undefined;
  let seen = 0;
  const onTokens = (ids: Int32Array, logprobs: Float32Array) => {
    checkIds(ids, engine.vocabSize);
    const pieces = view!.push(ids);
    const kept = view!.stoppedAt === undefined ? ids.length : view!.stoppedAt - seen;
    asked.onSampled(kept);
    seen += kept;
    if (question.logprobs) {
      listener?.([{ kind: 'tokens', ids: ids.subarray(0, kept), logprobs: logprobs.subarray(0, kept) }]);
    }
    listener?.(pieces);
    return view!.stoppedAt === undefined ? undefined : { keep: kept };
  };
  const { groupId } = seat.session.spec.identity;
  // A copy: what is recorded and trained must not hang on what the engine does with its arguments.
  const request = {
    promptIds: prompt.promptIds.slice(),
    sampling: { ...sampling },
    stopIds: renderer.stopIds,
    seed,
    affinity: groupId,
  };
  const servedBefore = engine.policyVersion;
  const given = await engine.sample(request, signal, view && onTokens);
  const kept = view?.stoppedAt === undefined ? undefined : seen;
  const result = checkSampled(given, { engine, request: { ...request, sampling }, servedBefore, kept });
  await yieldToEventLoop();
  const assistant = renderer.readResponse(result.ids, stopTexts, begun);
  const rest = view?.end(result.ids, assistant);
  if (question.logprobs && seen < result.ids.length) {
    listener?.([{ kind: 'tokens', ids: result.ids.subarray(seen), logprobs: result.logprobs.subarray(seen) }]);
  }
  listener?.(rest ?? []);
  const { ids: sampledIds, logprobs, policyVersion, stopReason } = result;
  return { assistant, stopReason, ids: { sampledIds, logprobs, policyVersion } };
}

function responseOf({ renderer }: SamplerParts, { seat, question, seed }: Sampling, said: Assistant) {
  const calls = said.toolCalls.map((call, i) => ({
    id: toolCallId(renderer, seat, seed, i),
    type: 'function' as const,
    function: call,
  }));
  // Where the policy calls tools instead of answering there is nothing to check yet.
  const formatError = said.content === null ? undefined : question.formatErrorOf?.(said.content);
  const response: Message = {
    role: 'assistant',
    content: said.content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(said.reasoning === undefined ? {} : { reasoning: said.reasoning }),
  };
  return { response, ...(formatError === undefined ? {} : { formatError }) };
}

/** The first failure cancels the others and is thrown when they have ended. */
async function allOrNone<S, T>(
  signal: AbortSignal,
  items: readonly S[],
  start: (item: S, place: number, signal: AbortSignal) => Promise<T>,
): Promise<T[]> {
  if (items.length === 1) return [await start(items[0]!, 0, signal)];
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const running = items.map((item, place) => start(item, place, either));
  for (const one of running) one.catch((thrown) => failed.abort(thrown));
  await Promise.allSettled(running);
  failed.signal.throwIfAborted();
  return await Promise.all(running);
}

/**
 * Ids are known before a turn is complete, so they come from its seed, which no other turn of the rollout has. Where the template
 * has a rule for them, they are as long as it wants.
 */
export function toolCallId({ toolCallIdLength }: Renderer, { session }: Seat, seed: number, index: number): string {
  const name = `${session.spec.identity.rolloutId.replaceAll(/[^\w-]/g, '_')}_${seed.toString(36)}_${index}`;
  if (toolCallIdLength === undefined) return `call_${name}`;
  return hash('sha256', name, 'base64')
    .replaceAll(/[^A-Za-z0-9]/g, '')
    .slice(0, toolCallIdLength);
}

function startingOnce(audience: Audience, beginning: Beginning): Audience['push'] {
  let started = false;
  return (choice, pieces) => {
    if (!started) audience.start(beginning);
    started = true;
    audience.push(choice, pieces);
  };
}

interface Draw {
  readonly seed: number;
  /** Nothing was recorded: the next attempt has the same seed. */
  giveBack(): void;
}

/** The seed of a call depends on what is asked and how often, never on when it arrives or how many attempts were made. */
function nextDraw({ session, role, thread }: Seat, question: Int32Array | string): Draw {
  const { seed, identity } = session.spec;
  const asked =
    typeof question === 'string' ? Buffer.from(question) : Buffer.from(question.buffer, question.byteOffset, question.byteLength);
  const who = thread === role ? role : `${role}\n${thread}`;
  const prompt = hash('sha256', Buffer.concat([Buffer.from(`${seed}\n${identity.rolloutId}\n${who}\n`), asked]), 'base64');
  const occurrence = session.occurrences.take(prompt);
  return {
    seed: hash('sha256', `${prompt}\n${occurrence}`, 'buffer').readUIntBE(0, 6),
    giveBack: () => session.occurrences.giveBack(prompt, occurrence),
  };
}

// From check-sampled.ts: Checks what an engine says it sampled, whichever engine it is, before it becomes a turn that is trained on: ids of the vocabulary, a
// log-probability for each, no more than asked for, a stop id exactly where the engine says it stopped at one, and a version that was
// served meanwhile. Whatever passes is copied: the engine may use its buffers again.

/** Rounding can lift the log-probability of a certain token a little above 0. */
const ABOVE_ZERO = 1e-3;

export interface Expected {
  readonly engine: Pick<Engine, 'vocabSize' | 'contextLength' | 'policyVersion'>;
  readonly request: SampleRequest;
  /** The version that was served when the request was sent. */
  readonly servedBefore: number;
  /** How many ids a listener wanted to keep, where one ended the sampling. */
  readonly kept: number | undefined;
}

/** Throws POLICY_GARBLED. */
export function checkSampled(result: SampleResult, { engine, request, servedBefore, kept }: Expected): SampleResult {
  const { ids: givenIds, logprobs: given, stopReason, policyVersion } = result ?? {};
  if (!isList(givenIds) || givenIds.length === 0) throw garbled('no ids', 'at least one');
  if (!isList(given) || given.length !== givenIds.length) {
    throw garbled(`${isList(given) ? given.length : 'no'} log-probabilities`, `one for each of the ${givenIds.length} ids`);
  }
  checkIds(givenIds, engine.vocabSize);
  const [ids, logprobs] = [Int32Array.from(givenIds), Float32Array.from(given)];
  const most = Math.min(request.sampling.maxTokens, engine.contextLength - request.promptIds.length, kept ?? Infinity);
  if (ids.length > most) throw garbled(`${ids.length} ids`, `at most ${most}`);
  const bad = logprobs.find((value) => !(Number.isFinite(value) && value <= ABOVE_ZERO));
  if (bad !== undefined) throw garbled(`log-probability ${bad}`, 'finite ones of at most 0');
  const stop = ids.findIndex((id) => request.stopIds.includes(id));
  if (stop >= 0 && stop < ids.length - 1)
    throw garbled(`${ids.length - 1 - stop} ids after stop id ${ids[stop]}`, 'it to be the last');
  if (stopReason !== 'length' && stopReason !== 'stop')
    throw garbled(`with stop reason ${JSON.stringify(stopReason)}`, '"stop" or "length"');
  if (stopReason === 'stop' && stop < 0 && kept === undefined)
    throw garbled(`"stop" with last id ${ids.at(-1)}`, 'one of the stop ids to be the last');
  const [oldest, newest] = [servedBefore, engine.policyVersion].toSorted((a, b) => a - b) as [number, number];
  if (!(Number.isSafeInteger(policyVersion) && policyVersion >= oldest && policyVersion <= newest)) {
    throw garbled(`from policy version ${policyVersion}`, `version ${oldest === newest ? newest : `${oldest} to ${newest}`}`);
  }
  return { ids, logprobs, stopReason: stop >= 0 ? 'stop' : stopReason, policyVersion };
}

/** Throws POLICY_GARBLED for ids outside of the vocabulary. */
export function checkIds(ids: ArrayLike<number>, vocabSize: number): void {
  const bad = Array.prototype.findIndex.call(ids, (id: number) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (bad !== -1) throw garbled(`id ${ids[bad]}`, `ids below ${vocabSize}`);
}

const isList = (value: unknown): value is ArrayLike<number> => Array.isArray(value) || ArrayBuffer.isView(value);

function garbled(found: string, expected: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', `the engine sampled ${found}, expected ${expected}`, {
    hint: 'what it samples cannot be trained on; of a server, check its version and its base model against the model folder',
  });
}
