/** What is wrong with a call of another process before it begins: the process that could not be used, a deadline that no timer can keep. */
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import type { StartFailure } from './answer.ts';

interface StartWords {
  /** `the grader`. */
  readonly whose: string;
  /** What it was doing, if it ended before it was ready: `while importing its module`. */
  readonly starting: string;
  readonly code: ErrorCode;
  readonly late: { readonly code: ErrorCode; readonly what: string };
  readonly hint: string;
}

export function startError(failure: StartFailure, { whose, starting, code, late, hint }: StartWords): TrainyardError {
  switch (failure.kind) {
    case 'late':
      return new TrainyardError(late.code, `${whose}'s ${late.what} within ${failure.deadlineMs} ms`, { hint });
    case 'refused':
      return new TrainyardError(failure.code ?? code, failure.message, { hint });
    case 'unstartable':
      return new TrainyardError(code, `${whose}'s process could not be started: ${failure.message}`);
    case 'ended': {
      const when = failure.when === 'idle' ? 'while it was idle' : starting;
      return new TrainyardError(code, `${whose}'s process ${failure.how} ${when}`, { hint });
    }
  }
}

/** Timers beyond this fire at once instead of late. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws USAGE for a deadline that a timer cannot keep. */
export function checkedDeadline(deadlineMs: number): number {
  if (!(deadlineMs > 0 && deadlineMs <= LONGEST_TIMER_MS)) {
    throw new TrainyardError('USAGE', `deadlineMs is ${deadlineMs}, expected milliseconds from 1 to ${LONGEST_TIMER_MS}`, {
      hint: 'every call is bounded; give a large number where you want no practical limit',
    });
  }
  return deadlineMs;
}
