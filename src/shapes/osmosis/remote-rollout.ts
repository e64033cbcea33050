/**
 * Runs one rollout for a controller, from the queue to its grade. It always ends, and calls each hook at most once: `completed`, then
 * `graded`. It holds its concurrency permit until grading is over.
 */
import { deadlineSignal, orAborted, type Semaphore } from '../../core/async.ts';
import type { Grader, GraderInput, WorkflowResult } from '../../core/contracts.ts';
import { describeValue, printable } from '../../core/describe.ts';
import type { ErrorCode } from '../../core/error-codes.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { asJson, defined, isObject } from '../../core/json.ts';
import { toReward } from '../../core/reward.ts';
import { meanOf } from '../../core/statistics.ts';
import type { Message, Reward, RolloutIdentity, Task, Turn } from '../../core/types.ts';
import { graderInput, ungradedOf } from '../../grading/call.ts';
import { outcomeByCalls, resultOf, type SettledResult } from '../../rollout/record.ts';
import { runInSession, type StartedWorkflow } from '../../rollout/runner.ts';
import { jsonOnly } from './callbacks.ts';
import type {
  Completion,
  ErrorCategory,
  ExecutionHooks,
  GradedSample,
  Grading,
  RolloutRequest,
  RolloutState,
} from './execution.ts';
import { RemotePolicy } from './remote-policy.ts';

export interface RemoteParts {
  readonly started: StartedWorkflow;
  readonly grader: Grader | undefined;
  readonly graderSemaphore: Semaphore | undefined;
  readonly artifacts: string | undefined;
  /** Upper limit in seconds for a workflow or a grader, whatever the request asks for. */
  readonly longestSec: number;
}

export interface Progress {
  readonly cancel: AbortSignal;
  state: RolloutState;
  reward: number | null;
  errMessage: string | null;
}

export interface RemoteRollout extends RemoteParts {
  readonly request: RolloutRequest;
  readonly progress: Progress;
  readonly hooks: ExecutionHooks;
}

export async function runRemoteRollout(rollout: RemoteRollout): Promise<void> {
  const { request, progress, hooks } = rollout;
  const seconds = boundedSeconds(request.agentTimeoutSec, rollout.longestSec, 'agent_timeout_sec');
  const deadline = new Deadline('workflow', seconds, progress.cancel);
  let permit: Disposable | undefined;
  let isCompleted = false;
  try {
    permit = await deadline.acquire(rollout.started.concurrency);
    deadline.check();
    progress.state = 'running';
    const finished = await runWorkflow(rollout, deadline);
    isCompleted = true;
    await hooks.completed(SUCCESS);
    progress.state = request.grading ? 'grading' : progress.state;
    const grading = request.grading ? await grade(rollout, finished) : undefined;
    end(progress, grading ?? SUCCESS, grading);
    if (grading !== undefined) await hooks.graded(grading);
  } catch (thrown) {
    const failure = failureOf(thrown, request.llmApiKey);
    end(progress, failure);
    if (!isCompleted) await hooks.completed(failure);
    if (request.grading) await hooks.graded({ ...failure, samples: {} });
  } finally {
    permit?.[Symbol.dispose]();
  }
}

function end(progress: Progress, { status, errMessage }: Completion, grading?: Grading): void {
  progress.state = progress.cancel.aborted && status === 'failure' ? 'cancelled' : status;
  progress.errMessage = errMessage;
  const rewards = Object.values(grading?.samples ?? {}).flatMap(({ reward }) => reward ?? []);
  progress.reward = rewards.length === 0 ? null : meanOf(rewards);
}

