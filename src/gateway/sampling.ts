/**
 * One model request: prompt ids → the engine's ids → recorded Turns, one per requested completion, all or none. A call that continues a
 * recorded conversation extends its recorded ids, so sampled text is never tokenised again. Turns are made from complete ids; a stream is
 * only a view of them. The engine's results are checked and copied before they become turns to train on.
 */
import { hash } from 'node:crypto';
import { yieldToEventLoop } from '../core/async.ts';
import type { Clock, DefaultModel } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import type { DialectName, Fork, Json, Message, SamplingSettings, Tool, Turn } from '../core/types.ts';
import { relate } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import { askDefaultModel, defaultModelOf, type Sampled } from './default-model.ts';
import type { ModelRequest } from './dialects/dialect.ts';
import type { StreamPiece } from './event-stream.ts';
import { conversationOf, type PrefilledPrompt, promptOf, sharedWith } from './prompt.ts';
import { type Caller, type Draw, effectiveSampling, type ModelCall, sealed } from './sessions.ts';

export interface SamplerParts {
  readonly engine: Engine;
  readonly renderer: Renderer;
  readonly clock: Clock;
}

/** What is known at the first token. */
export interface AnswerStart {
  readonly startedAt: number;
  readonly promptTokens: number;
  readonly seeds: readonly number[];
}

export interface StreamListener {
  /** Called before the first token; never called if nothing is sampled. */
  start(start: AnswerStart): void;
  push(choice: number, pieces: readonly StreamPiece[]): void;
}

export interface Asking {
  readonly caller: Caller;
  /** Absent for calls in process. */
  readonly dialect?: DialectName | undefined;
  readonly request: ModelRequest;
  readonly signal: AbortSignal;
  readonly call: ModelCall;
  readonly listener?: StreamListener | undefined;
}

type UnrecordedTurn = Omit<Turn, 'index'>;

const NO_PROMPT: PrefilledPrompt = { prompt: { promptIds: new Int32Array(0) } };

interface Source extends PrefilledPrompt {
  readonly model: DefaultModel | undefined;
  readonly trainable: boolean;
  readonly sampling: SamplingSettings;
}

export async function answer(parts: SamplerParts, asking: Asking): Promise<readonly Turn[]> {
  const { caller, request, signal, call } = asking;
  const { session } = caller;
  // Read once, because a role's trainability may change during the call.
  const role = session.role(caller.role);
  const model = role.trainable || role.default === undefined ? undefined : defaultModelOf(role.default);
  // A default model's completions are not trained, so it gets what the agent requested, then the run's settings.
  const wanted = model ? { ...session.spec.sampling, ...request.requested } : effectiveSampling(session, role, request.requested);
  const reservation = session.begin(request.count, model ? 0 : wanted.maxTokens);
  const draws: Draw[] = [];
  try {
    const prompt = model ? NO_PROMPT : promptOf(parts, caller, request);
    call.promptTokens = prompt.prompt.promptIds.length;
    const known = session.turns.length;
    const asked = model ? JSON.stringify([request.messages, request.tools]) : prompt.prompt.promptIds;
    while (draws.length < request.count) draws.push(session.seeds.draw(caller, asked));
    const sampling = model ? wanted : { ...wanted, maxTokens: reservation.maxTokens };
    const source = { ...prompt, model, trainable: role.trainable, sampling };
    const seeds = draws.map(({ seed }) => seed);
    const turns = await allOrNone(signal, seeds, turnsFrom(parts, asking, source, seeds));
    const fork = model ? undefined : (prompt.prompt.fork ?? forkMeanwhile(caller, request, known));
    return session.record(fork ? turns.map((turn) => ({ ...turn, fork })) : turns, call);
  } catch (thrown) {
    for (const draw of draws) draw.giveBack();
    session.keepUnanswered(call, thrown, signal);
    // Engines report a cancellation in their own words; the caller must learn that the rollout has ended.
    throw session.signal.aborted ? sealed(session.rolloutId) : thrown;
  } finally {
    reservation.release();
  }
}

type TurnFrom = (seed: number, choice: number, signal: AbortSignal) => Promise<UnrecordedTurn>;

