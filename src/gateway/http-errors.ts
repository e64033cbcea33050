/**
 * What an error is over HTTP, before a dialect words it: a status that makes a client's SDK retry what can succeed (429, 5xx) and
 * give up on what cannot (other 4xx), a code, and what to say.
 */
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

interface Row {
  readonly status: number;
  readonly code: string;
}

export const STATUS: Partial<Record<ErrorCode, Row>> = {
  REQUEST_INVALID: { status: 400, code: 'invalid_request' },
  REQUEST_CONFLICT: { status: 409, code: 'idempotency_conflict' },
  CONTEXT_OVERFLOW: { status: 400, code: 'context_length_exceeded' },
  LIMIT_REACHED: { status: 400, code: 'rollout_limit_reached' },
  CAPABILITY_MISSING: { status: 403, code: 'forbidden' },
  SESSION_UNKNOWN: { status: 401, code: 'invalid_api_key' },
  SESSION_SEALED: { status: 410, code: 'rollout_ended' },
  CANCELLED: { status: 410, code: 'rollout_ended' },
  ENGINE_BUSY: { status: 429, code: 'too_many_calls' },
  ENGINE_FAILED: { status: 502, code: 'engine_failed' },
};

export interface Failure extends Row {
  readonly message: string;
  readonly hint: string | undefined;
  /** The field of the request that it is about. */
  readonly param: string | undefined;
  /** What the client's own code looks for in the error. */
  readonly details?: Json | undefined;
}

export function failureOf(thrown: unknown): Failure {
  const { status, code } = (thrown instanceof TrainyardError && STATUS[thrown.code]) || { status: 503, code: 'internal_error' };
  const { hint, param, details } = thrown instanceof TrainyardError ? thrown : {};
  return { status, code, message: messageOf(thrown), hint, param, details };
}

export function httpFailure(status: number, code: string, message: string, hint?: string): Failure {
  return { status, code, message, hint, param: undefined };
}

/** OpenAI's error body, which is also that of routes without a dialect. */
export function openAIError({ status, code, message, hint, param }: Failure): object {
  const type = status === 429 ? 'rate_limit_error' : status >= 500 ? 'server_error' : 'invalid_request_error';
  const said = hint === undefined ? message : `${message} (${hint})`;
  return { error: { message: said, type, param: param ?? null, code, ...(hint === undefined ? {} : { hint }) } };
}
