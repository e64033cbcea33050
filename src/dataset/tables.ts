/**
 * Readers of tables, CSV and Parquet, both to rows with their places.
 *
 * CSV is RFC 4180 as csv-parse reads it: UTF-8, a header, LF or CRLF. Cells are text; an empty cell is null, an empty cell in quotes an empty
 * text. Parquet is what hyparquet reads, one group of rows at a time; lists and structs become JSON. In both, the text of a `metadata` cell
 * is JSON and that of a `prompt` cell may be a list of messages.
 */
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib';
import type { CsvError, Parser } from 'csv-parse';
import type { Compressors, FileMetaData, SchemaTree } from 'hyparquet';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import { invalid, MAX_LINE_BYTES, type RawRow, TOO_LARGE } from './rows.ts';
import { parseJson, type TaskFile } from './task-file.ts';

const COMMAS_HINT = 'write the file again with commas between the cells, under a name that ends in .csv';
const QUOTES_HINT = 'put cells that hold commas, quotes or line ends in quotes, and write a quote in them twice';

// ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

export async function* readCsv({ path, chunks }: Pick<TaskFile, 'path' | 'chunks'>): AsyncGenerator<RawRow> {
  const { parse } = await import('csv-parse');
  const parser = parse({
    bom: true,
    record_delimiter: ['\r\n', '\n'],
    relax_column_count: true,
    skip_empty_lines: true,
    max_record_size: MAX_LINE_BYTES,
    cast: (text, { quoting }) => (text === '' && !quoting ? null : text),
  });
  const feeding = feed(parser, textIn(chunks(), path));
  let header: readonly string[] | undefined;
  try {
    let number = 0;
    for await (const record of parser as AsyncIterable<(string | null)[]>) {
      if (header === undefined) {
        header = headerOf(record, path);
        continue;
      }
      const place = `row ${++number}`;
      const { length } = header;
      if (record.length !== length) {
        yield { kind: 'bad', place, problem: `: expected ${length} columns, got ${record.length}` };
      } else yield fromCells(Object.fromEntries(header.map((name, column) => [name, record[column]])), place);
    }
    await feeding;
  } catch (thrown) {
    throw thrown instanceof TrainyardError ? thrown : brokenCsv(path, thrown as CsvError);
  } finally {
    parser.destroy();
  }
}

/** Resolves when everything was parsed; a failure of the source is the parser's. */
async function feed(parser: Parser, texts: AsyncIterable<string>): Promise<void> {
  try {
    for await (const text of texts) {
      if (parser.destroyed) return;
      if (!parser.write(text)) await new Promise((resolve) => parser.once('drain', resolve).once('close', resolve));
    }
    parser.end();
  } catch (thrown) {
    parser.destroy(thrown as Error);
  }
}

async function* textIn(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const decoded = (bytes?: Uint8Array): string => {
    try {
      return decoder.decode(bytes, { stream: bytes !== undefined });
    } catch (cause) {
      throw invalid(`${path} is not UTF-8`, { cause });
    }
  };
  for await (const chunk of chunks) yield decoded(chunk);
  yield decoded();
}

