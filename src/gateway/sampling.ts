/**
 * One model request: prompt ids → the engine's ids → recorded Turns, one per requested completion, all or none. A call that continues a
 * recorded conversation extends its recorded ids, so sampled text is never tokenised again. Turns are made from complete ids; a stream is
 * only a view of them. The engine's results are checked and copied before they become turns to train on; turns that were recorded
 * elsewhere pass the same checks.
 */
import { hash } from 'node:crypto';
import { yieldToEventLoop } from '../core/async.ts';
import type { Clock, DefaultModel, DefaultModelLike, Role } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { checkRequest, type Engine, type SampleRequest, type SampleResult } from '../core/policy.ts';
import { completionId } from '../core/turns.ts';
import type { DialectName, Fork, Message, SamplingSettings, Tool, Turn } from '../core/types.ts';
import { relate } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Assistant } from '../tokens/response-parser.ts';
import { askDefaultModel, defaultModelOf, type Sampled } from './default-model.ts';
import type { ModelRequest } from './dialects/dialect.ts';
import type { StreamPiece } from './event-stream.ts';
import { conversationOf, type PrefilledPrompt, promptOf, sharedWith } from './prompt.ts';
import { type Caller, type Draw, effectiveSampling, type ModelCall, sealed } from './sessions.ts';

export interface TokenPolicy {
  readonly engine: Engine;
  readonly renderer: Renderer;
}

/** A policy behind an API, known by its messages only. It plays every role that has no default model of its own. */
export interface ServedPolicy {
  readonly model: DefaultModelLike;
  /** Overrides what agents ask for. Default: what they ask for, else the run's. */
  readonly temperature?: number | undefined;
  /** Whether it is asked in its agents' own words, with their settings only. */
  readonly asAsked?: true;
}

/** What was said before. Answers every role's calls in place of the policy and of default models. */
export interface RecordedAnswers {
  /** The recorded turn that answers this request, each once. Throws what the client gets if there is none. */
  next(caller: Pick<Caller, 'role' | 'thread'>, request: Pick<ModelRequest, 'messages' | 'tools' | 'promptIds'>): Turn;
}

export type SamplerParts = (TokenPolicy | ServedPolicy) & { readonly clock: Clock; readonly recorded?: RecordedAnswers };

/** Throws REQUEST_INVALID if the policy is behind an API. `what`: what needs its tokens. */
export function tokenPolicy(policy: TokenPolicy | ServedPolicy, what: string, param?: string): TokenPolicy {
  if ('engine' in policy) return policy;
  throw new TrainyardError(
    'REQUEST_INVALID',
    `${what} needs the policy's tokens, and ${defaultModelOf(policy.model).name} is behind an API`,
    {
      hint: 'give and read messages, or sample the embedded policy or one at a Tinker server',
      ...(param === undefined ? {} : { param }),
    },
  );
}

/** What is known at the first token. */
export interface AnswerStart {
  readonly id: string;
  readonly startedAt: number;
  readonly promptTokens: number;
  readonly seeds: readonly number[];
}

export interface StreamListener {
  /** Called before the first token; never called if nothing is sampled. */
  start(start: AnswerStart): void;
  push(choice: number, pieces: readonly StreamPiece[]): void;
}

interface Asking {
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
  /** What the model is asked for, if it is not sampled here. */
  readonly sent: Partial<SamplingSettings>;
}

interface Wanted {
  /** Undefined if the policy is sampled here. */
  readonly model: DefaultModel | undefined;
  readonly sampling: SamplingSettings;
  readonly sent: Partial<SamplingSettings>;
  /** Tokens to reserve of the rollout's limit, per completion. */
  readonly reserved: number;
}

