/**
 * A file of tasks: opening it, and reading it as JSONL, one JSON object a line.
 *
 * Whatever is not an ordinary file is refused at once, since reading a pipe or a device may never end; a file of another kind is refused by
 * its first bytes instead of as a line that is not JSON. JSONL is UTF-8, read in pieces: at most one line is held. A message never repeats the
 * text of a line, which may hold an answer.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { extname } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { isObject, MAX_NESTING, sizeOfJson } from '../core/json.ts';
import { invalid, kindOf, MAX_LINE_BYTES, type RawRow } from './rows.ts';

const MAX_FILE_BYTES = 5 * 2 ** 30;
const CHUNK_BYTES = 2 ** 18;

const NOT_THERE =
  'put the tasks beside the entry as train.jsonl and held-out.jsonl, or name them with --tasks and --held-out (format: docs/reference/tasks.md)';
const HINTS: Readonly<Record<string, string>> = {
  EACCES: 'allow this user to read the file and to enter the folders above it',
  EPERM: 'allow this user to read the file and to enter the folders above it',
  ELOOP: 'a link of the path leads back to itself: name the file itself',
  ENAMETOOLONG: 'expected a path: rows themselves are given as a list',
};

export interface TaskFile extends AsyncDisposable {
  readonly path: string;
  readonly size: number;
  /** Throws DATASET_INVALID where somebody wrote to the file since it was opened. */
  checkUnchanged(): Promise<void>;
  /** From the beginning, in pieces; throws at the end what `checkUnchanged` throws. */
  chunks(): AsyncGenerator<Uint8Array>;
  /** Bytes from `start` to `end`, or fewer where the file ends before. */
  slice(start: number, end: number): Promise<Uint8Array>;
}

export async function openTaskFile(path: string): Promise<TaskFile> {
  if (/^[a-z][a-z0-9+.-]+:\/\//i.test(path)) {
    throw invalid(`expected a file of tasks, found the URL ${path}`, {
      hint: 'download it first, and give the path of the file',
    });
  }
  const handle = await opened(path);
  try {
    const { size, mtimeNs } = await factsOf(handle, path);
    const checkUnchanged = async (): Promise<void> => {
      const now = await handle.stat({ bigint: true });
      if (now.mtimeNs !== mtimeNs || Number(now.size) !== size) {
        throw invalid(`${path} was changed while it was read`, { hint: 'run this again when nothing writes to the file' });
      }
    };
    checkHead(path, await sliceOf(handle, 0, HEAD_BYTES));
    return {
      path,
      size,
      checkUnchanged,
      chunks: async function* () {
        yield* chunksOf(handle, size);
        await checkUnchanged();
      },
      slice: (start, end) => sliceOf(handle, start, end),
      [Symbol.asyncDispose]: () => handle.close(),
    };
  } catch (thrown) {
    await handle.close();
    throw thrown;
  }
}

async function opened(path: string): Promise<FileHandle> {
  try {
    // Without it, opening a pipe waits until somebody writes to it.
    return await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code ?? 'unknown';
    throw new TrainyardError('FILE_NOT_FOUND', `cannot read the task file ${path}${code === 'ENOENT' ? '' : `: ${code}`}`, {
      cause,
      hint: HINTS[code] ?? NOT_THERE,
    });
  }
}

async function factsOf(handle: FileHandle, path: string): Promise<{ readonly size: number; readonly mtimeNs: bigint }> {
  const found = await handle.stat({ bigint: true });
  const size = Number(found.size);
  if (!found.isFile()) {
    const what = found.isDirectory() ? 'a folder' : found.isFIFO() ? 'a pipe' : 'a device or socket';
    throw invalid(`expected a file of tasks, found ${what} at ${path}`, {
      hint: found.isDirectory() ? 'name one file in it' : 'write the tasks to a file first',
    });
  }
  if (size > MAX_FILE_BYTES) {
    throw invalid(`${path} has ${(size / 2 ** 30).toFixed(1)} GiB, expected at most 5`, {
      hint: 'split it, or keep large data beside the tasks and name it in metadata',
    });
  }
  return { size, mtimeNs: found.mtimeNs };
}

/** Not beyond what the file had when it was opened: somebody may be writing to it for ever. */
async function* chunksOf(handle: FileHandle, size: number): AsyncGenerator<Uint8Array> {
  for (let position = 0; position < size; ) {
    const bytes = await sliceOf(handle, position, Math.min(position + CHUNK_BYTES, size));
    if (bytes.length === 0) return;
    position += bytes.length;
    yield bytes;
  }
}