function headerOf(cells: readonly (string | null)[], path: string): readonly string[] {
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

const CSV_FAULTS: Readonly<Record<string, string>> = {
  CSV_QUOTE_NOT_CLOSED: 'a quote that is never closed',
  INVALID_OPENING_QUOTE: 'a quote inside a cell that does not begin with one',
  CSV_INVALID_CLOSING_QUOTE: 'text after a closing quote',
  CSV_MAX_RECORD_SIZE: `a row of more than ${MAX_LINE_BYTES} characters`,
};

/** The parser's own messages quote cells, which may hold an answer. */
function brokenCsv(path: string, { code, records = 0 }: CsvError & { readonly records?: number }): Error {
  const place = records === 0 ? 'the first line' : `row ${records}`;
  return invalid(`${path} ${place}: found ${CSV_FAULTS[code] ?? `what is not CSV (${code})`}`, { hint: QUOTES_HINT });
}

/** A file that says by its name that tabs are between its cells. */
export function refuseTabs(path: string): never {
  throw invalid(`${path}: the columns of a .tsv file are separated by tabs, expected commas`, { hint: COMMAS_HINT });
}

// ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

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

/** Text that is not UTF-8 is an error, and the message about a cell that is not JSON does not quote it. */
const parsers = {
  stringFromBytes: (bytes: Uint8Array | undefined) => bytes && decodeText(bytes),
  jsonFromBytes: (bytes: Uint8Array | undefined) => {
    if (bytes === undefined) return undefined;
    const parsed = parseJson(decodeText(bytes));
    if ('problem' in parsed) throw new Error(`a cell of JSON${parsed.problem}`);
    return parsed.value;
  },
};

export async function* readParquet({ path, size, slice, checkUnchanged }: TaskFile): AsyncGenerator<RawRow> {
  const { parquetMetadataAsync, parquetReadObjects, parquetSchema } = await import('hyparquet');
  const file = {
    byteLength: size,
    slice: async (start: number, end: number = size) => Uint8Array.from(await slice(start, end)).buffer,
  };
  const options = { file, compressors, parsers, geoparquet: false };
  const metadata = await decoding(path, () => parquetMetadataAsync(file, { geoparquet: false }));
  checkCodecs(metadata, path);
  const decimals = takeDecimals(parquetSchema(metadata), path);
  let before = 0;
  for (const { num_rows: rows } of metadata.row_groups) {
    const range = { rowStart: before, rowEnd: before + Number(rows) };
    const decoded = await decoding(path, () => parquetReadObjects({ ...options, metadata, ...range }));
    for (const row of decoded) yield jsonRow(row, `row ${++before}`, decimals);
    if (before !== range.rowEnd) throw broken(path, `a group has ${decoded.length} rows where its footer says ${rows}`);
  }
  await checkUnchanged();
}

async function decoding<T>(path: string, decode: () => Promise<T>): Promise<T> {
  try {
    return await decode();
  } catch (thrown) {
    throw broken(path, messageOf(thrown).slice(0, 200), thrown);
  }
}

function broken(path: string, what: string, cause?: unknown): Error {
  const hint = 'was it written or copied to its end? Write it again';
  return invalid(`${path} cannot be read as Parquet: ${what}`, { cause, hint });
}

function checkCodecs({ row_groups: groups }: FileMetaData, path: string): void {
  const known = ['UNCOMPRESSED', 'SNAPPY', ...Object.keys(compressors)];
  for (const { meta_data: column } of groups.flatMap(({ columns }) => columns)) {
    if (column === undefined || known.includes(column.codec)) continue;
    throw invalid(
      `${path}: column ${column.path_in_schema.join('.')} is compressed by ${column.codec}, expected ${known.slice(1).join(', ').toLowerCase()}`,
      { hint: 'write the file again with another compression' },
    );
  }
}

/**
 * The scales of the decimal columns, by name. hyparquet multiplies by a power of ten that no number holds, so that 0.3 comes out as
 * 0.30000000000000004: the schema is changed to have nothing to multiply by, and `jsonRow` makes the whole numbers decimals.
 */
function takeDecimals(tree: SchemaTree, path: string): ReadonlyMap<string, number> {
  const scales = new Map<string, number>();
  const walk = ({ element, children, path: names }: SchemaTree, isInList: boolean): void => {
    const { logical_type: logical } = element;
    const isRepeated = isInList || element.repetition_type === 'REPEATED';
    for (const child of children) walk(child, isRepeated);
    if (element.converted_type !== 'DECIMAL' && logical?.type !== 'DECIMAL') return;
    const name = names.join('.');
    if (isRepeated) {
      throw invalid(`${path}: column ${name} has decimals in a list, expected texts or other numbers there`, {
        hint: 'write the file again with the column cast',
      });
    }
    scales.set(name, Number((logical?.type === 'DECIMAL' ? logical.scale : undefined) ?? element.scale ?? 0));
    element.converted_type = 'DECIMAL';
    element.scale = 0;
  };
  walk(tree, false);
  return scales;
}

class NotJson extends Error {}

/** Whole numbers and decimals become numbers where those are exact, times become ISO 8601; anything else that is not JSON is refused. */
function jsonRow(row: Readonly<Record<string, unknown>>, place: string, decimals: ReadonlyMap<string, number>): RawRow {
  const json = (value: unknown, name: string): unknown => {
    if (value === undefined || value === null) return null;
    if (typeof value === 'bigint') {
      if (!Number.isSafeInteger(Number(value))) throw new NotJson(`${name}: ${TOO_LARGE}`);
      return Number(value);
    }
    const scale = decimals.get(name);
    if (typeof value === 'number' && scale !== undefined) {
      if (Number.isSafeInteger(value)) return Number(`${value}e-${scale}`);
      throw new NotJson(`${name}: found a decimal with more digits than a number holds; write it as text`);
    }
    if (typeof value !== 'object') return value;
    if (value instanceof Date) return value.toISOString();
    if (ArrayBuffer.isView(value)) throw new NotJson(`${name}: expected text, numbers, lists or structs, found bytes`);
    if (Array.isArray(value)) return value.map((item) => json(item, name));
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, json(item, `${name}.${key}`)]));
  };
  try {
    return fromCells(Object.fromEntries(Object.entries(row).map(([name, value]) => [name, json(value, name)])), place);
  } catch (thrown) {
    return { kind: 'bad', place, problem: `: ${messageOf(thrown)}` };
  }
}

// ── cells ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

function fromCells(cells: Readonly<Record<string, unknown>>, place: string): RawRow {
  const { metadata, prompt } = cells;
  const row = typeof prompt === 'string' ? { ...cells, prompt: messagesIn(prompt) ?? prompt } : cells;
  if (typeof metadata !== 'string') return { kind: 'row', place, row };
  const parsed = parseJson(metadata);
  if ('problem' in parsed) return { kind: 'bad', place, problem: `: metadata${parsed.problem}` };
  return { kind: 'row', place, row: { ...row, metadata: parsed.value } };
}

/** A text that merely looks like JSON is a prompt as it stands. */
function messagesIn(text: string): unknown {
  if (!/^\s*\[\s*\{/.test(text)) return undefined;
  const parsed = parseJson(text);
  const isMessages =
    'value' in parsed &&
    Array.isArray(parsed.value) &&
    parsed.value.every((message) => isObject(message) && 'role' in message && 'content' in message);
  return isMessages ? parsed.value : undefined;
}