function turnsFrom(parts: SamplerParts, asking: Asking, source: Source, seeds: readonly number[]): TurnFrom {
  const { caller, dialect, request, listener, call } = asking;
  const { session, thread, role } = caller;
  const { model, trainable, sampling, prompt } = source;
  const { startedAt } = call;
  const before = model ? latestTurn(caller) : session.turns[prompt.after ?? prompt.fork?.from ?? -1];
  const ignored = request.ignored.length > 0 ? { ignored: request.ignored } : {};
  const recorded = { ...(dialect === undefined ? {} : { dialect }), ...sharedWith(before, request), ...ignored };
  const push = listener && startingOnce(listener, { startedAt, promptTokens: prompt.promptIds.length, seeds });
  return async (seed, choice, signal) => {
    const onPieces = push && ((pieces: readonly StreamPiece[]) => push(choice, pieces));
    const said = model
      ? await askDefaultModel(model, request, signal, onPieces)
      : await sample(parts, asking, source, { seed, signal, onPieces });
    return {
      ...prompt,
      ...(model ? { model: model.name } : {}),
      ...said.ids,
      stopReason: said.stopReason,
      ...responseOf(parts, asking, seed, said.assistant),
      thread,
      role,
      trainable,
      sampling: { requested: request.requested, effective: sampling, seed },
      request: recorded,
      startedAt,
      endedAt: parts.clock.now(),
    };
  };
}

function latestTurn({ session, role, thread }: Caller): Turn | undefined {
  return session.turns.findLast((turn) => turn.role === role && turn.thread === thread);
}

/** Of concurrent calls in one conversation, all but the first to be recorded find that the conversation has moved on. */
function forkMeanwhile(caller: Caller, request: ModelRequest, known: number): Fork | undefined {
  const { session, role, thread } = caller;
  if (request.promptIds !== undefined) return undefined;
  const hasGoneOn = session.turns.slice(known).some((turn) => turn.role === role && turn.thread === thread);
  return hasGoneOn ? relate(session.turns, conversationOf(caller, request)).fork : undefined;
}

interface OneAnswer {
  readonly seed: number;
  readonly signal: AbortSignal;
  readonly onPieces: ((pieces: readonly StreamPiece[]) => void) | undefined;
}

async function sample(
  { engine, renderer }: SamplerParts,
  { caller, request: wanted, call }: Asking,
  { prompt, prefill, sampling }: Source,
  { seed, signal, onPieces }: OneAnswer,
): Promise<Sampled> {
  const { stopTexts, logprobs: wantsLogprobs } = wanted;
  const view = onPieces || stopTexts.length > 0 ? renderer.streamResponse(stopTexts, prefill) : undefined;
  let seen = 0;
  const tell = (ids: Int32Array, logprobs: Float32Array, from: number, to: number): void => {
    if (!wantsLogprobs || from >= to) return;
    onPieces?.([{ kind: 'tokens', ids: ids.subarray(from, to), logprobs: logprobs.subarray(from, to) }]);
  };
  const onTokens = (ids: Int32Array, logprobs: Float32Array) => {
    checkIds(ids, engine.vocabSize);
    const pieces = view!.push(ids);
    const kept = view!.stoppedAt === undefined ? ids.length : view!.stoppedAt - seen;
    call.sampledTokens += kept;
    seen += kept;
    tell(ids, logprobs, 0, kept);
    onPieces?.(pieces);
    return view!.stoppedAt === undefined ? undefined : { keep: kept };
  };
  // Copies, so that the engine cannot change what is recorded and trained.
  const promptIds = prompt.promptIds.slice();
  const affinity = caller.session.spec.identity.groupId;
  const how = engine.constrains && constrainedBy(wanted);
  const constraint = how && constraintOf(renderer, how, wanted.tools);
  const asked = { promptIds, sampling: { ...sampling }, stopIds: renderer.stopIds, seed, affinity };
  const request = constraint ? { ...asked, constraint } : asked;
  const servedBefore = engine.policyVersion;
  const given = await engine.sample(request, signal, view && onTokens);
  const kept = view?.stoppedAt === undefined ? undefined : seen;
  const expected = { engine, request: { ...request, sampling }, servedBefore, kept };
  const { ids, logprobs, redrawn, policyVersion, stopReason } = checkSampled(given, expected);
  await yieldToEventLoop();
  const assistant = renderer.readResponse(ids, stopTexts, prefill);
  const rest = view?.end(ids, assistant);
  tell(ids, logprobs, seen, ids.length);
  onPieces?.(rest ?? []);
  const constrained = redrawn && { constrained: { ...how, redrawn } };
  return { assistant, stopReason, ids: { sampledIds: ids, logprobs, policyVersion, ...constrained } };
}

type Constrained = Omit<NonNullable<Turn['constrained']>, 'redrawn'>;

/** A policy with tools may call one first, so its response need not be of the format. */
function constrainedBy({ forced, formatErrorOf, tools }: ModelRequest): Constrained | undefined {
  if (forced !== undefined) return forced.name === undefined ? {} : { tool: forced.name };
  return formatErrorOf && tools.length === 0 ? { format: formatErrorOf.schema as Json } : undefined;
}

