/** A model call under way, and what is kept of one that fails, in the words that its client is told. */
import { messageOf, TrainyardError } from '../core/errors.ts';
import { LIMIT_NAMES, type UnansweredCall } from '../core/types.ts';

const LONGEST_MESSAGE = 2000;

/** What is kept of it if it ends without an answer, as far as it is known. */
export type ModelCall = { -readonly [Field in keyof UnansweredCall]: UnansweredCall[Field] };

export function failureIn(thrown: unknown): NonNullable<UnansweredCall['failure']> {
  const { code, cause } = thrown instanceof TrainyardError ? thrown : { code: 'ENGINE_FAILED' };
  const limit = code === 'CONTEXT_OVERFLOW' ? 'context' : LIMIT_NAMES.find((name) => name === cause);
  return { code, message: messageOf(thrown).slice(0, LONGEST_MESSAGE), ...(limit && { limit }) };
}
