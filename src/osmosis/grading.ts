/**
 * From what a rollout said to what is reported of it: the grader's input, and each conversation with what it earned. A conversation is a
 * sample, by the name of its thread. A grading that failed gives no rewards at all.
 */
import type { Grader, GraderInput } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { toReward } from '../core/reward.ts';
import type { Message, Reward, Task } from '../core/types.ts';
import { saidOfItself } from '../grader/input.ts';
import type { GradedSample, RolloutRequest } from './execution.ts';
import type { SeatCall } from './remote-policy.ts';
import type { Returned } from './returned.ts';

/** The conversation of a client that has none by name. */
const UNHEARD = 'default';

export interface Conversations {
  readonly calls: readonly SeatCall[];
  readonly threads: Readonly<Record<string, readonly Message[]>>;
}

/** Each as the workflow kept it, where it did; else as it went over the wire. */
export function conversationsOf(calls: readonly SeatCall[], { threads }: Pick<Returned, 'threads'>): Conversations {
  const heard = Object.fromEntries(calls.map((call) => [call.thread, [...call.messages, call.response]]));
  return { calls, threads: { ...heard, ...threads } };
}

export function graderInputOf(
  task: Task,
  { calls, threads }: Conversations,
  result: Returned,
  artifactsDir: string | null,
): GraderInput {
  const last = calls.at(-1)?.thread;
  return {
    task,
    messages: (last === undefined ? undefined : threads[last]) ?? Object.values(threads).at(-1) ?? [],
    threads,
    turns: calls.map(({ role, thread, response, stopReason }) => ({ role, thread, response, stopReason })),
    output: result.output,
    result: saidOfItself(result),
    truncated: undefined,
    artifactsDir,
  };
}

/** Why a rollout cannot be graded; undefined where it can. */
export function ungradable(grader: Grader | undefined, { label, metadata }: RolloutRequest): string | undefined {
  if (grader === undefined) return 'no grader: the backend was given none';
  return label === null && metadata === null ? 'nothing to grade by: the request has neither label nor metadata' : undefined;
}

/** Undefined where the grader took everything out. Throws what the grader threw, or GRADER_BAD_REWARD. */
export async function rewardBy(grader: Grader, input: GraderInput, signal: AbortSignal): Promise<Reward | undefined> {
  // A copy: what a grader changes must not change what is reported.
  const given: unknown = await grader.grade(structuredClone(input), { signal, model: undefined });
  const isUngraded = typeof given === 'object' && given !== null && 'kind' in given && given.kind === 'ungraded';
  const reward = isUngraded ? undefined : toReward(given);
  const unknown = Object.keys(reward?.byThread ?? {}).find((name) => !Object.hasOwn(input.threads, name));
  if (unknown === undefined) return reward;
  throw new TrainyardError(
    'GRADER_BAD_REWARD',
    `a reward is for the thread ${describeValue(unknown)}, which the rollout does not have`,
  );
}

/** `reward` undefined: without rewards, as after a failure. */
export function samplesOf(
  { calls, threads }: Conversations,
  { label }: RolloutRequest,
  result: Returned,
  reward: Reward | undefined,
  removed: (thread: string) => boolean = () => false,
): Readonly<Record<string, GradedSample>> {
  const sample = (thread: string, messages: readonly Message[]): GradedSample => {
    const role = calls.findLast((call) => call.thread === thread)?.role ?? thread;
    const isRemoved = removed(thread) || (reward?.untrained?.includes(thread) ?? false);
    const earned = own(reward?.byThread, thread) ?? own(reward?.byRole, role) ?? reward?.value ?? null;
    return {
      messages,
      label,
      reward: isRemoved ? null : earned,
      removed: isRemoved,
      metrics: { ...result.metrics, ...reward?.parts },
      extraFields: { ...result.metadata },
    };
  };
  const heard = Object.entries(threads);
  // A workflow whose client went past us earned its reward too.
  const all = heard.length === 0 && reward !== undefined ? [[UNHEARD, []] as const] : heard;
  return Object.fromEntries(all.map(([thread, messages]) => [thread, sample(thread, messages)]));
}

/** A thread may be called as something that every object has. */
function own(rewards: Readonly<Record<string, number>> | undefined, name: string): number | undefined {
  return rewards !== undefined && Object.hasOwn(rewards, name) ? rewards[name] : undefined;
}
