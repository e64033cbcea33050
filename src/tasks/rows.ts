/** Rows with their places, as every reader yields them, and the reader of rows given as values. `task-row.ts` validates rows. */
import { deadlineSignal, orAborted } from '../core/async.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined, isObject } from '../core/json.ts';
import type { Json, PromptMessage } from '../core/types.ts';

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
  /** `problem` continues the place: "line 3" + " is not valid JSON". */
  | { readonly kind: 'bad'; readonly place: string; readonly problem: string };

/** Stops a source that never ends. */
const MAX_ROWS = 10_000_000;

/** Per line of JSONL; per row of CSV, in characters. */
export const MAX_LINE_BYTES = 16 * 2 ** 20;

export const TOO_LARGE =
  'expected whole numbers between -2^53 and 2^53, found one beyond, which no number here holds exactly; write it as text';

const FORMAT_HINT = 'a row is {"id"?, "prompt" | "system_prompt"?+"user_prompt", "answer"?, "metadata"?}: trainyard help tasks';

export function invalid(message: string, options: { readonly hint?: string; readonly cause?: unknown } = {}): TrainyardError {
  return new TrainyardError('DATASET_INVALID', message, { hint: FORMAT_HINT, ...options });
}

/** Names the kind of a value without showing it: it may be an answer. */
export function kindOf(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list';
  if (typeof value === 'object') return Object.keys(value).length === 0 ? 'an empty object' : 'an object';
  if (typeof value === 'string') return value === '' ? 'an empty text' : 'a text';
  if (typeof value === 'boolean') return 'true or false';
  return `a ${typeof value}`;
}

const IDLE_MS = 600_000;

/** Reads any iterable. Throws DATASET_INVALID if the source throws, yields too many rows, or yields none for `idleMs`. */
export async function* givenRows(source: Exclude<TaskSource, string>, idleMs = IDLE_MS): AsyncGenerator<RawRow> {
  let number = 0;
  try {
    for await (const row of inTime(source, idleMs)) {
      const place = `row ${++number}`;
      if (number > MAX_ROWS) throw invalid(`found more than ${MAX_ROWS} rows`, { hint: 'does the source ever end?' });
      if (isObject(row)) yield { kind: 'row', place, row: defined(row) };
      else yield { kind: 'bad', place, problem: `: expected an object, found ${kindOf(row)}` };
    }
  } catch (thrown) {
    if (thrown instanceof TrainyardError) throw thrown;
    throw invalid(`the source of tasks threw after ${number} rows: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function inTime(source: unknown, idleMs: number): Iterable<unknown> | AsyncIterable<unknown> {
  const { [Symbol.iterator]: iterate, [Symbol.asyncIterator]: iterateLater } = Object(source) as Partial<
    Iterable<unknown> & AsyncIterable<unknown>
  >;
  if (typeof iterateLater === 'function') return answering(iterateLater.call(source), idleMs);
  if (typeof iterate === 'function' && typeof source === 'object') return source as Iterable<unknown>;
  throw invalid(`expected the path of a file, a list of rows or an async iterable, found ${kindOf(source)}`);
}

async function* answering(rows: AsyncIterator<unknown>, idleMs: number): AsyncGenerator<unknown> {
  let isSilent = false;
  const idle = (): Error => {
    isSilent = true;
    const hint = 'what does it wait for? End it, or write the rows to a file first';
    return invalid(`the source of tasks gave no row for ${idleMs / 1000} s`, { hint });
  };
  const next = async (): Promise<IteratorResult<unknown>> => {
    using deadline = deadlineSignal(idleMs, idle);
    return await orAborted(rows.next(), deadline.signal);
  };
  try {
    for (let row = await next(); !row.done; row = await next()) yield row.value;
  } finally {
    // A source that no longer responds would not respond to this either.
    if (!isSilent) await rows.return?.();
  }
}
