/** Why a process of a pool could not be used, as the error of whoever needed it. */
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import type { StartFailure } from './answer.ts';

export interface StartWords {
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
