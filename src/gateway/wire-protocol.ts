/**
 * The gateway's protocol as data: routes and who may use them, limits, and HTTP errors before a dialect formats them. `npm run build:docs`
 * prints it into docs/reference/routes.md. Model routes are served below `/`, `/v1` and both below `/r/<rollout>`, and also with a second `/v1`,
 * since some clients append their own. Routes ignore the query.
 */
import type { ErrorCode } from '../core/error-codes.ts';
import type { TrainyardError } from '../core/errors.ts';
import { MAX_NESTING } from '../core/json.ts';
import { HTTP_LIMITS } from '../http/guard.ts';
import { type ErrorRow, type Failure, failureOf, HTTP_REFUSALS, refusals } from '../http/refusal.ts';

/** `agent` calls the model. `flow` is a rollout's trusted code. `grader` gives rewards. `viewer` reads. `admin` opens and seals. */
export const CAPABILITIES = ['agent', 'flow', 'grader', 'viewer', 'admin'] as const;
export type Capability = (typeof CAPABILITIES)[number];

type Action = 'ask' | 'count_tokens' | 'ids' | 'models' | 'model' | 'health' | 'ready' | 'list' | 'show' | 'open' | 'seal';

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Without prefixes. */
  readonly path: string;
  /** Whether the path has the prefixes of model routes. */
  readonly model: boolean;
  /** If empty, no key is needed. */
  readonly who: readonly Capability[];
  readonly does: Action;
}

const CALLERS = ['agent', 'flow'] as const;
const READERS = ['viewer', 'admin'] as const;

export const ROUTES: readonly Route[] = [
  { method: 'POST', path: 'chat/completions', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'responses', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'messages', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'messages/count_tokens', model: true, who: CALLERS, does: 'count_tokens' },
  { method: 'POST', path: 'generate_tokens', model: true, who: CALLERS, does: 'ids' },
  { method: 'GET', path: 'models', model: true, who: [...CALLERS, ...READERS], does: 'models' },
  { method: 'GET', path: 'models/{id+}', model: true, who: [...CALLERS, ...READERS], does: 'model' },
  { method: 'GET', path: 'health', model: false, who: [], does: 'health' },
  { method: 'GET', path: 'ready', model: false, who: [], does: 'ready' },
  { method: 'GET', path: 'sessions', model: false, who: READERS, does: 'list' },
  { method: 'POST', path: 'sessions', model: false, who: ['admin'], does: 'open' },
  { method: 'GET', path: 'sessions/{rollout+}', model: false, who: READERS, does: 'show' },
  { method: 'DELETE', path: 'sessions/{rollout+}', model: false, who: ['admin'], does: 'seal' },
];

const MiB = 1024 * 1024;

/** Limits of one request and one rollout. A run's limits (turns, tokens, deadline) are settings in the session's spec. */
export const GATEWAY_LIMITS = {
  /** Larger bodies are refused before parsing, which blocks every other rollout. */
  bodyBytes: 16 * MiB,
  nesting: MAX_NESTING,
  /** Items and members of a body. Checking one costs a hundred times as much as parsing it. */
  values: 200_000,
  messages: 10_000,
  tools: 1_000,
  ignored: 2_000,
  /** Values of the schema that sampling is to follow: each token of the vocabulary is tried against each. */
  schemaValues: 10_000,
  headers: HTTP_LIMITS.headers,
  headerBytes: HTTP_LIMITS.headerBytes,
  /** Concurrent model calls of one rollout. Further calls get 429, so that clients wait. */
  callsAtOnce: 256,
  /** Total size of a rollout's request bodies, which its turns keep. */
  rolloutBytes: 1024 * MiB,
  /** Unsealed sessions that were opened over HTTP. */
  openSessions: 10_000,
  /** Wrong keys from one address: burst size, and rate afterwards. */
  wrongKeys: HTTP_LIMITS.wrongKeys,
  wrongKeysPerSecond: HTTP_LIMITS.wrongKeysPerSecond,
  sampleIdLength: 128,
} as const;

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

/** Status of refusals that only the gateway issues, by code. */
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

const USED_UP: readonly string[] = ['context_length_exceeded', 'rollout_limit_reached'];

/**
 * Stock clients retry 409 and 5xx unless this header tells them not to, and Claude Code obeys it. An engine that failed may sample the same
 * request a moment later, and one that is starting will. Nothing else gets better: what was used up stays used up, and the clients of model
 * servers have already waited for what may pass.
 */
export function gatewayFailure(thrown: unknown): Failure {
  const failure = failureOf(thrown, ERRORS);
  const { status, code } = failure;
  const { cause } = (thrown ?? {}) as { readonly cause?: Partial<TrainyardError> };
  const mayPass = code === 'not_ready' || (code === 'engine_failed' && cause?.code !== 'DEFAULT_MODEL_FAILED');
  const isFinal = status === 409 || USED_UP.includes(code) || (status >= 500 && !mayPass);
  return isFinal ? { ...failure, headers: { 'x-should-retry': 'false', ...failure.headers } } : failure;
}

/** OpenAI's error body, also used by routes without a dialect. */
export function openAIError({ status, code, message, hint, param }: Failure): object {
  const type = status === 429 ? 'rate_limit_error' : status >= 500 ? 'server_error' : 'invalid_request_error';
  // Agents recognise an overflow by these words.
  const said = code === 'context_length_exceeded' ? `maximum context length exceeded: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  return { error: { message: whole, type, param: param ?? null, code, ...(hint === undefined ? {} : { hint }) } };
}