function wantedOf(
  parts: SamplerParts,
  { session }: Caller,
  role: Role,
  { requested, logprobs, promptIds }: ModelRequest,
): Wanted {
  const run = session.spec.sampling;
  if (!role.trainable && role.default !== undefined) {
    // A default model's completions are not trained, so it gets what the agent requested, then its own settings.
    return { model: defaultModelOf(role.default), sampling: { ...run, ...requested }, sent: requested, reserved: 0 };
  }
  if ('engine' in parts) {
    const sampling = effectiveSampling(run, role.trainable, requested);
    return { model: undefined, sampling, sent: {}, reserved: sampling.maxTokens };
  }
  if (logprobs) tokenPolicy(parts, 'logprobs', 'logprobs');
  if (promptIds !== undefined) tokenPolicy(parts, 'promptIds', 'promptIds');
  if (parts.asAsked)
    return { model: defaultModelOf(parts.model), sampling: { ...run, ...requested }, sent: requested, reserved: 1 };
  // A judge that asks the policy keeps its own temperature.
  const temperature = (role.trainable ? parts.temperature : undefined) ?? requested.temperature ?? run.temperature;
  const maxTokens = Math.min(run.maxTokens, requested.maxTokens ?? run.maxTokens);
  // Some servers refuse a number of tokens that does not fit beside the prompt, so it is sent only if someone asked for one.
  const isAsked = requested.maxTokens !== undefined || maxTokens < session.spec.limits.tokens;
  const sent = { ...requested, temperature, ...(isAsked ? { maxTokens } : {}) };
  return { model: defaultModelOf(parts.model), sampling: { ...run, ...requested, temperature, maxTokens }, sent, reserved: 1 };
}

export async function answer(parts: SamplerParts, asking: Asking): Promise<readonly Turn[]> {
  const { caller, request, signal, call } = asking;
  const { session } = caller;
  if (parts.recorded) return sayAgain(parts.recorded, asking, parts.clock);
  // Read once, because a role's trainability may change during the call.
  const role = session.role(caller.role);
  const { model, sampling: wanted, sent, reserved } = wantedOf(parts, caller, role, request);
  const reservation = session.begin(request.count, reserved);
  const draws: Draw[] = [];
  try {
    const prompt = model ? NO_PROMPT : promptOf(tokenPolicy(parts, 'sampling'), caller, request);
    call.promptTokens = prompt.prompt.promptIds.length;
    const known = session.turns.length;
    const asked = model ? JSON.stringify([request.messages, request.tools]) : prompt.prompt.promptIds;
    while (draws.length < request.count) draws.push(session.seeds.draw(caller, asked));
    const sampling = model ? wanted : { ...wanted, maxTokens: reservation.maxTokens };
    const source = { ...prompt, model, trainable: role.trainable, sampling, sent };
    const seeds = draws.map(({ seed }) => seed);
    const turns = await allOrNone(signal, seeds, turnsFrom(parts, asking, source, seeds));
    const fork = model ? undefined : (prompt.prompt.fork ?? forkMeanwhile(caller, request, known));
    if (model && reserved > 0) for (const { usage } of turns) session.sampledTokens += usage?.completionTokens ?? 0;
    return session.record(fork ? turns.map((turn) => ({ ...turn, fork })) : turns, call);
  } catch (thrown) {
    for (const draw of draws) draw.giveBack();
    session.keepUnanswered(call, thrown, signal);
    // Engines report a cancellation in their own words; the caller must learn that the rollout has ended.
    if (session.signal.aborted) throw sealed(session.rolloutId);
    throw model && reserved > 0 ? ofPolicy(thrown) : thrown;
  } finally {
    reservation.release();
  }
}

/** The turns as they were recorded, with their ids, tokens and seeds; only the request is this one. */
function sayAgain(recorded: RecordedAnswers, { caller, dialect, request, call }: Asking, clock: Clock): readonly Turn[] {
  const { messages, tools, count } = request;
  const reservation = caller.session.begin(count, 0);
  try {
    const turns = Array.from({ length: count }, () => recorded.next(caller, request));
    const asked = { messages, tools, ...(dialect === undefined ? {} : { dialect }) };
    const times = { startedAt: call.startedAt, endedAt: clock.now() };
    return caller.session.record(
      turns.map(({ undelivered: _, ...turn }) => ({ ...turn, ...times, request: asked })),
      call,
    );
  } finally {
    reservation.release();
  }
}

/** The same failure, of the model that a run measures instead of one that plays a role beside it. As its cause, it says what was tried. */
function ofPolicy(thrown: unknown): unknown {
  if (!(thrown instanceof TrainyardError) || thrown.code !== 'DEFAULT_MODEL_FAILED') return thrown;
  return new TrainyardError('ENGINE_FAILED', thrown.message.replace(/^default model /, 'model '), {
    cause: thrown,
    hint: 'check --base-url, --model and the key in the variable that --api-key-env names',
  });
}

type TurnFrom = (seed: number, choice: number, signal: AbortSignal) => Promise<UnrecordedTurn>;

