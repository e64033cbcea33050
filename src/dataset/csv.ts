/**
 * CSV as RFC 4180 has it: a header, cells in quotes where they hold commas, quotes or line ends, a quote in them written twice. UTF-8,
 * with or without a byte order mark; lines end in LF or CRLF. A quote where none may be ends the reading: from there on, cells and lines
 * would be guesses.
 *
 * Cells are text, whatever they look like. An empty cell is null, an empty cell in quotes is an empty text.
 */
import { fromCells } from './jsonl.ts';
import { invalid, MAX_LINE_BYTES, type RawRow } from './rows.ts';

const COMMAS_HINT = 'write the file again with commas between the cells, under a name that ends in .csv';

/** A file that says by its name that tabs are between its cells. */
export function refuseTabs(path: string): never {
  throw invalid(`${path}: the columns of a .tsv file are separated by tabs, expected commas`, { hint: COMMAS_HINT });
}

export async function* readCsv(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<RawRow> {
  let header: readonly string[] | undefined;
  let number = 0;
  for await (const record of recordsOf(chunks, path)) {
    if (header === undefined) {
      header = headerOf(record, path);
      continue;
    }
    const place = `row ${++number} (line ${record.line})`;
    const { cells } = record;
    if (cells.length !== header.length) {
      yield { kind: 'bad', place, problem: `: expected ${header.length} columns, got ${cells.length}` };
    } else {
      yield fromCells(Object.fromEntries(header.map((name, column) => [name, cells[column]])), place);
    }
  }
}

function headerOf({ cells }: CsvRecord, path: string): readonly string[] {
  const names = cells.map((cell) => (cell ?? '').trim());
  const [only = ''] = names;
  const separator = /[;\t|]/.exec(only)?.[0];
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

const MAX_COLUMNS = 4096;

interface CsvRecord {
  /** Null: an empty cell without quotes. */
  readonly cells: readonly (string | null)[];
  /** Line on which it begins, from 1. */
  readonly line: number;
}

/** Streamed. Blank lines are no records. */
export async function* recordsOf(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<CsvRecord> {
  const scanner = new Scanner(path);
  for await (const text of textOf(chunks, path)) yield* scanner.records(text);
  yield* scanner.end();
}

async function* textOf(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<string> {
  // It takes the byte order mark away by itself.
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const decoded = (bytes?: Uint8Array): string => {
    try {
      return bytes === undefined ? decoder.decode() : decoder.decode(bytes, { stream: true });
    } catch (cause) {
      throw invalid(`${path} is not UTF-8`, { cause });
    }
  };
  for await (const chunk of chunks) yield decoded(chunk);
  yield decoded();
}

/** Where in a cell: before its first character, in one without quotes, inside quotes, after a quote that may end it. */
type State = 'begin' | 'plain' | 'quoted' | 'closing';

class Scanner {
  readonly #path: string;
  #state: State = 'begin';
  #cells: (string | null)[] = [];
  #cell = '';
  /** Characters of the record. */
  #held = 0;
  /** A CR that is dropped when LF follows, and kept otherwise. */
  #sawReturn = false;
  #line = 1;
  #recordLine = 1;
  #quoteLine = 1;

  constructor(path: string) {
    this.#path = path;
  }

  *records(text: string): Generator<CsvRecord> {
    for (let i = 0; i < text.length; i++) {
      if (this.#state === 'quoted' || (this.#state === 'plain' && !this.#sawReturn)) i = this.#takeRun(text, i);
      const char = text[i];
      if (char === undefined) return;
      if (this.#state === 'quoted') {
        // Only a quote ends a run inside quotes.
        this.#state = 'closing';
      } else if (this.#sawReturn && char !== '\n') {
        throw this.#wrong(this.#line, 'a carriage return without a line feed, outside of quotes');
      } else if (char === '\n') {
        const record = this.#endRecord();
        if (record !== undefined) yield record;
      } else this.#take(char);
    }
  }

  *end(): Generator<CsvRecord> {
    if (this.#state === 'quoted') throw this.#wrong(this.#quoteLine, 'a quote that is never closed');
    const record = this.#endRecord();
    if (record !== undefined) yield record;
  }

  /** Everything up to the next character that means something; returns its place. */
  #takeRun(text: string, from: number): number {
    const stop = this.#state === 'quoted' ? /"/g : /["\r\n,]/g;
    stop.lastIndex = from;
    const to = stop.exec(text)?.index ?? text.length;
    this.#grow(text.slice(from, to));
    return to;
  }

  /** One character outside of quotes that ends no line. */
  #take(char: string): void {
    if (char === ',') this.#endCell();
    else if (char === '\r') this.#sawReturn = true;
    else if (char !== '"') {
      if (this.#state === 'closing') throw this.#wrong(this.#line, 'text after a closing quote');
      this.#state = 'plain';
      this.#grow(char);
    } else if (this.#state === 'plain') {
      throw this.#wrong(this.#line, 'a quote inside a cell that does not begin with one');
    } else {
      // In 'closing' it is the second one of a pair.
      if (this.#state === 'closing') this.#grow('"');
      else this.#quoteLine = this.#line;
      this.#state = 'quoted';
    }
  }

  #grow(text: string): void {
    this.#cell += text;
    if (this.#state === 'quoted') this.#line += text.split('\n').length - 1;
    this.#held += text.length;
    if (this.#held > MAX_LINE_BYTES) throw this.#wrong(this.#recordLine, `a row of more than ${MAX_LINE_BYTES} characters`);
  }

  #endCell(): void {
    this.#cells.push(this.#state === 'begin' ? null : this.#cell);
    if (this.#cells.length > MAX_COLUMNS) throw this.#wrong(this.#recordLine, `more than ${MAX_COLUMNS} columns`);
    this.#cell = '';
    this.#state = 'begin';
  }

  #endRecord(): CsvRecord | undefined {
    this.#endCell();
    const record = { cells: this.#cells, line: this.#recordLine };
    this.#cells = [];
    this.#held = 0;
    this.#sawReturn = false;
    this.#recordLine = ++this.#line;
    return record.cells.length === 1 && record.cells[0] === null ? undefined : record;
  }

  #wrong(line: number, found: string): Error {
    return invalid(`${this.#path} line ${line}: found ${found}`, {
      hint: 'put cells that hold commas, quotes or line ends in quotes, and write a quote in them twice',
    });
  }
}