async function runWorkflow({ started, artifacts, request, hooks }: RemoteRollout, deadline: Deadline): Promise<Finished> {
  const { rolloutId, chatCompletionsUrl: url, llmApiKey: apiKey } = request;
  const identity: RolloutIdentity = { rolloutId, groupId: rolloutId, taskId: rolloutId, purpose: 'train' };
  const { ending, session, own } = await runInSession(
    { ...started, deadlineMs: deadline.leftMs(), seed: 0, artifacts, clock: { now: Date.now }, signal: deadline.cancel },
    { identity, task: taskOf(request) },
    (signal, waits) => new RemotePolicy({ url, apiKey, fetch: hooks.fetch }, { ...UNBOUNDED, identity, signal, waits }),
  );
  deadline.check();
  if (ending.kind === 'deadline') throw deadline.exceeded();
  const rejected = own.rejected()?.message;
  if (ending.kind === 'threw' && rejected === undefined) throw ending.thrown;
  const warn = (text: string): void => hooks.warn(`rollout ${rolloutId}: ${text}`);
  const result = ending.kind === 'returned' ? returnedBy(ending.result, identity, warn) : {};
  const { turns } = session.calls;
  const byCalls = outcomeByCalls(session.calls);
  if (byCalls.kind === 'failed' && rejected === undefined) throw new TrainyardError(byCalls.code as ErrorCode, byCalls.message);
  const artifactsDir = own.artifactsDir();
  // Calls may go past us.
  const outcome = byCalls.kind === 'rejected' ? ({ kind: 'completed' } as const) : byCalls;
  const seen = graderInput(taskOf(request), { turns, outcome, result, artifactsDir });
  const threads = { ...result.threads, ...seen.threads };
  const messages = turns.length === 0 ? (Object.values(threads).at(-1) ?? []) : seen.messages;
  return { result, turns, input: { ...seen, threads, messages }, rejected };
}

/** The caller's policy has its own settings and limits. */
const UNBOUNDED = {
  roles: {},
  seed: 0,
  sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: Infinity },
  limits: { turns: Infinity, tokens: Infinity, deadlineMs: Infinity },
};

async function grade(rollout: RemoteRollout, finished: Finished): Promise<Grading> {
  const { request } = rollout;
  const { rejected } = finished;
  const removedAll = (why: string): Grading => {
    const samples = samplesOf(finished, request, undefined, true);
    // A rejected rollout is not a failure if it has samples: they are reported as removed and not trained.
    return { ...SUCCESS, ...(Object.keys(samples).length === 0 ? { status: 'failure' } : {}), errMessage: why, samples };
  };
  try {
    if (rejected !== undefined) return removedAll(`rejected by the workflow: ${rejected}`);
    const reward = await rewardOf(rollout, finished);
    if (reward === undefined) return removedAll('the grader removed every sample');
    return { ...SUCCESS, samples: samplesOf(finished, request, reward) };
  } catch (thrown) {
    return { ...failureOf(thrown, request.llmApiKey), samples: samplesOf(finished, request, undefined) };
  }
}

/** Undefined if the grader removed every sample. Throws the grader's own error, GRADER_FAILED or GRADER_BAD_REWARD. */
async function rewardOf(rollout: RemoteRollout, finished: Finished): Promise<Reward | undefined> {
  const { started, grader, request, progress } = rollout;
  const own = finished.result.reward;
  if (own !== undefined && (grader === undefined || started.workflow.grading === 'when-missing')) return own;
  if (grader === undefined) throw new TrainyardError('GRADER_FAILED', 'no grader: the backend was given none');
  if (request.label === null && request.metadata === null) {
    throw new TrainyardError('GRADER_FAILED', 'nothing to grade by: the request has neither label nor metadata');
  }
  const seconds = boundedSeconds(request.graderTimeoutSec, rollout.longestSec, 'grader_timeout_sec');
  const deadline = new Deadline('grader', seconds, progress.cancel);
  using _permit = await deadline.acquire(rollout.graderSemaphore);
  // A clone, so that a grader cannot change what is reported.
  const input = structuredClone(finished.input);
  const ctx = { signal: progress.cancel, model: undefined };
  const given: unknown = await deadline.within(async () => grader.grade(input, ctx));
  const reward = ungradedOf(given) === undefined ? toReward(given) : undefined;
  const unknown = Object.keys(reward?.byThread ?? {}).find((name) => !Object.hasOwn(input.threads, name));
  if (unknown === undefined) return reward;
  const found = `a reward is for the thread ${describeValue(unknown)}, which the rollout does not have`;
  throw new TrainyardError('GRADER_BAD_REWARD', found);
}

function taskOf({ rolloutId, initialMessages, metadata, label }: RolloutRequest): Task {
  return {
    id: rolloutId,
    prompt: initialMessages,
    ...(metadata === null ? {} : { metadata }),
    ...(label === null ? {} : { answer: label }),
  };
}

