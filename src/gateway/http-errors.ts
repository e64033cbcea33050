/**
 * What an error is over HTTP, before a dialect words it: a status that makes a client's SDK retry what can succeed (408, 409, 429, 5xx) and
 * give up on what cannot (other 4xx), a code, and what to say.
 */
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

interface Row {
  readonly status: number;
  readonly code: string;
}

/** Errors that the rest of the system knows too. */
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
  DEFAULT_MODEL_FAILED: { status: 502, code: 'default_model_failed' },
};

/** What only the door itself refuses, by code. */
export const REFUSALS = {
  malformed_http: 400,
  identity_conflict: 403,
  forbidden_origin: 403,
  not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  rollout_open: 409,
  request_too_large: 413,
  unsupported_media_type: 415,
  upgrade_required: 426,
  too_many_sessions: 429,
  too_many_wrong_keys: 429,
  headers_too_large: 431,
  internal_error: 503,
  not_ready: 503,
} as const;
export type RefusalCode = keyof typeof REFUSALS;

/** A REQUEST_INVALID with a status and a code of its own. */
export class Refusal extends TrainyardError {
  readonly row: Row;
  readonly headers: Readonly<Record<string, string>> | undefined;

  constructor(code: RefusalCode, message: string, hint?: string, headers?: Readonly<Record<string, string>>) {
    super('REQUEST_INVALID', message, hint === undefined ? {} : { hint });
    this.row = { status: REFUSALS[code], code };
    this.headers = headers;
  }
}

export interface Failure extends Row {
  readonly message: string;
  readonly hint: string | undefined;
  /** The field of the request that it is about. */
  readonly param: string | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** What the client's own code looks for in the error. */
  readonly details?: Json | undefined;
}

export function failureOf(thrown: unknown): Failure {
  const message = messageOf(thrown);
  if (thrown instanceof Refusal)
    return { ...thrown.row, message, hint: thrown.hint, param: thrown.param, headers: thrown.headers };
  const row = thrown instanceof TrainyardError ? STATUS[thrown.code] : undefined;
  const { status, code } = row ?? { status: REFUSALS.internal_error, code: 'internal_error' };
  const { hint, param, details } = thrown instanceof TrainyardError ? thrown : {};
  return { status, code, message, hint, param, details };
}

/** Headers of an error reply: when to come back, where that helps. */
export function headersOf({ status, code, headers }: Failure): Readonly<Record<string, string>> | undefined {
  if (status !== 429 && code !== 'not_ready') return headers;
  return { 'retry-after': '1', ...headers };
}

/** OpenAI's error body, which is also that of routes without a dialect. */
export function openAIError({ status, code, message, hint, param }: Failure): object {
  const type = status === 429 ? 'rate_limit_error' : status >= 500 ? 'server_error' : 'invalid_request_error';
  // Agents know an overflow by these words.
  const said = code === 'context_length_exceeded' ? `maximum context length exceeded: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  return { error: { message: whole, type, param: param ?? null, code, ...(hint === undefined ? {} : { hint }) } };
}
