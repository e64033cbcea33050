/**
 * How our errors look on the wire: OpenAI's error body, with statuses that make a client's SDK retry what can succeed (503)
 * and give up on what cannot (4xx).
 */
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';

const STATUS: Partial<Record<ErrorCode, { readonly status: number; readonly code: string }>> = {
  REQUEST_INVALID: { status: 400, code: 'invalid_request' },
  CONTEXT_OVERFLOW: { status: 400, code: 'context_length_exceeded' },
  LIMIT_REACHED: { status: 400, code: 'rollout_limit_reached' },
  SESSION_UNKNOWN: { status: 401, code: 'invalid_api_key' },
  SESSION_SEALED: { status: 410, code: 'rollout_ended' },
  CANCELLED: { status: 410, code: 'rollout_ended' },
};

export interface ErrorBody {
  readonly error: { readonly message: string; readonly type: string; readonly param: null; readonly code: string };
}

export function errorOf(thrown: unknown): { readonly status: number; readonly body: ErrorBody } {
  const known = thrown instanceof TrainyardError ? STATUS[thrown.code] : undefined;
  const { status, code } = known ?? { status: 503, code: 'engine_failed' };
  const hint = thrown instanceof TrainyardError ? thrown.hint : undefined;
  const message = hint === undefined ? messageOf(thrown) : `${messageOf(thrown)} (${hint})`;
  const type = status >= 500 ? 'server_error' : 'invalid_request_error';
  return { status, body: { error: { message, type, param: null, code } } };
}

export function notFound(method: string, path: string): { readonly status: number; readonly body: ErrorBody } {
  const message = `no route ${method} ${path}`;
  return { status: 404, body: { error: { message, type: 'invalid_request_error', param: null, code: 'not_found' } } };
}
