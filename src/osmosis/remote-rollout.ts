/**
 * One rollout for a controller, from the queue to its grade. It always ends, and the hooks are told how: the workflow's end once, the grade
 * once, in that order. A permit is held all the while.
 */
import { deadlineSignal, orAborted, type Semaphore } from '../core/async.ts';
import type { Grader } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { toReward } from '../core/reward.ts';
import type { Reward, RolloutIdentity, Task } from '../core/types.ts';
import { ungradedOf } from '../grader/call.ts';
import { runInSession, type StartedWorkflow } from '../rollout/runner.ts';
import type { Completion, ExecutionHooks, Grading, RolloutRequest, RolloutState } from './execution.ts';
import { type Finished, failureOf, finishedWith, graderInputOf, returnedBy, SUCCESS, samplesOf } from './graded-samples.ts';
import { RemotePolicy } from './remote-policy.ts';

export interface RemoteParts {
  readonly started: StartedWorkflow;
  readonly grader: Grader | undefined;
  readonly graderSlots: Semaphore | undefined;
  readonly artifacts: string | undefined;
  /** Seconds that a workflow or a grader may take, whatever is asked for. */
  readonly longestSec: number;
}

/** Where a rollout stands. */
export interface Progress {
  readonly cancel: AbortSignal;
  state: RolloutState;
  reward: number | null;
  errMessage: string | null;
}

