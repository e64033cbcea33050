/** The gateway's errors over HTTP before a dialect words them: their statuses and codes, and OpenAI's error body. */
import type { ErrorCode } from '../core/errors.ts';
import { type ErrorRow, type Failure, failureOf, HTTP_REFUSALS, refusals } from '../http/refusal.ts';

/** Errors that the rest of the system knows too. */
export const STATUS: Partial<Record<ErrorCode, ErrorRow>> = {
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
  DEFAULT_MODEL_FAILED: { status: 502, code: 'default_model_failed' },
};

/** What only the gateway itself refuses, by code. */
export const REFUSALS = {
  ...HTTP_REFUSALS,
  identity_conflict: 403,
  rollout_open: 409,
  too_many_sessions: 429,
  internal_error: 503,
  not_ready: 503,
} as const;

export const refused = refusals(REFUSALS);

const ERRORS = { rows: STATUS, otherwise: { status: REFUSALS.internal_error, code: 'internal_error' } };

export const gatewayFailure = (thrown: unknown): Failure => failureOf(thrown, ERRORS);

/** OpenAI's error body, which is also that of routes without a dialect. */
export function openAIError({ status, code, message, hint, param }: Failure): object {
  const type = status === 429 ? 'rate_limit_error' : status >= 500 ? 'server_error' : 'invalid_request_error';
  // Agents know an overflow by these words.
  const said = code === 'context_length_exceeded' ? `maximum context length exceeded: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  return { error: { message: whole, type, param: param ?? null, code, ...(hint === undefined ? {} : { hint }) } };
}
