/**
 * CSV as RFC 4180 has it: a header, cells in quotes where they hold commas, quotes or line ends, a quote in them written twice. UTF-8,
 * with or without a byte order mark; lines end in LF or CRLF.
 *
 * Cells are text, whatever they look like. An empty cell is null, an empty cell in quotes is an empty text.
 */
import { fromCells } from './cells.ts';
import { type CsvRecord, recordsOf } from './csv-records.ts';
import { invalid, type RawRow } from './rows.ts';

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