export async function runRemoteRollout(
  parts: RemoteParts,
  request: RolloutRequest,
  progress: Progress,
  hooks: ExecutionHooks,
): Promise<void> {
  const deadline = new Deadline('workflow', boundedSeconds(request.agentTimeoutSec, parts.longestSec, 'agent_timeout_sec'));
  let permit: Disposable | undefined;
  let isCompleted = false;
  try {
    permit = await deadline.acquire(parts.started.concurrency, progress.cancel);
    progress.state = 'running';
    const { finished, rejected } = await runWorkflow(parts, request, progress.cancel, hooks, deadline);
    isCompleted = true;
    await hooks.completed(SUCCESS);
    progress.state = request.grading ? 'grading' : progress.state;
    const grading = request.grading ? await grade(parts, request, progress.cancel, finished, rejected) : undefined;
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
  progress.reward = rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

async function runWorkflow(
  { started, artifacts }: RemoteParts,
  request: RolloutRequest,
  cancel: AbortSignal,
  hooks: ExecutionHooks,
  deadline: Deadline,
): Promise<{ readonly finished: Finished; readonly rejected: string | undefined }> {
  const { rolloutId, chatCompletionsUrl: url, llmApiKey: apiKey } = request;
  const identity: RolloutIdentity = { rolloutId, groupId: rolloutId, taskId: rolloutId, purpose: 'train' };
  const { ending, session, own } = await runInSession(
    { ...started, deadlineMs: deadline.leftMs(), seed: 0, artifacts, clock: { now: Date.now }, signal: cancel },
    { identity, task: taskOf(request) },
    (signal) => new RemotePolicy({ url, apiKey, rolloutId, fetch: hooks.fetch, signal }),
  );
  deadline.check(cancel);
  if (ending.kind === 'deadline') throw deadline.exceeded();
  const rejected = own.rejected()?.message;
  if (ending.kind === 'threw' && rejected === undefined) throw ending.thrown;
  const warn = (text: string): void => hooks.warn(`rollout ${rolloutId}: ${text}`);
  const result = ending.kind === 'returned' ? returnedBy(ending.result, identity, warn) : {};
  return { finished: finishedWith(result, session.calls, own.artifactsDir()), rejected };
}

async function grade(
  parts: RemoteParts,
  request: RolloutRequest,
  cancel: AbortSignal,
  finished: Finished,
  rejected: string | undefined,
): Promise<Grading> {
  const removedAll = (why: string): Grading => {
    const samples = samplesOf(finished, request, undefined, true);
    // Nothing to train, and nobody's failure, where there is something that was taken out.
    return { ...SUCCESS, ...(Object.keys(samples).length === 0 ? { status: 'failure' } : {}), errMessage: why, samples };
  };
  try {
    if (rejected !== undefined) return removedAll(`rejected by the workflow: ${rejected}`);
    const reward = await rewardOf(parts, request, cancel, finished);
    if (reward === undefined) return removedAll('the grader removed every sample');
    return { ...SUCCESS, samples: samplesOf(finished, request, reward) };
  } catch (thrown) {
    return { ...failureOf(thrown, request.llmApiKey), samples: samplesOf(finished, request, undefined) };
  }
}

/** Undefined where the grader took everything out. Throws what the grader threw, GRADER_FAILED or GRADER_BAD_REWARD. */
async function rewardOf(
  { started, grader, graderSlots, longestSec }: RemoteParts,
  request: RolloutRequest,
  cancel: AbortSignal,
  finished: Finished,
): Promise<Reward | undefined> {
  const own = finished.result.reward;
  if (own !== undefined && (grader === undefined || started.workflow.grading === 'when-missing')) return own;
  if (grader === undefined) throw new TrainyardError('GRADER_FAILED', 'no grader: the backend was given none');
  if (request.label === null && request.metadata === null) {
    throw new TrainyardError('GRADER_FAILED', 'nothing to grade by: the request has neither label nor metadata');
  }
  const deadline = new Deadline('grader', boundedSeconds(request.graderTimeoutSec, longestSec, 'grader_timeout_sec'));
  using _permit = await deadline.acquire(graderSlots, cancel);
  const input = graderInputOf(taskOf(request), finished);
  const given: unknown = await deadline.within(cancel, async () => grader.grade(input, { signal: cancel, model: undefined }));
  const reward = ungradedOf(given) === undefined ? toReward(given) : undefined;
  const unknown = Object.keys(reward?.byThread ?? {}).find((name) => !Object.hasOwn(finished.threads, name));
  if (unknown === undefined) return reward;
  throw new TrainyardError(
    'GRADER_BAD_REWARD',
    `a reward is for the thread ${describeValue(unknown)}, which the rollout does not have`,
  );
}

function taskOf({ rolloutId, initialMessages, metadata, label }: RolloutRequest): Task {
  return {
    id: rolloutId,
    prompt: initialMessages,
    ...(metadata === null ? {} : { metadata }),
    ...(label === null ? {} : { answer: label }),
  };
}

// ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Shorter waits in a queue are not worth a word. */
const WORTH_A_WORD_MS = 100;

/** By the name that every platform gives to what took too long. */
class DeadlineError extends Error {
  override readonly name = 'TimeoutError';
}

/**
 * A window of time that work must keep to, from now on. What comes back after its end is late, however it comes: an abort that was swallowed,
 * an event loop that was blocked, an error. The work itself cannot be stopped, only told and left behind.
 */
export class Deadline {
  readonly #what: string;
  readonly #seconds: number;
  readonly #startedAt = performance.now();
  #queuedMs = 0;

  /** 0 and less: it is over already. */
  constructor(what: 'workflow' | 'grader', seconds: number) {
    this.#what = what;
    this.#seconds = seconds;
  }

  /** Waits for a permit; the wait is part of the window. Without a semaphore there is no wait. */
  async acquire(slots: Semaphore | undefined, cancel: AbortSignal): Promise<Disposable | undefined> {
    this.check(cancel);
    const since = performance.now();
    using limit = deadlineSignal(this.leftMs(), () => this.exceeded(performance.now() - since), cancel);
    const permit = await slots?.acquire(limit.signal);
    this.#queuedMs = performance.now() - since;
    try {
      this.check(cancel);
      return permit;
    } catch (thrown) {
      permit?.[Symbol.dispose]();
      throw thrown;
    }
  }

  /** Throws a TimeoutError when it is over, the reason of `cancel` when that came first. */
  async within<T>(cancel: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    this.check(cancel);
    using limit = deadlineSignal(this.leftMs(), () => this.exceeded(), cancel);
    const [settled] = await Promise.allSettled([orAborted(work(limit.signal), limit.signal)]);
    this.check(cancel);
    if (settled.status === 'rejected') throw settled.reason;
    return settled.value;
  }

  /** Throws where it is over, or was cancelled. */
  check(cancel: AbortSignal): void {
    cancel.throwIfAborted();
    if (this.leftMs() <= 0) throw this.exceeded();
  }

  leftMs(): number {
    return this.#startedAt + this.#seconds * 1000 - performance.now();
  }

  exceeded(waitingMs = 0): DeadlineError {
    const queued = this.#queuedMs + waitingMs;
    const suffix = queued < WORTH_A_WORD_MS ? '' : ` (${(queued / 1000).toFixed(1)}s of it spent queued)`;
    return new DeadlineError(`${this.#what} exceeded its ${this.#seconds.toFixed(1)}s deadline${suffix}`);
  }
}

/** Seconds up to a maximum. Throws REQUEST_INVALID for what is no time. */
function boundedSeconds(given: number | null, most: number, param: string): number {
  if (given !== null && !Number.isFinite(given)) {
    throw new TrainyardError('REQUEST_INVALID', `${param} is ${given}, expected a finite number of seconds or null`, { param });
  }
  return Math.min(given ?? most, most);
}
