/**
 * Reads CSV and Parquet into rows with their places. CSV is RFC 4180 as csv-parse reads it: UTF-8, a header, LF or CRLF. Its cells are
 * text; an empty cell is null, a quoted empty cell is ''. Parquet is read by hyparquet, one row group at a time; lists and structs become
 * JSON. In both, the text of a `metadata` cell is JSON, and that of a `prompt` cell may be a list of messages.
 */
import { pipeline } from 'node:stream';
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib';
import type { Compressors, SchemaTree } from 'hyparquet';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { ByName } from '../core/types.ts';
import { invalid, MAX_LINE_BYTES, type RawRow, TOO_LARGE } from './rows.ts';
import { parseJson } from './task-file.ts';

/** Tasks use a handful. */
const MOST_COLUMNS = 1_000;
const COMMAS_HINT = 'write the file again with commas between the cells, under a name that ends in .csv';
const QUOTES_HINT = 'put cells that hold commas, quotes or line ends in quotes, and write a quote in them twice';

export async function* readCsv(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<RawRow> {
  const { parse } = await import('csv-parse');
  const parser = parse({
    bom: true,
    record_delimiter: ['\r\n', '\n'],
    relax_column_count: true,
    skip_empty_lines: true,
    max_record_size: MAX_LINE_BYTES,
    cast: (text, { quoting }) => (text === '' && !quoting ? null : text),
  });
  let header: readonly string[] | undefined;
  let number = 0;
  try {
    // A failure of the source also ends the parser, so the loop below throws it.
    pipeline(textIn(chunks), parser, () => {});
    for await (const record of parser as AsyncIterable<(string | null)[]>) {
      if (header === undefined) {
        header = headerOf(record, path);
        continue;
      }
      const place = `row ${++number}`;
      const { length } = header;
      if (record.length === length)
        yield fromCells(Object.fromEntries(header.map((name, column) => [name, record[column]])), place);
      else yield { kind: 'bad', place, problem: `: expected ${length} columns, got ${record.length}` };
    }
  } catch (thrown) {
    throw thrown instanceof TrainyardError ? thrown : brokenCsv(path, thrown as CsvFailure);
  }
}

async function* textIn(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  for await (const chunk of chunks) yield decoder.decode(chunk, { stream: true });
  yield decoder.decode();
}

function headerOf(cells: readonly (string | null)[], path: string): readonly string[] {
  if (cells.length > MOST_COLUMNS) throw invalid(`${path}: expected at most ${MOST_COLUMNS} columns, found ${cells.length}`);
  const names = cells.map((cell) => (cell ?? '').trim());
  const separator = /[;\t|]/.exec(names[0] ?? '')?.[0];
  if (names.length === 1 && separator !== undefined) {
    const found = separator === '\t' ? 'tabs' : JSON.stringify(separator);
    throw invalid(`${path}: expected columns separated by commas, found ${found} between their names`, { hint: COMMAS_HINT });
  }
  const blank = names.indexOf('');
  if (blank !== -1) throw invalid(`${path}: column ${blank + 1} has no name in the first line`);
  const twice = names.find((name, column) => names.indexOf(name) !== column);
  if (twice !== undefined) throw invalid(`${path}: column ${JSON.stringify(twice.slice(0, 80))} is there twice`);
  return names;
}

const CSV_FAULTS: ByName<string> = {
  CSV_QUOTE_NOT_CLOSED: 'a quote that is never closed',
  INVALID_OPENING_QUOTE: 'a quote inside a cell that does not begin with one',
  CSV_INVALID_CLOSING_QUOTE: 'text after a closing quote',
  CSV_MAX_RECORD_SIZE: `a row of more than ${MAX_LINE_BYTES} characters`,
};

interface CsvFailure {
  readonly code: string;
  readonly records?: number;
}

/** Does not use the parser's own messages: they quote cells, which may hold an answer. */
function brokenCsv(path: string, { code, records = 0 }: CsvFailure): Error {
  if (code === 'ERR_ENCODING_INVALID_ENCODED_DATA') return invalid(`${path} is not UTF-8`);
  const place = records === 0 ? 'the first line' : `row ${records}`;
  return invalid(`${path} ${place}: found ${CSV_FAULTS[code] ?? `what is not CSV (${code})`}`, { hint: QUOTES_HINT });
}

export function refuseTabs(path: string): never {
  throw invalid(`${path}: the columns of a .tsv file are separated by tabs, expected commas`, { hint: COMMAS_HINT });
}

const compressors: Compressors = {
  GZIP: (bytes) => gunzipSync(bytes),
  BROTLI: (bytes) => brotliDecompressSync(bytes),
  ZSTD: (bytes) => zstdDecompressSync(bytes),
};

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function decodeText(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new Error('a text is not UTF-8');
  }
}

