/**
 * How long one grading may take. Both runners share the default; each enforces the deadline in its own way.
 */
import type { Grade } from '../core/types.ts';

export const DEFAULT_DEADLINE_MS = 30_000;

export function timedOut(deadlineMs: number): Grade {
  return { kind: 'failed', code: 'GRADER_TIMEOUT', message: `the grader did not answer within ${deadlineMs} ms` };
}

export function cancelled(): Grade {
  return { kind: 'failed', code: 'CANCELLED', message: 'the grader was closed before it answered' };
}
