/**
 * Takes rollouts out of Trainyard as training data for other people's trainers, from a run or a store file. Reads one group at a time, so
 * memory holds the largest group and not the run. What is left out is counted by reason, never dropped silently. The file has its name only
 * once it is complete, and replaces nothing. data-rows.ts decides what a row is.
 */
import { createWriteStream, existsSync } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { SchemaElement } from 'hyparquet';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import { withoutExcluded } from '../core/turns.ts';
import type { Mark, Purpose, Trajectory } from '../core/types.ts';
import { ALGORITHMS, type Algorithm, turnAdvantagesOf, WEIGHTINGS, type Weighting } from '../trainer/advantages.ts';
import { type Column, type Columns, DATA_FORMATS, type DataFormat, type FormatName, type Only, type Row } from './data-rows.ts';
import { readRunFile } from './directory.ts';
import { exclusionsOf, openStoreOf, stepsIn } from './inspect.ts';
import { isSuccess } from './results.ts';
import { checkFree, completed } from './whole-output.ts';

/** Rows of a Parquet row group, all of which are in memory at once. */
const ROW_GROUP = 128;

export interface DataRequest {
  /** A run directory or a store file. */
  readonly from: string;
  readonly format: FormatName;
  readonly to: string;
  /** Default: training rollouts if there are any, so that held-out tasks do not get into training data; else those of evaluations. */
  readonly purpose?: Purpose;
  /** Default: as the format says. */
  readonly only?: Only;
}

export interface ExportedData {
  readonly format: FormatName;
  readonly path: string;
  readonly purpose: Purpose;
  readonly only: Only;
  readonly rollouts: number;
  readonly rows: number;
  readonly bytes: number;
  /** How many of what, by reason. */
  readonly leftOut: Readonly<Record<string, number>>;
}

/** An aborted `stop` leaves nothing unfinished behind. */
export async function exportData(request: DataRequest, stop?: AbortSignal): Promise<ExportedData> {
  const { from, format, to } = request;
  const written: DataFormat = DATA_FORMATS[format];
  await checkFree(to);
  await using store = await openStoreOf(from);
  const purpose = request.purpose ?? ((await store.count({ purpose: 'train', limit: 1 })) > 0 ? 'train' : 'eval');
  const reading = await readingOf(store, { ...request, purpose, only: request.only ?? written.only }, stop);
  const bytes = await completed(to, async (path) => {
    const rows = rowsOf(reading, written);
    await (written.file === 'parquet' ? writeParquet(path, rows, written.columns) : writeLines(path, rows));
    if (reading.counts.rows === 0) throw nothingLeft(from, reading);
  });
  const { only, leftOut, counts } = reading;
  return { format, path: to, purpose, only, ...counts, bytes, leftOut: Object.fromEntries(leftOut) };
}

interface Reading {
  readonly store: Store;
  readonly purpose: Purpose;
  readonly only: Only;
  readonly marks: ReadonlyMap<string, readonly Mark[]>;
  readonly steps: ReadonlyMap<string, number>;
  readonly algorithm: Algorithm;
  readonly weighting: Weighting;
  readonly stop: AbortSignal | undefined;
  readonly leftOut: Map<string, number>;
  readonly counts: { rollouts: number; rows: number };
}

async function readingOf(
  store: Store,
  { from, purpose, only }: Pick<Reading, 'purpose' | 'only'> & Pick<DataRequest, 'from'>,
  stop: AbortSignal | undefined,
): Promise<Reading> {
  const record = existsSync(join(from, 'run.json')) ? readRunFile(from) : undefined;
  const settings = isObject(record) && isObject(record['settings']) ? record['settings'] : {};
  return {
    ...{ store, purpose, only, stop, marks: await exclusionsOf(store), steps: await stepsIn(store) },
    // An evaluation has neither.
    algorithm: ALGORITHMS.find((name) => name === settings['algorithm']) ?? 'grpo',
    weighting: WEIGHTINGS.find((name) => name === settings['weighting']) ?? 'tokens',
    ...{ leftOut: new Map(), counts: { rollouts: 0, rows: 0 } },
  };
}

