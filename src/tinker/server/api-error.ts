/**
 * What goes wrong with a request, as the Tinker API says it: a status and a body where the request itself is refused, a message and a
 * category where its future fails. Statuses are chosen for what clients make of them: 408, 409, 429 and 5xx are tried again, 410 means
 * that the future is gone, every other 4xx is final.
 */
import { type ErrorCode, messageOf, TrainyardError } from '../../core/errors.ts';
import { Refusal } from '../../http/refusal.ts';
import { WireError } from '../wire/messages.ts';
import type { FailureCategory } from '../wire/verbs.ts';

const STATUS = {
  invalid_request: 400,
  not_offered: 400,
  too_many_models: 400,
  unknown_route: 404,
  method_not_allowed: 405,
  unknown_session: 404,
  unknown_model: 404,
  unknown_sampler: 404,
  unknown_weights: 404,
  unknown_future: 404,
  future_gone: 410,
  seq_id_reused: 409,
  body_too_large: 413,
  unsupported_media_type: 415,
  too_busy: 429,
} as const;
export type ApiErrorKind = keyof typeof STATUS;

export class ApiError extends TrainyardError {
  readonly kind: ApiErrorKind;

  constructor(kind: ApiErrorKind, message: string, options: { readonly hint?: string; readonly param?: string } = {}) {
    super('REQUEST_INVALID', message, options);
    this.kind = kind;
  }
}

export interface HttpFailure {
  readonly status: number;
  readonly code: string;
  readonly message: string;
}

/** Whose errors these are: nothing but another request helps. */
const USERS: ReadonlySet<ErrorCode> = new Set([
  'REQUEST_INVALID',
  'CONTEXT_OVERFLOW',
  'SAMPLE_REFUSED',
  'CHECKPOINT_MISMATCH',
  'CANCELLED',
]);

/** A request that was refused. */
export function httpFailureOf(thrown: unknown): HttpFailure {
  if (thrown instanceof WireError) return { status: 400, code: 'invalid_request', message: whole(thrown) };
  if (thrown instanceof ApiError) return { status: STATUS[thrown.kind], code: thrown.kind, message: whole(thrown) };
  if (thrown instanceof Refusal) {
    const { status, code } = thrown.row;
    return { status, code: code === 'request_too_large' ? 'body_too_large' : code, message: whole(thrown) };
  }
  if (thrown instanceof TrainyardError && thrown.code === 'SESSION_UNKNOWN') {
    return { status: 401, code: 'invalid_api_key', message: whole(thrown) };
  }
  if (thrown instanceof TrainyardError && USERS.has(thrown.code)) {
    return { status: 400, code: 'invalid_request', message: whole(thrown) };
  }
  return { status: 500, code: 'internal_error', message: whole(thrown) };
}

export interface FutureFailure {
  readonly error: string;
  readonly category: FailureCategory;
}

/** A request that was taken, and then failed. */
export function futureFailureOf(thrown: unknown): FutureFailure {
  const isUsers = thrown instanceof WireError || (thrown instanceof TrainyardError && USERS.has(thrown.code));
  return { error: whole(thrown), category: isUsers ? 'user' : 'server' };
}

/** `detail` is where clients of servers made with FastAPI look. */
export function errorBody({ code, message }: HttpFailure): object {
  return { error: { code, message }, detail: message };
}

/** Of what was found; names that a request made up are part of it. */
const LONGEST = 1000;

function whole(thrown: unknown): string {
  const hint = thrown instanceof TrainyardError ? thrown.hint : undefined;
  const found = messageOf(thrown);
  const short = found.length > LONGEST ? `${found.slice(0, LONGEST)}…` : found;
  return hint === undefined ? short : `${short} (${hint})`;
}
