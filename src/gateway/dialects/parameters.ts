/**
 * The three lists of a dialect's parameters. Honoured ones are for the dialect to read. Refused ones would change what is sampled,
 * or what the client expects back, without being recorded; a value under which they do not is let through. Everything else is ignored:
 * it has no effect, and its name is recorded with the turn and reported to the client.
 */
import type { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';

export interface Parameters {
  readonly honoured: readonly string[];
  /** What stock clients are known to send. Names in no list are ignored too. */
  readonly ignored: readonly string[];
  /** With the test for a value that changes nothing. */
  readonly refused: Readonly<Record<string, (value: unknown) => boolean>>;
}

export const never = (): boolean => false;
export const is =
  (...values: readonly unknown[]) =>
  (value: unknown): boolean =>
    values.includes(value);
export const isEmpty = (value: unknown): boolean => typeof value === 'object' && Object.keys(value ?? {}).length === 0;

/** Names and values of what is said about one thing in a message to a person. */
const SHOWN = 80;

/** The names that have no effect. Throws REQUEST_INVALID for the first that is refused. `null` is as good as absent. */
export function ignoredIn(body: object, { honoured, refused }: Parameters): readonly string[] {
  const ignored: string[] = [];
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === undefined || honoured.includes(name)) continue;
    const harmless = Object.hasOwn(refused, name) ? refused[name] : undefined;
    if (harmless === undefined) ignored.push(name.slice(0, SHOWN));
    else if (!harmless(value)) throw refusal(name, value);
  }
  return ignored;
}

export function refusal(param: string, value: unknown, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${JSON.stringify(value)?.slice(0, SHOWN)} is not supported`, {
    param,
    hint: hint ?? 'it would change what is sampled or returned without being recorded; leave it out',
  });
}

export function invalid(param: string, message: string, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${message}`, { param, ...(hint === undefined ? {} : { hint }) });
}

/** The body as the schema has it; throws REQUEST_INVALID naming the field. */
export function parsed<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  throw invalid(issue?.path.join('.') || 'body', issue?.message ?? 'is malformed');
}
