/** How long one call may take: a number of milliseconds that a timer can keep. */
import { TrainyardError } from '../core/errors.ts';

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
