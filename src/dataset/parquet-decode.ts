/**
 * Parquet, one group of rows at a time. Compressed by nothing, snappy, gzip, brotli or zstd; lists and structs become JSON.
 *
 * hyparquet decodes, and does not expect damaged files: `parquet.ts` runs this where it can do no harm.
 */
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib';
import type { ColumnMetaData, Compressors, FileMetaData, RowGroup } from 'hyparquet';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { DataFile } from './data-file.ts';
import { parseJson } from './jsonl.ts';
import { broken, checkFooter, checkGroup, checkPages } from './parquet-check.ts';
import { jsonRow } from './parquet-row.ts';
import { invalid, type RawRow } from './rows.ts';

const MAX_SCHEMA_DEPTH = 32;
/** Rows are handed over when they take so much: texts that a group has once may be in each of its rows. */
const BATCH_BYTES = 16 * 2 ** 20;
const CODECS = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD'];

/** Never more than the page said it would be. */
const compressors: Compressors = {
  GZIP: (bytes, length) => gunzipSync(bytes, { maxOutputLength: Math.max(1, length) }),
  BROTLI: (bytes, length) => brotliDecompressSync(bytes, { maxOutputLength: Math.max(1, length) }),
  ZSTD: (bytes, length) => zstdDecompressSync(bytes, { maxOutputLength: Math.max(1, length) }),
};

/** Without replacement characters for what is no UTF-8, and without the text of what is no JSON in the message. */
const parsers = {
  stringFromBytes: (bytes: Uint8Array | undefined) => bytes && textIn(bytes),
  jsonFromBytes: (bytes: Uint8Array | undefined) => {
    if (bytes === undefined) return undefined;
    const parsed = parseJson(textIn(bytes));
    if ('problem' in parsed) throw new Error(`a cell of JSON${parsed.problem}`);
    return parsed.value;
  },
};

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function textIn(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw new Error('a text is not UTF-8');
  }
}

/** The rows, some at a time, and one group after the other. */
export async function* decodeParquet(data: DataFile): AsyncGenerator<readonly RawRow[]> {
  const { path, size } = data;
  await checkFooter(path, size, data.slice);
  const file = {
    byteLength: size,
    slice: async (start: number, end: number = size) => Uint8Array.from(await data.slice(start, end)).buffer,
  };
  const { parquetMetadataAsync, parquetReadObjects } = await import('hyparquet');
  const metadata = await decoding(path, () => parquetMetadataAsync(file, { geoparquet: false }));
  const leaves = leavesOf(metadata, path);
  const decimals = takeDecimals(metadata, path);
  let before = 0;
  for (const group of metadata.row_groups) {
    const rows = Number(group.num_rows);
    checkLeaves(path, group, leaves);
    await checkColumns(data, group, before);
    const range = { rowStart: before, rowEnd: before + rows };
    const decoded = await decoding(path, () =>
      parquetReadObjects({ file, metadata, compressors, parsers, geoparquet: false, ...range }),
    );
    if (decoded.length !== rows) throw broken(path, `a group has ${decoded.length} rows where its footer says ${rows}`);
    const first = before + 1;
    before += rows;
    let [batch, held]: [RawRow[], number] = [[], 0];
    for (const [place, row] of decoded.entries()) {
      const { raw, bytes } = jsonRow(row, `row ${first + place}`, decimals);
      batch.push(raw);
      held += bytes;
      if (held < BATCH_BYTES) continue;
      yield batch;
      [batch, held] = [[], 0];
    }
    yield batch;
  }
  await data.checkUnchanged();
  if (before !== Number((metadata as FileMetaData).num_rows))
    throw broken(path, 'its groups have not the rows that its footer says');
}

