/** What the first bytes of a file say that it is. A file of another kind is refused by name, not as a line that is no JSON. */
import { extname } from 'node:path';
import { invalid } from './rows.ts';

export const HEAD_BYTES = 8;

const UNPACK = 'unpack it first';
const UTF8 = 'write it again as UTF-8';

const KINDS: readonly { readonly head: readonly number[]; readonly what: string; readonly hint: string }[] = [
  { head: [0x1f, 0x8b], what: 'packed by gzip', hint: `${UNPACK}: gunzip` },
  { head: [0x28, 0xb5, 0x2f, 0xfd], what: 'packed by zstd', hint: `${UNPACK}: unzstd` },
  { head: [0xfd, 0x37, 0x7a, 0x58, 0x5a], what: 'packed by xz', hint: `${UNPACK}: unxz` },
  { head: [0x42, 0x5a, 0x68], what: 'packed by bzip2', hint: `${UNPACK}: bunzip2` },
  { head: [0x50, 0x4b, 0x03, 0x04], what: 'a ZIP archive or a spreadsheet', hint: 'unpack it, or save the sheet as CSV' },
  { head: [...Buffer.from('ARROW1')], what: 'an Arrow file', hint: 'write it as Parquet' },
  { head: [0xff, 0xfe], what: 'UTF-16', hint: UTF8 },
  { head: [0xfe, 0xff], what: 'UTF-16', hint: UTF8 },
];
const PARQUET = [...Buffer.from('PAR1')];
const ENCRYPTED = [...Buffer.from('PARE')];

/** Throws DATASET_INVALID where `head` begins a file that is none of tasks, or not of the kind that its name says. */
export function checkHead(path: string, head: Uint8Array): void {
  const begins = (bytes: readonly number[]): boolean => bytes.every((byte, place) => head[place] === byte);
  const kind = KINDS.find((each) => begins(each.head));
  if (kind !== undefined) throw refused(path, kind.what, kind.hint);
  if (begins(ENCRYPTED)) throw refused(path, 'an encrypted Parquet file', 'write it again without encryption');
  const isNamedParquet = extname(path).toLowerCase() === '.parquet';
  if (begins(PARQUET) && !isNamedParquet) throw refused(path, 'a Parquet file', 'give it a name that ends in .parquet');
}

function refused(path: string, what: string, hint: string): Error {
  return invalid(`expected JSONL, CSV or Parquet by the name of the file, found that ${path} is ${what}`, { hint });
}