async function sliceOf(handle: FileHandle, start: number, end: number): Promise<Uint8Array> {
  const bytes = Buffer.allocUnsafe(Math.max(0, end - start));
  let filled = 0;
  while (filled < bytes.length) {
    const { bytesRead } = await handle.read(bytes, filled, bytes.length - filled, start + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return bytes.subarray(0, filled);
}

const HEAD_BYTES = 8;
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

/** Throws DATASET_INVALID where its first bytes begin a file that is none of tasks, or not of the kind that its name says. */
function checkHead(path: string, head: Uint8Array): void {
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

// ── JSONL ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

const NEWLINE = 0x0a;

export async function* readJsonl({ path, chunks }: Pick<TaskFile, 'path' | 'chunks'>): AsyncGenerator<RawRow> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 0;
  let isFirst = true;
  for await (const { bytes, isEnded } of linesOf(chunks(), path)) {
    number++;
    const place = `line ${number}`;
    let text: string;
    try {
      text = decoder.decode(bytes);
    } catch {
      yield { kind: 'bad', place, problem: ' is not UTF-8' };
      continue;
    }
    if (number === 1) text = text.replace(/^\uFEFF/, '');
    if (text.trim() === '') continue;
    if (isFirst) refuseOneValue(text.trim(), path);
    isFirst = false;
    yield rowOf(text, place, isEnded);
  }
}

/** JSON over many lines, or all rows in one list: said of the file, not of each line. `text`: of the first line. */
function refuseOneValue(text: string, path: string): void {
  const name = /^[\w./-]+$/.test(path) ? path : '<file>';
  if (text.startsWith('[')) {
    throw invalid(`${path} is a JSON list, expected one JSON object a line`, {
      hint: `write it again with one object a line: jq -c '.[]' ${name} > tasks.jsonl`,
    });
  }
  if (text === '{') {
    throw invalid(`${path}: the first JSON object goes on over more lines, expected one JSON object a line`, {
      hint: `write it again with one object a line: jq -c . ${name} > tasks.jsonl`,
    });
  }
}

interface Line {
  readonly bytes: Uint8Array;
  /** Whether a line end follows; the last line may have none. */
  readonly isEnded: boolean;
}

async function* linesOf(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<Line> {
  let [pending, held, number]: [Uint8Array[], number, number] = [[], 0, 1];
  const hold = (piece: Uint8Array): void => {
    held += piece.length;
    if (held > MAX_LINE_BYTES) {
      throw invalid(`${path} line ${number} is longer than ${MAX_LINE_BYTES / 2 ** 20} MiB`, {
        hint: 'one JSON object a line; keep large data in files of their own and name them in metadata',
      });
    }
    pending.push(piece);
  };
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, start)) {
      hold(chunk.subarray(start, end));
      yield { bytes: joined(pending), isEnded: true };
      [pending, held, start] = [[], 0, end + 1];
      number++;
    }
    if (start < chunk.length) hold(chunk.subarray(start));
  }
  if (held > 0) yield { bytes: joined(pending), isEnded: false };
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  return pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces);
}

function rowOf(text: string, place: string, isEnded: boolean): RawRow {
  const parsed = parseJson(text);
  if ('problem' in parsed) {
    const isTorn = !isEnded && !/[}\]]\s*$/.test(text);
    return { kind: 'bad', place, problem: `${parsed.problem}${isTorn ? '; it has no line end: was the file cut off?' : ''}` };
  }
  const { value } = parsed;
  if (!isObject(value)) {
    return { kind: 'bad', place, problem: `: expected a JSON object, found ${kindOf(value)}` };
  }
  return { kind: 'row', place, row: value };
}

/** The value, or what is wrong, to go on from the name of the place. */
export function parseJson(text: string): { readonly value: unknown } | { readonly problem: string } {
  const { nesting, keys } = sizeOfJson(text);
  if (nesting > MAX_NESTING) return { problem: `: nested deeper than ${MAX_NESTING} levels` };
  try {
    const value: unknown = JSON.parse(text);
    // Of two values for one key the last would win, and the other be lost without a word.
    return keysIn(value) === keys ? { value } : { problem: ': an object has one key twice' };
  } catch (thrown) {
    const literal = /[:[,]\s*-?(NaN|Infinity)\b/.exec(text)?.[1];
    return { problem: ` is not valid JSON${literal === undefined ? positionIn(thrown) : `, which has no ${literal}`}` };
  }
}

function keysIn(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const items: readonly unknown[] = Object.values(value);
  return items.reduce<number>((sum, item) => sum + keysIn(item), Array.isArray(value) ? 0 : items.length);
}

/** Where the mistake is, without the text around it: that may be an answer. */
function positionIn(thrown: unknown): string {
  const position = /position (\d+)/.exec(messageOf(thrown))?.[1];
  return position === undefined ? '' : ` (at character ${Number(position) + 1})`;
}
