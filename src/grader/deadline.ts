/**
 * How long one grading may take. Both runners share the default and the check; each enforces the deadline in its own way.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';

export const DEFAULT_DEADLINE_MS = 30_000;

/** Timers beyond this fire at once instead of late. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws USAGE for a deadline that a timer cannot keep. */
export function checkedDeadline(deadlineMs: number): number {
  if (!(deadlineMs > 0 && deadlineMs <= LONGEST_TIMER_MS)) {
    throw new TrainyardError('USAGE', `deadlineMs is ${deadlineMs}, expected milliseconds from 1 to ${LONGEST_TIMER_MS}`, {
      hint: 'every grading is bounded; give a large number where you want no practical limit',
    });
  }
  return deadlineMs;
}

export function timedOut(deadlineMs: number): Grade {
  return { kind: 'failed', code: 'GRADER_TIMEOUT', message: `the grader did not answer within ${deadlineMs} ms` };
}

export function cancelled(): Grade {
  return { kind: 'failed', code: 'CANCELLED', message: 'the grader was closed before it answered' };
}
