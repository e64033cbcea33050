/**
 * Trying a grading again that failed for a reason that may pass: a throw, a crash, a timeout. What the grader said on purpose (a reward,
 * nothing to grade, cannot be scored) is never asked twice, and neither is a result that is no reward: it would be the same again.
 *
 * The failure that remains names the reason of every attempt. Each runner enforces deadlines in its own way; how they end is said here.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';

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