async function* rowsOf(reading: Reading, format: DataFormat): AsyncGenerator<Row> {
  const { store, purpose, counts, leftOut } = reading;
  const leaveOut = (what: string, n = 1): void => void (n > 0 && leftOut.set(what, (leftOut.get(what) ?? 0) + n));
  for (const [number, groupId] of (await store.groupIds({ purpose })).entries()) {
    reading.stop?.throwIfAborted();
    const all = await store.query({ groupId, purpose });
    const group = withoutExcluded(
      all,
      all.flatMap(({ rolloutId }) => reading.marks.get(rolloutId) ?? []),
    );
    leaveOut('rollouts excluded by trainyard curate', all.length - group.length);
    const advantageOf = turnAdvantagesOf(group, reading.algorithm, reading.weighting);
    for (const trajectory of group) {
      const step = reading.steps.get(trajectory.rolloutId) ?? null;
      const rollout = { trajectory, step, group: number, leaveOut, advantageOf: advantageOf.bind(undefined, trajectory) };
      const rows = whyNot(trajectory, reading.only) ?? format.rowsOf(rollout);
      if (typeof rows === 'string') {
        leaveOut(rows);
        continue;
      }
      counts.rollouts += 1;
      counts.rows += rows.length;
      yield* rows;
    }
  }
}

function whyNot(trajectory: Trajectory, only: Only): string | undefined {
  if (only === 'all') return undefined;
  if (trajectory.grade.kind !== 'graded') return 'rollouts without a reward';
  return only === 'successes' && !isSuccess(trajectory) ? 'rollouts without success' : undefined;
}

function nothingLeft(from: string, { purpose, leftOut }: Reading): TrainyardError {
  const why = Array.from(leftOut, ([what, n]) => `${n} ${what}`).join(', ');
  const found = why === '' ? `no rollouts of purpose ${purpose}` : `nothing that can be written, but ${why}`;
  return new TrainyardError('USAGE', `${from} holds ${found}`, {
    hint: 'choose others with --purpose or --only, or another --format; trainyard show lists what a run holds',
  });
}

async function writeLines(path: string, rows: AsyncIterable<Row>): Promise<void> {
  const lines = async function* (): AsyncGenerator<string> {
    for await (const row of rows) yield `${JSON.stringify(row)}\n`;
  };
  await pipeline(lines, createWriteStream(path));
}

async function writeParquet(path: string, rows: AsyncIterable<Row>, columns: Columns): Promise<void> {
  const { fileWriter, parquetWriteRows } = await import('hyparquet-writer');
  const names = Object.keys(columns);
  const asText = names.filter((name) => columns[name] === 'json');
  const texts = async function* (): AsyncGenerator<Record<string, unknown>> {
    for await (const row of rows) yield { ...row, ...Object.fromEntries(asText.map((name) => [name, jsonOf(row[name])])) };
  };
  await parquetWriteRows({
    ...{ writer: fileWriter(path), rows: texts(), columns: names.map((name) => ({ name })), rowGroupSize: ROW_GROUP },
    schema: [{ name: 'root', num_children: names.length }, ...names.flatMap((name) => schemaOf(name, columns[name]!))],
  });
}

function jsonOf(value: unknown): string | null {
  return value === null ? null : JSON.stringify(value);
}

const TEXT = { type: 'BYTE_ARRAY', converted_type: 'UTF8' } as const;
const TYPES: Readonly<Record<Column & string, Pick<SchemaElement, 'type' | 'converted_type'>>> = {
  ...{ text: TEXT, json: TEXT, int: { type: 'INT32' }, float: { type: 'FLOAT' }, double: { type: 'DOUBLE' } },
  boolean: { type: 'BOOLEAN' },
};

/** In Parquet's order: each column before its own. */
function schemaOf(name: string, column: Column): SchemaElement[] {
  const repetition_type = 'OPTIONAL';
  if (typeof column === 'string') return [{ name, repetition_type, ...TYPES[column] }];
  if (isList(column)) {
    const list: SchemaElement = { name: 'list', repetition_type: 'REPEATED', num_children: 1 };
    return [{ name, repetition_type, converted_type: 'LIST', num_children: 1 }, list, ...schemaOf('element', column[0])];
  }
  const fields = Object.entries(column);
  return [{ name, repetition_type, num_children: fields.length }, ...fields.flatMap(([own, of]) => schemaOf(own, of))];
}

function isList(column: Column): column is readonly [Column] {
  return Array.isArray(column);
}
