/**
 * Parquet, one group of rows at a time. Compressed by nothing, snappy, gzip, brotli or zstd; lists and structs become JSON.
 *
 * hyparquet decodes, and does not expect damaged files: `parquet.ts` runs this where it can do no harm.
 */
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib';
import type { Compressors, FileMetaData, RowGroup, SchemaElement } from 'hyparquet';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { DataFile } from './data-file.ts';
import { fromCells, parseJson } from './jsonl.ts';
import { broken, checkFooter, checkGroup, checkPages } from './parquet-check.ts';
import { invalid, MAX_LINE_BYTES, MAX_ROW_BYTES, type RawRow, TOO_LARGE } from './rows.ts';

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
  const decimals = takeDecimals(leaves, path);
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

interface Leaf {
  readonly name: string;
  readonly element: SchemaElement;
  readonly isInList: boolean;
}

/** The columns as the schema has them, in its order, named by their paths. */
function leavesOf({ schema }: FileMetaData, path: string): readonly Leaf[] {
  let next = 0;
  const walk = (above: readonly string[], isInList: boolean, depth: number): readonly Leaf[] => {
    const element = schema[next++];
    if (element === undefined || depth > MAX_SCHEMA_DEPTH) throw broken(path, 'its schema is damaged');
    const here = depth === 0 ? [] : [...above, element.name];
    const isRepeated = isInList || element.repetition_type === 'REPEATED';
    const children = Number(element.num_children ?? 0);
    if (children === 0) return [{ name: here.join('.'), element, isInList: isRepeated }];
    if (!(children > 0 && children < schema.length)) throw broken(path, 'its schema is damaged');
    return Array.from({ length: children }, () => walk(here, isRepeated, depth + 1)).flat();
  };
  const leaves = walk([], false, 0);
  const names = new Set(leaves.map(({ name }) => name));
  if (next !== schema.length || names.size !== leaves.length) throw broken(path, 'its schema is damaged');
  return leaves;
}

/**
 * The decimals, by their paths, with their scales. hyparquet multiplies by a power of ten that no number holds, so that 0.3 comes out as
 * 0.30000000000000004: it is told that there is nothing to multiply by, and the whole numbers are made decimals in `jsonRow`.
 */
function takeDecimals(leaves: readonly Leaf[], path: string): ReadonlyMap<string, number> {
  const scales = new Map<string, number>();
  for (const { name, element, isInList } of leaves) {
    const { logical_type: logical } = element;
    if (element.converted_type !== 'DECIMAL' && logical?.type !== 'DECIMAL') continue;
    if (isInList) {
      throw invalid(`${path}: column ${name} has decimals in a list, expected texts or other numbers there`, {
        hint: 'write the file again with the column cast',
      });
    }
    scales.set(name, Number((logical?.type === 'DECIMAL' ? logical.scale : undefined) ?? element.scale ?? 0));
    element.converted_type = 'DECIMAL';
    element.scale = 0;
  }
  return scales;
}

/** A column that the schema does not have is begun by hyparquet and never awaited: its failure would be nobody's. */
function checkLeaves(path: string, { columns }: RowGroup, leaves: readonly Leaf[]): void {
  const found = columns.map(({ meta_data: column }) => column?.path_in_schema.join('.'));
  if (found.length !== leaves.length || found.some((name, place) => name !== leaves[place]?.name)) {
    throw broken(path, 'the columns of a group are not those of its schema');
  }
}

async function checkColumns(data: DataFile, group: RowGroup, before: number): Promise<void> {
  const { path, size } = data;
  checkGroup(path, Number(group.num_rows), Number(group.total_byte_size), before);
  let unpacked = 0;
  for (const { meta_data: column } of group.columns) {
    if (column === undefined) throw broken(path, 'a column has no description');
    const name = column.path_in_schema.join('.');
    const start = Number(column.dictionary_page_offset || column.data_page_offset);
    const end = start + Number(column.total_compressed_size);
    if (!CODECS.includes(column.codec)) {
      throw invalid(
        `${path}: column ${name} is compressed by ${column.codec}, expected ${CODECS.slice(1).join(', ').toLowerCase()}`,
        {
          hint: 'write the file again with another compression',
        },
      );
    }
    if (!(start >= 0 && end >= start && end <= size)) throw broken(path, `column ${name} lies outside of the file`);
    unpacked += checkPages(path, { name, values: Number(column.num_values) }, await data.slice(start, end));
    checkGroup(path, Number(group.num_rows), unpacked, before);
  }
}

async function decoding<T>(path: string, decode: () => Promise<T>): Promise<T> {
  try {
    return await decode();
  } catch (thrown) {
    if (thrown instanceof TrainyardError) throw thrown;
    throw broken(path, messageOf(thrown).slice(0, 200), thrown);
  }
}

interface JsonRow {
  readonly raw: RawRow;
  /** What it takes in memory, at most. */
  readonly bytes: number;
}

/**
 * One decoded row as JSON. Whole numbers and decimals become numbers where those are exact, else the row is refused. Times become texts
 * (ISO 8601). Bytes that are no text are refused. `decimals`: the scales of the columns that have whole numbers to be divided by a power of
 * ten.
 */
function jsonRow(row: Readonly<Record<string, unknown>>, place: string, decimals: ReadonlyMap<string, number>): JsonRow {
  const reading = new CellReading(decimals);
  const cells = Object.fromEntries(Object.entries(row).map(([name, value]) => [name, reading.json(value, name)]));
  const { problem, bytes } = reading;
  if (problem === undefined) return { raw: fromCells(cells, place), bytes };
  return { raw: { kind: 'bad', place, problem }, bytes: 0 };
}

class CellReading {
  problem: string | undefined;
  bytes = 0;
  readonly #decimals: ReadonlyMap<string, number>;

  constructor(decimals: ReadonlyMap<string, number>) {
    this.#decimals = decimals;
  }

  json(value: unknown, name: string): unknown {
    if (value === undefined || value === null || this.problem !== undefined) return null;
    this.bytes += 16;
    if (typeof value === 'string') return this.#text(value, name);
    if (typeof value === 'bigint') {
      const number = Number(value);
      return Number.isSafeInteger(number) ? number : this.#refuse(name, TOO_LARGE);
    }
    if (typeof value === 'number') return this.#number(value, name);
    if (typeof value !== 'object') return value;
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? this.#refuse(name, 'found no date') : value.toISOString();
    if (ArrayBuffer.isView(value)) return this.#refuse(name, 'expected text, numbers, lists or structs, found bytes');
    if (Array.isArray(value)) return value.map((item) => this.json(item, name));
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.json(item, `${name}.${key}`)]));
  }

  #text(text: string, name: string): string | null {
    this.bytes += 2 * text.length;
    if (text.length > MAX_LINE_BYTES) return this.#refuse(name, `found a text of more than ${MAX_LINE_BYTES} characters`);
    return this.bytes > MAX_ROW_BYTES ? this.#refuse(name, `holds more than ${MAX_ROW_BYTES / 2 ** 20} MiB`) : text;
  }

  #number(value: number, name: string): number | null {
    const scale = this.#decimals.get(name);
    if (scale === undefined) return value;
    if (!Number.isSafeInteger(value)) {
      return this.#refuse(name, 'found a decimal with more digits than a number holds; write it as text');
    }
    return Number(`${value}e-${scale}`);
  }

  #refuse(name: string, found: string): null {
    this.problem ??= `: ${name}: ${found}`;
    return null;
  }
}
