/**
 * What every reader of tasks yields: rows with their place, or the places where no row could be read. Whether a row is a task is not for
 * the readers to say (`task-row.ts`).
 */
import { TrainyardError } from '../core/errors.ts';
import type { Json, PromptMessage } from '../core/types.ts';

/** One row as it is written: the columns of a file, or an object of a list. */
export interface TaskRow {
  readonly id?: string | number | null | undefined;
  readonly prompt?: string | readonly PromptMessage[] | null | undefined;
  readonly system_prompt?: string | null | undefined;
  readonly user_prompt?: string | null | undefined;
  readonly answer?: Json | undefined;
  readonly ground_truth?: Json | undefined;
  readonly label?: Json | undefined;
  readonly metadata?: Json | undefined;
}

/** Path of a JSONL, CSV or Parquet file, or the rows themselves. */
export type TaskSource = string | Iterable<TaskRow> | AsyncIterable<TaskRow>;

export type RawRow =
  | { readonly kind: 'row'; readonly place: string; readonly row: Readonly<Record<string, unknown>> }
  /** `problem` goes on from the place: "line 3" + " is not valid JSON". */
  | { readonly kind: 'bad'; readonly place: string; readonly problem: string };

/** More than any list of tasks has; a source that never ends is found by it. */
export const MAX_ROWS = 10_000_000;

/** Most bytes of one line, and characters of one row of CSV or one text of Parquet. */
export const MAX_LINE_BYTES = 16 * 2 ** 20;

/** Most that one row may take in memory, about: a list that holds itself a million times is found by it. */
export const MAX_ROW_BYTES = 512 * 2 ** 20;

export const TOO_LARGE =
  'expected whole numbers between -2^53 and 2^53, found one beyond, which no number here holds exactly; write it as text';

const FORMAT_HINT =
  'a row is {"id"?, "prompt" | "system_prompt"?+"user_prompt", "answer"?, "metadata"?}: docs/reference/tasks.md';

export function invalid(message: string, options: { readonly hint?: string; readonly cause?: unknown } = {}): TrainyardError {
  return new TrainyardError('DATASET_INVALID', message, { hint: FORMAT_HINT, ...options });
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What a value is, without saying it: it may be an answer. */
export function kindOf(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list';
  if (typeof value === 'object') return Object.keys(value).length === 0 ? 'an empty object' : 'an object';
  if (typeof value === 'string') return value === '' ? 'an empty text' : 'a text';
  if (typeof value === 'boolean') return 'true or false';
  return `a ${typeof value}`;
}