/** Shorter waits in the queue are not mentioned in errors. */
const WORTH_A_WORD_MS = 100;

/** Starts now. Any outcome after it is late, even a result or a swallowed abort. Work cannot be stopped, only signalled and abandoned. */
class Deadline {
  readonly cancel: AbortSignal;
  readonly #what: string;
  readonly #seconds: number;
  readonly #startedAt = performance.now();
  #queuedMs = 0;

  /** `seconds` of 0 or less means already exceeded. */
  constructor(what: 'workflow' | 'grader', seconds: number, cancel: AbortSignal) {
    this.#what = what;
    this.#seconds = seconds;
    this.cancel = cancel;
  }

  /** The wait for a permit counts towards the deadline. */
  async acquire(semaphore: Semaphore | undefined): Promise<Disposable | undefined> {
    this.check();
    const queuedMs = (): number => performance.now() - this.#startedAt;
    using limit = deadlineSignal(this.leftMs(), () => this.exceeded(queuedMs()), this.cancel);
    const permit = await semaphore?.acquire(limit.signal);
    this.#queuedMs = queuedMs();
    return permit;
  }

  /** Throws a TimeoutError after the deadline, or the reason of `cancel` if it aborts first. */
  async within<T>(work: () => Promise<T>): Promise<T> {
    this.check();
    using limit = deadlineSignal(this.leftMs(), () => this.exceeded(), this.cancel);
    const [settled] = await Promise.allSettled([orAborted(work(), limit.signal)]);
    this.check();
    if (settled.status === 'rejected') throw settled.reason;
    return settled.value;
  }

  check(): void {
    this.cancel.throwIfAborted();
    if (this.leftMs() <= 0) throw this.exceeded();
  }

  leftMs(): number {
    return this.#startedAt + this.#seconds * 1000 - performance.now();
  }

  exceeded(queuedMs = this.#queuedMs): Error {
    const suffix = queuedMs < WORTH_A_WORD_MS ? '' : ` (${(queuedMs / 1000).toFixed(1)}s of it spent queued)`;
    return new DOMException(`${this.#what} exceeded its ${this.#seconds.toFixed(1)}s deadline${suffix}`, 'TimeoutError');
  }
}

/** Throws REQUEST_INVALID for a number that is not finite. */
function boundedSeconds(given: number | null, most: number, param: string): number {
  if (given !== null && !Number.isFinite(given)) {
    throw new TrainyardError('REQUEST_INVALID', `${param} is ${given}, expected a finite number of seconds or null`, { param });
  }
  return Math.min(given ?? most, most);
}

// Each conversation is reported as a sample, named by its thread. The turns are recorded in the controller's process, which decides which
// of them to train; rewards by turn are not sent.

type Threads = Readonly<Record<string, readonly Message[]>>;

/** What the workflow returned, including its own view of the conversations. */
type Returned = Omit<SettledResult, 'trainedTurns'> & { readonly threads?: Threads };

interface Finished {
  readonly result: Returned;
  readonly turns: readonly Turn[];
  /** Each conversation as it went over the wire, as in a run; if it did not go through the rollout's model, as the workflow returned it. */
  readonly input: GraderInput;
  readonly rejected: string | undefined;
}

const MOST_JSON = 16 * 1024 * 1024;
/** The thread of a client that names none. */
const UNNAMED = 'default';

/** Throws WORKFLOW_BAD_RESULT. Metrics and metadata that are not JSON are dropped with a warning: they are no reason to lose a reward. */
function returnedBy(value: unknown, identity: RolloutIdentity, warn: (text: string) => void): Returned {
  if (!isObject(value)) return resultOf(value, identity, []);
  const { reward, trainedTurns: _, threads, metadata, metrics, ...rest } = value as WorkflowResult;
  const json = defined({
    metadata: metadata && jsonOnly(metadata, 'metadata', warn),
    metrics: metrics && jsonOnly(metrics, 'metrics', warn),
  });
  return {
    ...resultOf({ ...rest, ...json }, identity, []),
    ...(reward == null ? {} : { reward: toReward(withoutTurns(reward), 'run') }),
    ...(threads === undefined ? {} : { threads: threadsOf(threads) }),
  };
}