/** The columns as the schema has them, in its order, by their paths. */
function leavesOf({ schema }: FileMetaData, path: string): readonly string[] {
  let next = 0;
  const walk = (above: readonly string[], depth: number): readonly string[] => {
    const element = schema[next++];
    if (element === undefined || depth > MAX_SCHEMA_DEPTH) throw broken(path, 'its schema is damaged');
    const here = depth === 0 ? [] : [...above, element.name];
    const children = Number(element.num_children ?? 0);
    if (children === 0) return [here.join('.')];
    if (!(children > 0 && children < schema.length)) throw broken(path, 'its schema is damaged');
    return Array.from({ length: children }, () => walk(here, depth + 1)).flat();
  };
  const leaves = walk([], 0);
  if (next !== schema.length || new Set(leaves).size !== leaves.length) throw broken(path, 'its schema is damaged');
  return leaves;
}

/**
 * The decimals, by their paths, with their scales. hyparquet multiplies by a power of ten that no number holds, so that 0.3 comes out as
 * 0.30000000000000004: it is told that there is nothing to multiply by, and the whole numbers are made decimals in `parquet-row.ts`.
 */
function takeDecimals({ schema }: FileMetaData, path: string): ReadonlyMap<string, number> {
  const scales = new Map<string, number>();
  let next = 0;
  const walk = (above: readonly string[], isInList: boolean): void => {
    const element = schema[next++];
    if (element === undefined) return;
    const isRoot = next === 1;
    const here = isRoot ? [] : [...above, element.name];
    const isRepeated = isInList || element.repetition_type === 'REPEATED';
    for (let child = 0; child < Number(element.num_children ?? 0); child++) walk(here, isRepeated);
    const { logical_type: logical } = element;
    if (element.converted_type !== 'DECIMAL' && logical?.type !== 'DECIMAL') return;
    if (isRepeated) {
      throw invalid(`${path}: column ${here.join('.')} has decimals in a list, expected texts or other numbers there`, {
        hint: 'write the file again with the column cast',
      });
    }
    scales.set(here.join('.'), Number((logical?.type === 'DECIMAL' ? logical.scale : undefined) ?? element.scale ?? 0));
    element.converted_type = 'DECIMAL';
    element.scale = 0;
  };
  walk([], false);
  return scales;
}

/** A column that the schema does not have is begun by hyparquet and never awaited: its failure would be nobody's. */
function checkLeaves(path: string, { columns }: RowGroup, leaves: readonly string[]): void {
  const found = columns.map(({ meta_data: column }) => column?.path_in_schema.join('.'));
  if (found.length !== leaves.length || found.some((name, place) => name !== leaves[place])) {
    throw broken(path, 'the columns of a group are not those of its schema');
  }
}

async function checkColumns(data: DataFile, group: RowGroup, before: number): Promise<void> {
  const { path, size } = data;
  checkGroup(path, Number(group.num_rows), Number(group.total_byte_size), before);
  let unpacked = 0;
  for (const { meta_data: column } of group.columns) {
    if (column === undefined) throw broken(path, 'a column has no description');
    const { start, end, name } = placeOf(column);
    if (!CODECS.includes(column.codec)) {
      throw invalid(
        `${path}: column ${name} is compressed by ${column.codec}, expected ${CODECS.slice(1).join(', ').toLowerCase()}`,
        {
          hint: 'write the file again with another compression',
        },
      );
    }
    if (!(start >= 0 && end >= start && end <= size)) throw broken(path, `column ${name} lies outside of the file`);
    const chunk = { name, start, end, values: Number(column.num_values) };
    unpacked += checkPages(path, chunk, await data.slice(start, end));
    checkGroup(path, Number(group.num_rows), unpacked, before);
  }
}

function placeOf(column: ColumnMetaData): { readonly name: string; readonly start: number; readonly end: number } {
  const start = Number(column.dictionary_page_offset || column.data_page_offset);
  return { name: column.path_in_schema.join('.'), start, end: start + Number(column.total_compressed_size) };
}

async function decoding<T>(path: string, decode: () => Promise<T>): Promise<T> {
  try {
    return await decode();
  } catch (thrown) {
    if (thrown instanceof TrainyardError) throw thrown;
    throw broken(path, messageOf(thrown).slice(0, 200), thrown);
  }
}
