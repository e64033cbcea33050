/**
 * Takes rollouts out of Trainyard as training data for other people's trainers, from a run or a store file. Reads one group at a time, so
 * memory holds the largest group and not the run. What is left out is counted by reason, never dropped silently. The file has its name only
 * once it is complete, and replaces nothing. data-rows.ts decides what a row is.
 */
import { createWriteStream, existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { SchemaElement } from 'hyparquet';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { rowFilter } from '../core/filter.ts';
import { isSuccess, summaryOf, withoutExcluded } from '../core/turns.ts';
import type { Purpose, Trajectory } from '../core/types.ts';
import { readRunFile } from '../run/directory.ts';
import { exclusionsOf, rowOf, stepsIn } from '../run/inspect.ts';
import { openStoreOf } from '../run/run-store.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { checkFree, completed } from '../store/whole-output.ts';
import { turnAdvantagesOf } from '../training/advantages.ts';
import { compared } from '../training/objective.ts';
import { type Column, DATA_FORMATS, type DataFormat, isList, LeftOut, type Only, type Row, type Scalar } from './data-rows.ts';

/** Rows of a Parquet row group, which are in memory at once. */
const ROW_GROUP = 128;

export interface DataRequest {
  /** A run directory or a store file; with `store`, also the id of a run. */
  readonly from: string;
  /** The URL of its database, if it is in one. */
  readonly store?: string | undefined;
  readonly format: keyof typeof DATA_FORMATS;
  readonly to: string;
  /** Default: training rollouts if there are any, so that held-out tasks do not get into training data; else those of evaluations. */
  readonly purpose?: Purpose;
  /** Default: as the format says. */
  readonly only?: Only;
  /** Only rollouts that pass it, in the language of core/filter.ts. */
  readonly filter?: string;
}

export interface ExportedData extends Required<Omit<DataRequest, 'from' | 'store' | 'filter'>> {
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
  rowFilter(request.filter ?? '');
  await checkFree(to);
  if (isDirectory(to)) throw new TrainyardError('USAGE', `to: expected a file, found the folder ${to}`);
  await using store = await openStoreOf(from, request);
  const { only = written.only } = request;
  const { purpose = (await store.count({ purpose: 'train', limit: 1 })) > 0 ? 'train' : 'eval' } = request;
  const tally: Tally = { rollouts: 0, rows: 0, leftOut: {} };
  const bytes = await completed(to, async (path) => {
    const rows = rowsOf(store, { ...request, only, purpose }, tally, stop);
    await (written.file === 'parquet' ? writeParquet(path, rows, written) : writeLines(path, rows));
    if (tally.rows === 0) throw nothingLeft(from, purpose, tally);
  });
  return { format, to, purpose, only, bytes, ...tally };
}

function isDirectory(path: string): boolean {
  return existsSync(path) && statSync(path).isDirectory();
}

interface Tally {
  rollouts: number;
  rows: number;
  readonly leftOut: Record<string, number>;
}

/** Adds to the tally what it gives and what it leaves out. */
export async function* rowsOf(
  store: Store,
  request: Required<Omit<DataRequest, 'store' | 'filter'>> & Pick<DataRequest, 'filter'>,
  tally: Tally,
  stop?: AbortSignal,
): AsyncGenerator<Row> {
  const { from, format, purpose, only, filter = '' } = request;
  const passes = rowFilter(filter);
  const marks = await exclusionsOf(store);
  const steps = await stepsIn(store);
  const comparison = comparisonOf(from);
  const leaveOut = (what: string, n = 1): void => {
    if (n > 0) tally.leftOut[what] = (tally.leftOut[what] ?? 0) + n;
  };
  for (const [number, groupId] of (await store.groupIds({ purpose })).entries()) {
    stop?.throwIfAborted();
    const all = await store.query({ groupId, purpose });
    const group = withoutExcluded(
      all,
      all.flatMap(({ rolloutId }) => marks.get(rolloutId) ?? []),
    );
    leaveOut('excluded by trainyard curate', all.length - group.length);
    const advantageOf = comparison(group);
    for (const trajectory of group) {
      const step = steps.get(trajectory.rolloutId) ?? null;
      const rollout = { trajectory, step, group: number, leaveOut, advantageOf: advantageOf.bind(undefined, trajectory) };
      try {
        if (!passes(rowOf(summaryOf(trajectory, 0), steps, marks))) throw new LeftOut('that do not pass the filter');
        requireWanted(trajectory, only);
        const rows = DATA_FORMATS[format].rowsOf(rollout);
        tally.rollouts += 1;
        tally.rows += rows.length;
        yield* rows;
      } catch (thrown) {
        if (!(thrown instanceof LeftOut)) throw thrown;
        leaveOut(thrown.message);
      }
    }
  }
}

/** How the run turns rewards into advantages. An evaluation does not; dpo has none, and those of reinforce++ depend on the batch. */
export function comparisonOf(from: string): (group: readonly Trajectory[]) => ReturnType<typeof turnAdvantagesOf> {
  const record = existsSync(join(from, 'run.json')) ? readRunFile(from) : {};
  const { settings = {} } = record as { readonly settings?: Partial<TrainSettings> };
  const { algorithm = 'grpo', weighting = 'tokens', loss = 'ppo', limits, overlongBuffer, overlongFactor } = settings;
  if (loss === 'dpo' || algorithm === 'reinforce++') return () => () => undefined;
  return (group) => {
    const rows = limits === undefined ? group : compared(group, { loss, limits, overlongBuffer, overlongFactor });
    const byId = new Map(rows.map((row) => [row.rolloutId, row]));
    const advantageOf = turnAdvantagesOf(rows, algorithm, weighting);
    return (trajectory, turn) => advantageOf(byId.get(trajectory.rolloutId) ?? trajectory, turn);
  };
}

function requireWanted(trajectory: Trajectory, only: Only): void {
  if (only !== 'all' && trajectory.grade.kind !== 'graded') throw new LeftOut('without a reward');
  if (only === 'successes' && !isSuccess(trajectory)) throw new LeftOut('without success');
}

function nothingLeft(from: string, purpose: Purpose, { leftOut }: Tally): TrainyardError {
  const why = Object.entries(leftOut).map(([what, n]) => `${n} ${what}`);
  const found = why.length === 0 ? `no rollouts of purpose ${purpose}` : `no rollout that can be written, but ${why.join(', ')}`;
  const hint = 'choose others with --purpose, --only or --filter, or another --format; trainyard show lists what a run holds';
  return new TrainyardError('USAGE', `${from} holds ${found}`, hint);
}

async function writeLines(path: string, rows: AsyncIterable<Row>): Promise<void> {
  const lines = async function* (): AsyncGenerator<string> {
    for await (const row of rows) yield `${JSON.stringify(row)}\n`;
  };
  await pipeline(lines, createWriteStream(path));
}

async function writeParquet(path: string, rows: AsyncIterable<Record<string, unknown>>, { columns }: DataFormat): Promise<void> {
  const { fileWriter, parquetWriteRows } = await import('hyparquet-writer');
  const types = Object.entries(columns).map(([name, [type]]) => [name, type] as const);
  const schema = [{ name: 'root', num_children: types.length }, ...types.flatMap(([name, type]) => schemaOf(name, type))];
  const named = types.map(([name]) => ({ name }));
  await parquetWriteRows({ writer: fileWriter(path), rows, columns: named, schema, rowGroupSize: ROW_GROUP });
}

const TEXT = { type: 'BYTE_ARRAY', converted_type: 'UTF8' } as const;
const TYPES: Readonly<Record<Scalar, Pick<SchemaElement, 'type' | 'converted_type'>>> = {
  text: TEXT,
  json: TEXT,
  boolean: { type: 'BOOLEAN' },
  int: { type: 'INT32' },
  float: { type: 'FLOAT' },
  double: { type: 'DOUBLE' },
};

/** In Parquet's order: each column before its own. */
function schemaOf(name: string, column: Column): SchemaElement[] {
  const optional = { name, repetition_type: 'OPTIONAL' } as const;
  if (typeof column === 'string') return [{ ...optional, ...TYPES[column] }];
  if (isList(column)) {
    const list: SchemaElement = { name: 'list', repetition_type: 'REPEATED', num_children: 1 };
    return [{ ...optional, converted_type: 'LIST', num_children: 1 }, list, ...schemaOf('element', column[0])];
  }
  const fields = Object.entries(column);
  return [{ ...optional, num_children: fields.length }, ...fields.flatMap(([own, type]) => schemaOf(own, type))];
}
