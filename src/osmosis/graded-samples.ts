/**
 * From what a rollout said to what is reported of it: the workflow's result, the grader's input, each conversation with what it earned, and
 * whose fault a failure was. A conversation is a sample, by the name of its thread. The turns themselves are in the controller's process: which
 * of them are trained is its to say, and rewards by turn are not sent.
 */
import type { GraderInput, WorkflowResult } from '../core/contracts.ts';
import { describeValue, printable } from '../core/describe.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import { asJson } from '../core/json.ts';
import { toReward } from '../core/reward.ts';
import type { Message, Reward, RolloutIdentity, Task } from '../core/types.ts';
import { saidOfItself } from '../grader/call.ts';
import { resultOf, type SettledResult } from '../rollout/result.ts';
import { jsonOnly } from './callbacks.ts';
import type { Completion, ErrorCategory, GradedSample, RolloutRequest } from './execution.ts';
import type { ThreadCall } from './remote-policy.ts';

type Threads = Readonly<Record<string, readonly Message[]>>;

export interface Returned extends Omit<SettledResult, 'trainedTurns' | 'reward'> {
  readonly reward?: Reward;
  /** Conversations as the workflow kept them. */
  readonly threads?: Threads;
}

/** What a finished workflow leaves for its grader. */
export interface Finished {
  readonly result: Returned;
  readonly calls: readonly ThreadCall[];
  /** Each conversation as the workflow kept it, where it did; else as it went over the wire. */
  readonly threads: Threads;
  readonly artifactsDir: string | null;
}

const MOST_JSON = 16 * 1024 * 1024;
/** The conversation of a client that has none by name. */
const UNNAMED = 'default';

/** Throws WORKFLOW_BAD_RESULT. What is no JSON in metrics and metadata is left out with a warning: it is no reason to lose a reward. */
export function returnedBy(value: unknown, identity: RolloutIdentity, warn: (text: string) => void): Returned {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return resultOf(value, identity, []);
  const { reward, trainedTurns: _, threads, metadata, metrics, ...rest } = value as WorkflowResult;
  const json = {
    ...(metadata === undefined ? {} : { metadata: jsonOnly(metadata, 'metadata', warn) }),
    ...(metrics === undefined ? {} : { metrics: jsonOnly(metrics, 'metrics', warn) }),
  };
  return {
    ...resultOf({ ...rest, ...json }, identity, []),
    ...(reward === undefined || reward === null ? {} : { reward: withoutTurns(reward) }),
    ...(threads === undefined ? {} : { threads: threadsOf(threads) }),
  };
}

function withoutTurns(given: NonNullable<WorkflowResult['reward']>): Reward {
  return toReward(typeof given === 'object' && 'byTurn' in given ? { ...given, byTurn: undefined } : given, 'run');
}

function threadsOf(given: unknown): Threads {
  const copy = asJson(given, MOST_JSON);
  const isOfLists = typeof copy === 'object' && copy !== null && !Array.isArray(copy) && Object.values(copy).every(Array.isArray);
  if (isOfLists) return copy as unknown as Threads;
  throw new TrainyardError('WORKFLOW_BAD_RESULT', 'run returned threads that are not lists of messages as JSON, by thread', {
    hint: 'write threads: { name: [{ role, content }, …] }',
  });
}

export function finishedWith(result: Returned, calls: readonly ThreadCall[], artifactsDir: string | null): Finished {
  const said = Object.fromEntries(calls.map((call) => [call.thread, [...call.messages, call.response]]));
  return { result, calls, threads: { ...said, ...result.threads }, artifactsDir };
}

/** A copy: what a grader changes must not change what is reported. */
export function graderInputOf(task: Task, { result, calls, threads, artifactsDir }: Finished): GraderInput {
  const last = calls.at(-1)?.thread;
  return structuredClone({
    task,
    messages: (last === undefined ? undefined : threads[last]) ?? Object.values(threads).at(-1) ?? [],
    threads,
    turns: calls.map(({ role, thread, response, stopReason }) => ({ role, thread, response, stopReason })),
    output: result.output,
    result: saidOfItself(result),
    truncated: undefined,
    artifactsDir,
  });
}