const withoutTurns = (reward: NonNullable<WorkflowResult['reward']>): unknown =>
  isObject(reward) && 'byTurn' in reward ? { ...reward, byTurn: undefined } : reward;

function threadsOf(given: unknown): Threads {
  const copy = asJson(given, MOST_JSON);
  if (isObject(copy) && Object.values(copy).every(Array.isArray)) return copy as unknown as Threads;
  throw new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    'run returned threads that are not lists of messages as JSON, by thread',
    'write threads: { name: [{ role, content }, …] }',
  );
}

/** `reward` undefined: no sample gets a reward, as after a failure. */
function samplesOf(
  { result, turns, input: { threads } }: Finished,
  { label }: RolloutRequest,
  reward: Reward | undefined,
  areRemoved = false,
): Readonly<Record<string, GradedSample>> {
  const sample = (thread: string, messages: readonly Message[]): GradedSample => {
    const role = turns.findLast((turn) => turn.thread === thread)?.role ?? thread;
    const removed = areRemoved || (reward?.untrained?.includes(thread) ?? false);
    const earned = own(reward?.byThread, thread) ?? own(reward?.byRole, role) ?? reward?.value ?? null;
    const metrics = { ...result.metrics, ...reward?.parts };
    return { messages, label, reward: removed ? null : earned, removed, metrics, extraFields: { ...result.metadata } };
  };
  const known = Object.entries(threads);
  // A workflow that called the policy with its own client, by URL, also earned its reward.
  const all = known.length === 0 && reward !== undefined ? [[UNNAMED, []] as const] : known;
  return Object.fromEntries(all.map(([thread, messages]) => [thread, sample(thread, messages)]));
}

/** Guards against threads named like a property of every object. */
function own(rewards: Readonly<Record<string, number>> = {}, name: string): number | undefined {
  return Object.hasOwn(rewards, name) ? rewards[name] : undefined;
}

const SUCCESS: Completion = { status: 'success', errMessage: null, errCategory: null };

const LONGEST_MESSAGE = 2000;
const OF_CODES: Partial<Record<ErrorCode, ErrorCategory>> = {
  GRADER_TIMEOUT: 'timeout',
  ENGINE_FAILED: 'http_error',
  POLICY_UNREACHABLE: 'http_error',
  POLICY_REFUSED: 'http_error',
  POLICY_GARBLED: 'http_error',
  DEFAULT_MODEL_FAILED: 'http_error',
  WORKFLOW_BAD_RESULT: 'validation_error',
  GRADER_BAD_REWARD: 'validation_error',
  REQUEST_INVALID: 'validation_error',
};
const VALIDATION = new Set(['TypeError', 'RangeError', 'SyntaxError', 'AssertionError', 'ZodError', 'ValidationError']);
/** Error codes of Node's sockets and resolver, and of the clients that wrap them. */
const CONNECTION = /^(?:E(?:CONN|HOST|NET|PIPE|TIMEDOUT|AI_)|ENOTFOUND|UND_ERR)/;

/** Replaces `secret` in the message, so that it never reaches the controller. */
function failureOf(thrown: unknown, secret: string | null): Completion {
  const found =
    thrown instanceof Error ? messageOf(thrown) || thrown.name : `a value that is not an Error: ${describeValue(thrown)}`;
  const message = secret ? printable(found).replaceAll(secret, '[key]') : printable(found);
  return { status: 'failure', errMessage: message.slice(0, LONGEST_MESSAGE), errCategory: categoryOf(thrown) };
}

function categoryOf(thrown: unknown): ErrorCategory {
  if (thrown instanceof TrainyardError) return OF_CODES[thrown.code] ?? 'agent_error';
  const { name, status, code, cause } = (thrown ?? {}) as Partial<Record<'name' | 'status' | 'code' | 'cause', unknown>>;
  if (name === 'TimeoutError') return 'timeout';
  if (typeof status === 'number' && status >= 300) return 'http_error';
  if (typeof code === 'string' && CONNECTION.test(code)) return 'http_error';
  // Clients throw "Connection error." and keep the real error as its cause.
  if (cause !== undefined && cause !== thrown && categoryOf(cause) === 'http_error') return 'http_error';
  return VALIDATION.has(String(name)) ? 'validation_error' : 'agent_error';
}
