/** Anthropic's error body. The type follows the status; our own code, field and hint come with it. */
import type { Failure } from '../../http/refusal.ts';

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  529: 'overloaded_error',
};

export function anthropicError({ status, code, message, hint, param, details }: Failure): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error');
  // Agents know an overflow by these words.
  const said = code === 'context_length_exceeded' ? `prompt is too long: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  const own = { code, param: param ?? null, ...(hint === undefined ? {} : { hint }) };
  return { type: 'error', error: { type, message: whole, ...(details === undefined ? own : { details }) } };
}