/** Rejects text that is not UTF-8, and reports invalid JSON without quoting the cell. */
const parsers = {
  stringFromBytes: (bytes: Uint8Array | undefined) => bytes && decodeText(bytes),
  jsonFromBytes: (bytes: Uint8Array | undefined) => {
    if (bytes === undefined) return undefined;
    const parsed = parseJson(decodeText(bytes));
    if ('problem' in parsed) throw new Error(`a cell of JSON${parsed.problem}`);
    return parsed.value;
  },
};

export async function* readParquet(path: string): AsyncGenerator<RawRow> {
  const { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects, parquetSchema } = await import('hyparquet');
  const decoding = async <T>(decode: () => Promise<T>): Promise<T> => {
    try {
      return await decode();
    } catch (cause) {
      const hint = 'was it written or copied to its end? Write it again';
      throw invalid(`${path} cannot be read as Parquet: ${messageOf(cause).slice(0, 200)}`, { cause, hint });
    }
  };
  const file = await asyncBufferFromFile(path);
  const metadata = await decoding(() => parquetMetadataAsync(file, { geoparquet: false }));
  const options = { file, metadata, compressors, parsers, geoparquet: false };
  const decimals = takeDecimals(parquetSchema(metadata), path);
  let rowStart = 0;
  for (const { num_rows: rows } of metadata.row_groups) {
    const rowEnd = rowStart + Number(rows);
    const decoded = await decoding(() => parquetReadObjects({ ...options, rowStart, rowEnd }));
    for (const row of decoded) yield jsonRow(row, `row ${++rowStart}`, decimals);
  }
}

/**
 * Returns the scales of decimal columns, by name. hyparquet multiplies by a power of ten that floats cannot represent, so 0.3 becomes
 * 0.30000000000000004. This sets the scale in the schema to 0, and `jsonRow` converts the integers exactly.
 */
function takeDecimals(tree: SchemaTree, path: string): ReadonlyMap<string, number> {
  const scales = new Map<string, number>();
  const walk = ({ element, children, path: names }: SchemaTree, isInList: boolean) => {
    const { logical_type: logical } = element;
    const isRepeated = isInList || element.repetition_type === 'REPEATED';
    for (const child of children) walk(child, isRepeated);
    if (element.converted_type !== 'DECIMAL' && logical?.type !== 'DECIMAL') return;
    const name = names.join('.');
    if (isRepeated) {
      const hint = 'write the file again with the column cast';
      throw invalid(`${path}: column ${name} has decimals in a list, expected texts or other numbers there`, { hint });
    }
    scales.set(name, Number((logical?.type === 'DECIMAL' ? logical.scale : undefined) ?? element.scale ?? 0));
    element.converted_type = 'DECIMAL';
    element.scale = 0;
  };
  walk(tree, false);
  return scales;
}

/** Converts integers and decimals to numbers if they are exact, and times to ISO 8601. Rejects anything else that is not JSON. */
function jsonRow(row: ByName<unknown>, place: string, decimals: ReadonlyMap<string, number>): RawRow {
  const json = (value: unknown, name: string): unknown => {
    if (value === undefined || value === null) return null;
    if (typeof value === 'bigint') {
      if (!Number.isSafeInteger(Number(value))) throw new Error(`${name}: ${TOO_LARGE}`);
      return Number(value);
    }
    const scale = decimals.get(name);
    if (typeof value === 'number' && scale !== undefined) {
      if (Number.isSafeInteger(value)) return Number(`${value}e-${scale}`);
      throw new Error(`${name}: found a decimal with more digits than a number holds; write it as text`);
    }
    if (typeof value !== 'object') return value;
    if (value instanceof Date) return value.toISOString();
    if (ArrayBuffer.isView(value)) throw new Error(`${name}: expected text, numbers, lists or structs, found bytes`);
    if (Array.isArray(value)) return value.map((item) => json(item, name));
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, json(item, `${name}.${key}`)]));
  };
  try {
    return fromCells(Object.fromEntries(Object.entries(row).map(([name, value]) => [name, json(value, name)])), place);
  } catch (thrown) {
    return { kind: 'bad', place, problem: `: ${messageOf(thrown)}` };
  }
}

function fromCells(cells: ByName<unknown>, place: string): RawRow {
  const { metadata, prompt } = cells;
  const row = typeof prompt === 'string' ? { ...cells, prompt: messagesIn(prompt) ?? prompt } : cells;
  if (typeof metadata !== 'string') return { kind: 'row', place, row };
  const parsed = parseJson(metadata);
  if ('problem' in parsed) return { kind: 'bad', place, problem: `: metadata${parsed.problem}` };
  return { kind: 'row', place, row: { ...row, metadata: parsed.value } };
}

/** Undefined if the text only looks like JSON: it is then the prompt itself. */
function messagesIn(text: string): unknown {
  if (!/^\s*\[\s*\{/.test(text)) return undefined;
  const parsed = parseJson(text);
  const isMessages =
    'value' in parsed &&
    Array.isArray(parsed.value) &&
    parsed.value.every((message) => isObject(message) && 'role' in message && 'content' in message);
  return isMessages ? parsed.value : undefined;
}
