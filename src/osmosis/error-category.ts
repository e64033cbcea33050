/** Whose fault a failure was, in the four words that controllers know, and what to tell them of it. */
import { describeValue, printable } from '../core/describe.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import type { Completion, ErrorCategory } from './execution.ts';

const LONGEST_MESSAGE = 2000;

const OF_CODES: Partial<Record<ErrorCode, ErrorCategory>> = {
  GRADER_TIMEOUT: 'timeout',
  POLICY_UNREACHABLE: 'http_error',
  POLICY_REFUSED: 'http_error',
  POLICY_GARBLED: 'http_error',
  WORKFLOW_BAD_RESULT: 'validation_error',
  GRADER_BAD_REWARD: 'validation_error',
  REQUEST_INVALID: 'validation_error',
};
const VALIDATION = new Set(['TypeError', 'RangeError', 'SyntaxError', 'AssertionError', 'ZodError', 'ValidationError']);
/** Of Node's sockets and resolver, and of the clients that wrap them. */
const CONNECTION = /^(?:E(?:CONN|HOST|NET|PIPE|TIMEDOUT|AI_)|ENOTFOUND|UND_ERR)/;

export function categoryOf(thrown: unknown): ErrorCategory {
  if (thrown instanceof TrainyardError) return OF_CODES[thrown.code] ?? 'agent_error';
  const { name, status, code, cause } = (typeof thrown === 'object' && thrown !== null ? thrown : {}) as {
    readonly name?: unknown;
    readonly status?: unknown;
    readonly code?: unknown;
    readonly cause?: unknown;
  };
  if (name === 'TimeoutError') return 'timeout';
  if (typeof status === 'number' && status >= 300) return 'http_error';
  if (typeof code === 'string' && CONNECTION.test(code)) return 'http_error';
  // Clients say "Connection error." and keep what happened as the cause.
  if (cause !== undefined && cause !== thrown && categoryOf(cause) === 'http_error') return 'http_error';
  return VALIDATION.has(String(name)) ? 'validation_error' : 'agent_error';
}

/** `secrets` never leave with a message, whoever put them there. */
export function failureOf(thrown: unknown, secrets: readonly (string | null)[] = []): Completion {
  const found =
    thrown instanceof Error ? messageOf(thrown) || thrown.name : `a value that is not an Error: ${describeValue(thrown)}`;
  let message = printable(found);
  for (const secret of secrets) if (secret !== null && secret !== '') message = message.replaceAll(secret, '[key]');
  return { status: 'failure', errMessage: message.slice(0, LONGEST_MESSAGE), errCategory: categoryOf(thrown) };
}

export const SUCCESS: Completion = { status: 'success', errMessage: null, errCategory: null };
