/**
 * One call of a grader: whatever it does becomes a `Grade`. The only place that turns a grader's behaviour into one; it runs in
 * the child process of the pool and in this process for an inline grader. Never rejects. Does not bound time: the runner around it does.
 *
 * And trying a grading again that failed for a reason that may pass: a throw, a crash, a timeout. What the grader said on purpose (a reward,
 * nothing to grade, cannot be scored) is never asked twice, and neither is a result that is no reward: it would be the same again.
 */
import type { Grader, GraderContext, GraderInput, GraderModel, Ungraded } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { toReward } from '../core/reward.ts';
import type { Grade } from '../core/types.ts';

/** What a grading process is asked. */
export interface GraderCall {
  readonly input: GraderInput;
  readonly model: GraderModel | undefined;
}

/** Characters: a failure is stored with its rollout. */
const MOST_WHY = 2000;

export function shortWhy(why: string): string {
  return why.length <= MOST_WHY ? why : `${why.slice(0, MOST_WHY)}…`;
}

export async function callGrader(grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Grade> {
  let result: unknown;
  try {
    result = await grader.grade(input, ctx);
  } catch (thrown) {
    return ownFailure(thrown, 'grader') ?? failed(`the grader threw ${describeThrown(thrown)}`);
  }
  try {
    const nothing = ungradedOf(result);
    if (nothing !== undefined) return nothing;
    return { kind: 'graded', reward: toReward(result, 'the grader', input.turns.length) };
  } catch (refusal) {
    return ownFailure(refusal) ?? failed(`reading the grader's result threw ${describeThrown(refusal)}`);
  }
}

/** Undefined where a grader's result says something else than that there is nothing to grade. */
export function ungradedOf(result: unknown): Ungraded | undefined {
  if (typeof result !== 'object' || result === null || !('kind' in result) || result.kind !== 'ungraded') return undefined;
  return { kind: 'ungraded', why: 'why' in result ? shortWhy(String(result.why)) : 'the grader gave no reward' };
}

/** Undefined for what is none of our errors. What was thrown may itself throw when it is looked at. */
function ownFailure(thrown: unknown, boundary?: 'grader'): Grade | undefined {
  try {
    if (!(thrown instanceof TrainyardError) || (boundary !== undefined && thrown.boundary !== boundary)) return undefined;
    return { kind: 'failed', code: thrown.code, message: shortWhy(String(thrown.message)) };
  } catch {
    return undefined;
  }
}

export function failed(message: string): Grade {
  return { kind: 'failed', code: 'GRADER_FAILED', message };
}

export const DEFAULT_RETRIES = 1;
/** For one attempt. */
export const DEFAULT_DEADLINE_MS = 30_000;

export interface Attempt {
  readonly grade: Grade;
  /** Whether another attempt may do better. */
  readonly mayPass: boolean;
}

/** How often graders were called, for how many gradings. */
export interface AttemptCounts {
  readonly gradings: number;
  readonly attempts: number;
}

/** The failure that remains names the reason of every attempt. */
export async function withRetries(retries: number, attempt: () => Promise<Attempt>): Promise<Grade> {
  const reasons: string[] = [];
  for (;;) {
    const { grade, mayPass } = await attempt();
    if (grade.kind !== 'failed') return grade;
    reasons.push(grade.message);
    if (mayPass && reasons.length <= retries) continue;
    return reasons.length === 1 ? grade : { ...grade, message: inWords(reasons) };
  }
}

/** Whether a failure that the grader itself made may pass. */
export function mayPass(grade: Grade): boolean {
  return grade.kind === 'failed' && (grade.code === 'GRADER_FAILED' || grade.code === 'GRADER_TIMEOUT');
}

export function timedOut(deadlineMs: number): Grade {
  return { kind: 'failed', code: 'GRADER_TIMEOUT', message: `the grader did not answer within ${deadlineMs} ms` };
}

export function cancelled(): Grade {
  return { kind: 'failed', code: 'CANCELLED', message: 'the grader was closed before it answered' };
}

/** Throws USAGE for what is no number of retries. */
export function checkedRetries(retries: number): number {
  if (Number.isSafeInteger(retries) && retries >= 0) return retries;
  throw new TrainyardError('USAGE', `retries is ${retries}, expected a whole number from 0 up`);
}

function inWords(reasons: readonly string[]): string {
  const times = `tried ${reasons.length} times`;
  return new Set(reasons).size === 1 ? `${times}, each time: ${reasons[0]}` : `${times}: ${reasons.join('; then ')}`;
}