/** The same constraint for a request and for the verification of its turn. */
export function constraintOf(renderer: Renderer, { format, tool }: Constrained, tools: readonly Tool[]) {
  return format === undefined ? renderer.callConstraint(tool, tools) : renderer.formatConstraint(format);
}

function responseOf({ renderer }: SamplerParts, { caller, request }: Asking, seed: number, said: Assistant) {
  const calls = said.toolCalls.map((call, i) => {
    return { id: toolCallId(renderer, caller, seed, i), type: 'function' as const, function: call };
  });
  // If the policy calls tools instead of answering, there is nothing to check yet.
  const formatError = said.content === null ? undefined : request.formatErrorOf?.(said.content);
  const response: Message = {
    role: 'assistant',
    content: said.content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(said.reasoning === undefined ? {} : { reasoning: said.reasoning }),
  };
  return { response, ...(formatError === undefined ? {} : { formatError }) };
}

/** The first failure cancels the others. It is thrown once they have all ended. */
async function allOrNone(signal: AbortSignal, seeds: readonly number[], start: TurnFrom): Promise<UnrecordedTurn[]> {
  if (seeds.length === 1) return [await start(seeds[0]!, 0, signal)];
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const running = seeds.map((seed, choice) => start(seed, choice, either));
  for (const one of running) one.catch((thrown) => failed.abort(thrown));
  await Promise.allSettled(running);
  failed.signal.throwIfAborted();
  return await Promise.all(running);
}

/** Ids are needed before a turn is complete, so they derive from its seed, unique in the rollout. A template may prescribe their length. */
export function toolCallId({ toolCallIdLength }: Renderer, { session }: Caller, seed: number, index: number): string {
  const name = `${session.rolloutId.replaceAll(/[^\w-]/g, '_')}_${seed.toString(36)}_${index}`;
  if (toolCallIdLength === undefined) return `call_${name}`;
  const letters = hash('sha256', name, 'base64').replaceAll(/[^A-Za-z0-9]/g, '');
  return letters.slice(0, toolCallIdLength);
}

function startingOnce(listener: StreamListener, start: AnswerStart): StreamListener['push'] {
  let started = false;
  return (choice, pieces) => {
    if (!started) listener.start(start);
    started = true;
    listener.push(choice, pieces);
  };
}

/** Rounding can lift the log-probability of a certain token slightly above 0. */
const ABOVE_ZERO = 1e-3;

interface Expected {
  readonly engine: Engine;
  readonly request: SampleRequest;
  readonly servedBefore: number;
  /** How many ids the listener kept, if it ended the sampling. */
  readonly kept: number | undefined;
}

/**
 * Checks an engine's result: ids in the vocabulary, a log-probability for each, no more than requested, a stop id exactly where the engine
 * reports one, redrawn positions under a constraint, and a policy version served meanwhile. Throws POLICY_GARBLED. Returns copies, because the engine may reuse its buffers.
 */
function checkSampled(result: SampleResult, { engine, request, servedBefore, kept }: Expected): SampleResult {
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
  const redrawn = request.constraint && checkRedrawn(result.redrawn, ids.length);
  return { ids, logprobs, ...(redrawn && { redrawn }), stopReason: stop >= 0 ? 'stop' : stopReason, policyVersion };
}

function checkRedrawn(redrawn: readonly number[] | undefined, length: number): readonly number[] {
  if (!isList(redrawn)) throw garbled('without naming what it redrew', 'the positions, since the request has a constraint');
  const positions = Array.from(redrawn);
  const bad = positions.find((position, i) => !(Number.isInteger(position) && position > (positions[i - 1] ?? -1)));
  const beyond = bad ?? positions.find((position) => position >= length);
  if (beyond !== undefined) throw garbled(`with redrawn position ${beyond}`, `rising ones below ${length}`);
  return positions;
}

function checkIds(ids: ArrayLike<number>, vocabSize: number): void {
  const bad = Array.prototype.findIndex.call(ids, (id: number) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (bad !== -1) throw garbled(`id ${ids[bad]}`, `ids below ${vocabSize}`);
}

const isList = (value: unknown): value is ArrayLike<number> => Array.isArray(value) || ArrayBuffer.isView(value);

function garbled(found: string, expected: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', `the engine sampled ${found}, expected ${expected}`, {
    hint: 'what it samples cannot be trained on; of a server, check its version and its base model against the model folder',
  });
}
