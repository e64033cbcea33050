/**
 * One rollout for a controller, from the queue to its grade. It always ends, and what it did is told to the hooks: the workflow's end once,
 * the grade once, in that order. A slot is held all the while.
 */
import type { Semaphore } from '../core/async.ts';
import { runInRollout } from '../core/context.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Reward, RolloutIdentity, Task } from '../core/types.ts';
import { contextOf, type OwnContext } from '../rollout/rollout-context.ts';
import { boundedSeconds, Deadline } from './deadline.ts';
import type { BackendEntry } from './entry.ts';
import { failureOf, SUCCESS } from './error-category.ts';
import type { Completion, ExecutionHooks, Grading, RolloutRequest, RolloutState } from './execution.ts';
import { type Conversations, conversationsOf, graderInputOf, rewardBy, samplesOf, ungradable } from './grading.ts';
import { RemotePolicy } from './remote-policy.ts';
import { type Returned, returnedBy } from './returned.ts';

export interface RolloutParts extends BackendEntry {
  readonly slots: Semaphore | undefined;
  readonly graderSlots: Semaphore | undefined;
  readonly artifacts: string | undefined;
  /** Seconds that a workflow or a grader may take, whatever is asked for. */
  readonly longestSec: number;
}

/** Of one rollout, as it goes on. */
export interface Progress {
  readonly cancel: AbortSignal;
  state: RolloutState;
  reward: number | null;
  errMessage: string | null;
}

interface Finished {
  readonly result: Returned;
  readonly conversations: Conversations;
  readonly artifactsDir: string | null;
  /** The workflow took its rollout back. */
  readonly rejected?: string;
}

export async function runRemoteRollout(
  parts: RolloutParts,
  request: RolloutRequest,
  progress: Progress,
  hooks: ExecutionHooks,
): Promise<void> {
  let isCompleted = false;
  const fail = async (thrown: unknown): Promise<void> => {
    const failure = failureOf(thrown, [request.llmApiKey]);
    end(progress, failure);
    if (!isCompleted) await hooks.completed(failure);
    if (request.grading) await hooks.graded({ ...failure, samples: {} });
  };
  const deadline = new Deadline('workflow', boundedSeconds(request.agentTimeoutSec, parts.longestSec, 'agent_timeout_sec'));
  let slot: Disposable | undefined;
  try {
    slot = await deadline.enter(parts.slots, progress.cancel);
  } catch (thrown) {
    return await fail(thrown);
  }
  using _held = slot;
  progress.state = 'running';
  try {
    const finished = await runWorkflow(parts, request, progress, hooks, deadline);
    isCompleted = true;
    await hooks.completed(SUCCESS);
    const grading = request.grading ? await grade(parts, request, progress, finished) : undefined;
    end(progress, grading ?? SUCCESS, grading);
    if (grading !== undefined) await hooks.graded(grading);
  } catch (thrown) {
    await fail(thrown);
  }
}

function end(progress: Progress, { status, errMessage }: Completion, grading?: Grading): void {
  progress.state = progress.cancel.aborted && status === 'failure' ? 'cancelled' : status;
  progress.errMessage = errMessage;
  const rewards = Object.values(grading?.samples ?? {}).flatMap(({ reward }) => reward ?? []);
  progress.reward = rewards.length === 0 ? null : rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

async function runWorkflow(
  { workflow, artifacts }: RolloutParts,
  request: RolloutRequest,
  { cancel }: Progress,
  hooks: ExecutionHooks,
  deadline: Deadline,
): Promise<Finished> {
  const identity = identityOf(request);
  let own: OwnContext | undefined;
  let policy: RemotePolicy | undefined;
  const finished = (result: Returned, rejected?: string): Finished => ({
    result,
    conversations: conversationsOf(policy?.calls ?? [], result),
    artifactsDir: own?.artifactsDir() ?? null,
    ...(rejected === undefined ? {} : { rejected }),
  });
  try {
    const returned = await deadline.within(cancel, async (signal) => {
      const { rolloutId, llmApiKey: apiKey } = request;
      policy = new RemotePolicy({ url: request.chatCompletionsUrl, apiKey, rolloutId, fetch: hooks.fetch, signal });
      const now = Date.now;
      own = contextOf({ identity, task: taskOf(request), workflow, session: policy, signal, seed: 0, artifacts, now });
      const { ctx } = own;
      return await runInRollout(ctx, () => workflow.run(ctx));
    });
    const rejection = own?.rejected();
    if (rejection !== undefined) return finished({}, rejection.message);
    return finished(returnedBy(returned, identity, (text) => hooks.warn(`rollout ${identity.rolloutId}: ${text}`)));
  } catch (thrown) {
    const rejection = own?.rejected();
    if (rejection !== undefined) return finished({}, rejection.message);
    throw thrown;
  } finally {
    policy?.seal();
  }
}

async function grade(parts: RolloutParts, request: RolloutRequest, progress: Progress, finished: Finished): Promise<Grading> {
  const { conversations, result, rejected } = finished;
  const without = (removed: boolean): Grading['samples'] => samplesOf(conversations, request, result, undefined, () => removed);
  progress.state = 'grading';
  try {
    if (rejected !== undefined) return removedAll(without(true), `rejected by the workflow: ${rejected}`);
    const reward = await rewardOf(parts, request, progress, finished);
    if (reward === undefined) return removedAll(without(true), 'the grader removed every sample');
    return { ...SUCCESS, samples: samplesOf(conversations, request, result, reward) };
  } catch (thrown) {
    return { ...failureOf(thrown, [request.llmApiKey]), samples: without(false) };
  }
}

/** Nothing to train, and nobody's failure, where there is something that was taken out. */
function removedAll(samples: Grading['samples'], why: string): Grading {
  const isEmpty = Object.keys(samples).length === 0;
  return { status: isEmpty ? 'failure' : 'success', errMessage: why, errCategory: null, samples };
}

async function rewardOf(
  { workflow, grader, graderSlots, longestSec }: RolloutParts,
  request: RolloutRequest,
  { cancel }: Progress,
  { conversations, result, artifactsDir }: Finished,
): Promise<Reward | undefined> {
  const own = result.reward;
  if (own !== undefined && (grader === undefined || workflow.grading === 'when-missing')) return own;
  const why = ungradable(grader, request);
  if (why !== undefined || grader === undefined) throw new TrainyardError('GRADER_FAILED', why ?? 'no grader');
  const deadline = new Deadline('grader', boundedSeconds(request.graderTimeoutSec, longestSec, 'grader_timeout_sec'));
  using _slot = await deadline.enter(graderSlots, cancel);
  const input = graderInputOf(taskOf(request), conversations, result, artifactsDir);
  return await deadline.within(cancel, () => rewardBy(grader, input, cancel));
}

function taskOf({ rolloutId, initialMessages, metadata, label }: RolloutRequest): Task {
  return {
    id: rolloutId,
    prompt: initialMessages,
    ...(metadata === null ? {} : { metadata }),
    ...(label === null ? {} : { answer: label }),
  };
}

function identityOf({ rolloutId }: RolloutRequest): RolloutIdentity {
  return { rolloutId, groupId: rolloutId, taskId: rolloutId, purpose: 'train' };
}