/** `reward` undefined: without rewards, as after a failure. */
export function samplesOf(
  { result, calls, threads }: Finished,
  { label }: RolloutRequest,
  reward: Reward | undefined,
  areRemoved = false,
): Readonly<Record<string, GradedSample>> {
  const sample = (thread: string, messages: readonly Message[]): GradedSample => {
    const role = calls.findLast((call) => call.thread === thread)?.role ?? thread;
    const removed = areRemoved || (reward?.untrained?.includes(thread) ?? false);
    const earned = own(reward?.byThread, thread) ?? own(reward?.byRole, role) ?? reward?.value ?? null;
    const metrics = { ...result.metrics, ...reward?.parts };
    return { messages, label, reward: removed ? null : earned, removed, metrics, extraFields: { ...result.metadata } };
  };
  const known = Object.entries(threads);
  // A workflow whose client was given only a URL earned its reward too.
  const all = known.length === 0 && reward !== undefined ? [[UNNAMED, []] as const] : known;
  return Object.fromEntries(all.map(([thread, messages]) => [thread, sample(thread, messages)]));
}

/** A thread may be called as something that every object has. */
function own(rewards: Readonly<Record<string, number>> | undefined, name: string): number | undefined {
  return rewards !== undefined && Object.hasOwn(rewards, name) ? rewards[name] : undefined;
}

// ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

export const SUCCESS: Completion = { status: 'success', errMessage: null, errCategory: null };

const LONGEST_MESSAGE = 2000;
const OF_CODES: Partial<Record<ErrorCode, ErrorCategory>> = {
  GRADER_TIMEOUT: 'timeout',
  POLICY_UNREACHABLE: 'http_error',
  POLICY_REFUSED: 'http_error',
  POLICY_GARBLED: 'http_error',
  WORKFLOW_BAD_RESULT: 'validation_error',
  GRADER_BAD_REWARD: 'validation_error',
  REQUEST_INVALID: 'validation_error',
};
const VALIDATION = new Set(['TypeError', 'RangeError', 'SyntaxError', 'AssertionError', 'ZodError', 'ValidationError']);
/** Of Node's sockets and resolver, and of the clients that wrap them. */
const CONNECTION = /^(?:E(?:CONN|HOST|NET|PIPE|TIMEDOUT|AI_)|ENOTFOUND|UND_ERR)/;

/** `secret` never leaves with a message, whoever put it there. */
export function failureOf(thrown: unknown, secret: string | null): Completion {
  const found =
    thrown instanceof Error ? messageOf(thrown) || thrown.name : `a value that is not an Error: ${describeValue(thrown)}`;
  const message = secret ? printable(found).replaceAll(secret, '[key]') : printable(found);
  return { status: 'failure', errMessage: message.slice(0, LONGEST_MESSAGE), errCategory: categoryOf(thrown) };
}

function categoryOf(thrown: unknown): ErrorCategory {
  if (thrown instanceof TrainyardError) return OF_CODES[thrown.code] ?? 'agent_error';
  const { name, status, code, cause } = (typeof thrown === 'object' && thrown !== null ? thrown : {}) as {
    readonly name?: unknown;
    readonly status?: unknown;
    readonly code?: unknown;
    readonly cause?: unknown;
  };
  if (name === 'TimeoutError') return 'timeout';
  if (typeof status === 'number' && status >= 300) return 'http_error';
  if (typeof code === 'string' && CONNECTION.test(code)) return 'http_error';
  // Clients say "Connection error." and keep what happened as the cause.
  if (cause !== undefined && cause !== thrown && categoryOf(cause) === 'http_error') return 'http_error';
  return VALIDATION.has(String(name)) ? 'validation_error' : 'agent_error';
}
