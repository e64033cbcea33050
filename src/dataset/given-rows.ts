/**
 * Rows given as values: a list, or anything that can be iterated, such as a generator that pages through a database. A source that throws,
 * does not end, or does not answer ends the reading with what is wrong.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import { invalid, isRecord, kindOf, MAX_ROWS, type RawRow, type TaskSource } from './rows.ts';

const IDLE_MS = 600_000;

export async function* givenRows(source: Exclude<TaskSource, string>, idleMs = IDLE_MS): AsyncGenerator<RawRow> {
  let number = 0;
  try {
    for await (const row of inTime(source, idleMs)) {
      const place = `row ${++number}`;
      if (number > MAX_ROWS) throw invalid(`found more than ${MAX_ROWS} rows`, { hint: 'does the source ever end?' });
      if (!isRecord(row)) yield { kind: 'bad', place, problem: `: expected an object, found ${kindOf(row)}` };
      // A field given as undefined is one that was not given.
      else yield { kind: 'row', place, row: Object.fromEntries(Object.entries(row).filter(([, value]) => value !== undefined)) };
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
  let isWaiting = false;
  try {
    for (;;) {
      isWaiting = true;
      const next = await within(rows.next(), idleMs);
      isWaiting = false;
      if (next.done) return;
      yield next.value;
    }
  } finally {
    // A source that does not answer would not answer to this either.
    if (!isWaiting) await rows.return?.();
  }
}

async function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(idle(ms)), ms);
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

function idle(ms: number): Error {
  return invalid(`the source of tasks gave no row for ${ms / 1000} s`, {
    hint: 'what does it wait for? End it, or write the rows to a file first',
  });
}