function turnsFrom(parts: SamplerParts, asking: Asking, source: Source, seeds: readonly number[]): TurnFrom {
  const { caller, dialect, request, listener, call } = asking;
  const { session, thread, role } = caller;
  const { model, trainable, sampling, prompt } = source;
  const { startedAt } = call;
  const before = model ? latestTurn(caller) : session.turns[prompt.after ?? prompt.fork?.from ?? -1];
  const ignored = request.ignored.length > 0 ? { ignored: request.ignored } : {};
  const words = sharedWith(before, request, prompt.after !== undefined);
  const recorded = { ...(dialect === undefined ? {} : { dialect }), ...words, ...ignored };
  const push =
    listener &&
    startingOnce(listener, {
      id: completionId(session.spec.identity, seeds[0]!),
      startedAt,
      promptTokens: prompt.promptIds.length,
      seeds,
    });
  return async (seed, choice, signal) => {
    const onPieces = push && ((pieces: readonly StreamPiece[]) => push(choice, pieces));
    const said = model
      ? await askDefaultModel(
          model,
          { ...request, requested: source.sent },
          { signal, waits: session.spec.waits, thread },
          onPieces,
        )
      : await sample(tokenPolicy(parts, 'sampling'), asking, source, { seed, signal, onPieces });
    return {
      ...prompt,
      ...(model ? { model: model.name } : {}),
      ...(said.usage ? { usage: said.usage } : {}),
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
  { engine, renderer }: TokenPolicy,
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
  const { given, versions } = await sampledBy(engine, request, signal, view && onTokens);
  const kept = view?.stoppedAt === undefined ? undefined : seen;
  const expected = { engine, request: { ...request, sampling }, versions, kept };
  const { ids, logprobs, policyVersion, stopReason } = checkSampled(given, expected);
  await yieldToEventLoop();
  const assistant = renderer.readResponse(ids, stopTexts, prefill);
  const rest = view?.end(ids, assistant);
  tell(ids, logprobs, seen, ids.length);
  onPieces?.(rest ?? []);
  const constrained = constraint && how ? { constrained: how } : {};
  return { assistant, stopReason, ids: { sampledIds: ids, logprobs, policyVersion, ...constrained } };
}

/** With the policy's versions before and after. Whatever an engine throws is its failure, for the client as in `unanswered`; a call that was given up ends with its signal's reason. */
async function sampledBy(engine: Engine, ...asked: Parameters<Engine['sample']>) {
  const before = engine.policyVersion;
  try {
    const given = await engine.sample(...asked);
    return { given, versions: [before, engine.policyVersion] };
  } catch (cause) {
    if (cause instanceof TrainyardError || asked[1]?.aborted) throw cause;
    throw new TrainyardError('ENGINE_FAILED', messageOf(cause), { cause });
  }
}

/** A policy with tools may call one first, so its response need not be of the format. */
function constrainedBy({ forced, formatErrorOf, tools }: ModelRequest): Turn['constrained'] {
  if (forced !== undefined) return forced.name === undefined ? {} : { tool: forced.name };
  return formatErrorOf && tools.length === 0 ? { format: formatErrorOf.format.schema ?? { type: 'object' } } : undefined;
}

/** The same constraint for a request and for the verification of its turn. */
export function constraintOf(renderer: Renderer, { format, tool }: NonNullable<Turn['constrained']>, tools: readonly Tool[]) {
  return format === undefined ? renderer.callConstraint(tool, tools) : renderer.formatConstraint(format);
}

function responseOf(parts: SamplerParts, { caller, request }: Asking, seed: number, said: Assistant) {
  // If the policy calls tools instead of answering, there is nothing to check yet.
  const formatError = said.content === null ? undefined : request.formatErrorOf?.(said.content);
  const response = spokenMessage(parts, caller.session.rolloutId, seed, said);
  return { response, ...(formatError === undefined ? {} : { formatError }) };
}

/** What was said, as a message: the same for a response and for the verification of its turn. */
export function spokenMessage(parts: PartsOfIds, rolloutId: string, seed: number, said: Assistant): Message {
  const calls = said.toolCalls.map(({ id, ...call }, i) => {
    return { id: id ?? toolCallId(parts, rolloutId, seed, i), type: 'function' as const, function: call };
  });
  return {
    role: 'assistant',
    content: said.content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(said.reasoning === undefined ? {} : { reasoning: said.reasoning }),
  };
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

type PartsOfIds = Pick<TokenPolicy, 'renderer'> | Pick<ServedPolicy, 'model'>;

/** Ids are needed before a turn is complete, so they derive from its seed, unique in the rollout. A template may prescribe their length. */
export function toolCallId(parts: PartsOfIds, rolloutId: string, seed: number, index: number): string {
  const name = `${rolloutId.replaceAll(/[^\w-]/g, '_')}_${seed.toString(36)}_${index}`;
  const toolCallIdLength = 'renderer' in parts ? parts.renderer.toolCallIdLength : undefined;
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
  readonly engine: Pick<Engine, 'vocabSize' | 'contextLength'>;
  readonly request: SampleRequest;
  /** Of the policy, when it was asked and when it had answered. */
  readonly versions: readonly number[];
  /** How many ids the listener kept, if it ended the sampling. */
  readonly kept: number | undefined;
}

/**
 * Checks an engine's result: ids in the vocabulary, a log-probability for each, no more than requested, a stop id exactly where the engine
 * reports one, and a policy version served meanwhile. Throws POLICY_GARBLED. Returns copies, because the engine may reuse its buffers.
 */
function checkSampled(result: SampleResult, { engine, request, versions, kept }: Expected): SampleResult {
  const { ids: givenIds, logprobs: given, stopReason, policyVersion } = result ?? {};
  if (!isList(givenIds) || givenIds.length === 0) throw garbled('no ids', 'at least one');
  if (!isList(given) || given.length !== givenIds.length) {
    throw garbled(`${isList(given) ? given.length : 'no'} log-probabilities`, `one for each of the ${givenIds.length} ids`);
  }
  checkIds(givenIds, engine.vocabSize);
  // Not `from`, which goes through an iterator.
  const ids = new Int32Array(givenIds);
  const logprobs = new Float32Array(given);
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
  const oldest = Math.min(...versions);
  const newest = Math.max(...versions);
  if (!(Number.isSafeInteger(policyVersion) && policyVersion >= oldest && policyVersion <= newest)) {
    throw garbled(`from policy version ${policyVersion}`, `version ${oldest === newest ? newest : `${oldest} to ${newest}`}`);
  }
  return { ids, logprobs, stopReason: stop >= 0 ? 'stop' : stopReason, policyVersion };
}

/** What a turn must fit that was recorded in another process. */
export interface RecordedElsewhere extends Pick<Expected, 'versions'> {
  readonly policy: TokenPolicy | ServedPolicy;
  /** The run's, for trainable roles. */
  readonly sampling: SamplingSettings;
}

/** Throws what would have been thrown here, had this been asked or sampled: POLICY_GARBLED, REQUEST_INVALID, CONTEXT_OVERFLOW. */
export function checkRecorded(turn: Turn, { policy, sampling, versions }: RecordedElsewhere): void {
  const { promptIds, sampledIds: ids } = turn;
  const { requested, effective, seed } = turn.sampling;
  if (turn.model !== undefined) {
    if (promptIds.length + ids.length > 0) throw garbled(`ids of ${turn.model}`, 'none of a model that is known by its messages');
    if ('engine' in policy && turn.trainable) throw garbled(`what ${turn.model} said, to be trained`, 'the policy');
    return;
  }
  const { engine, renderer } = tokenPolicy(policy, 'a turn without the name of its model');
  const request = { promptIds, sampling: effective, stopIds: renderer.stopIds, seed };
  checkRequest(request, engine);
  // Whether a text ended it is not recorded.
  checkSampled({ ...turn, ids }, { engine, request, versions, kept: ids.length });
  if (!turn.trainable) return;
  const due = effectiveSampling(sampling, true, requested);
  for (const name of ['temperature', 'topP', 'topK', 'maxTokens'] as const) {
    const isDue = name === 'maxTokens' ? effective[name] <= due[name] : effective[name] === due[name];
    if (!isDue) throw garbled(`with ${name} ${effective[name]}`, `${due[name]}, as was asked`);
  }
}

function checkIds(ids: ArrayLike<number>, vocabSize: number): void {
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i]!;
    if (!(Number.isInteger(id) && id >= 0 && id < vocabSize)) throw garbled(`id ${id}`, `ids below ${vocabSize}`);
  }
}

const isList = (value: unknown): value is ArrayLike<number> => Array.isArray(value) || ArrayBuffer.isView(value);

function garbled(found: string, expected: string): TrainyardError {
  return new TrainyardError(
    'POLICY_GARBLED',
    `the engine sampled ${found}, expected ${expected}`,
    'what it samples cannot be trained on; of a server, check its version and its base model against the model folder',
  );
}
