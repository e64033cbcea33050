/**
 * Opens a task file, and reads it as JSONL: UTF-8, one JSON object per line, read in chunks. Rejects anything but a regular file at once,
 * since reading a pipe or device may never end. Recognises other file formats by their first bytes, rather than report a line that is not
 * JSON. Messages never quote a line, which may hold an answer.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { extname } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { isObject, MAX_NESTING, sizeOfJson } from '../core/json.ts';
import { invalid, kindOf, MAX_LINE_BYTES, type RawRow } from './rows.ts';

const MAX_FILE_BYTES = 5 * 2 ** 30;

const NOT_THERE =
  'put the tasks beside the entry as train.jsonl and held-out.jsonl, or name them with --tasks and --held-out (format: trainyard help tasks)';
const NOT_ALLOWED = 'allow this user to read the file and to enter the folders above it';
const HINTS: Readonly<Record<string, string>> = {
  EACCES: NOT_ALLOWED,
  EPERM: NOT_ALLOWED,
  ELOOP: 'a link of the path leads back to itself: name the file itself',
  ENAMETOOLONG: 'expected a path: rows themselves are given as a list',
};

export async function openTaskFile(path: string): Promise<FileHandle> {
  if (/^[a-z][a-z0-9+.-]+:\/\//i.test(path)) {
    const hint = 'download it first, and give the path of the file';
    throw invalid(`expected a file of tasks, found the URL ${path}`, { hint });
  }
  const handle = await opened(path);
  try {
    await checkKind(handle, path);
    const { buffer, bytesRead } = await handle.read({ buffer: Buffer.alloc(HEAD_BYTES), position: 0 });
    checkHead(path, buffer.toString('latin1', 0, bytesRead));
    return handle;
  } catch (thrown) {
    await handle.close();
    throw thrown;
  }
}

async function opened(path: string): Promise<FileHandle> {
  try {
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    return await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code ?? 'unknown';
    const why = code === 'ENOENT' ? '' : `: ${code}`;
    throw new TrainyardError('FILE_NOT_FOUND', `cannot read the task file ${path}${why}`, {
      cause,
      hint: HINTS[code] ?? NOT_THERE,
    });
  }
}

async function checkKind(handle: FileHandle, path: string): Promise<void> {
  const found = await handle.stat();
  if (!found.isFile()) {
    const what = found.isDirectory() ? 'a folder' : found.isFIFO() ? 'a pipe' : 'a device or socket';
    const hint = found.isDirectory() ? 'name one file in it' : 'write the tasks to a file first';
    throw invalid(`expected a file of tasks, found ${what} at ${path}`, { hint });
  }
  if (found.size <= MAX_FILE_BYTES) return;
  const hint = 'split it, or keep large data beside the tasks and name it in metadata';
  throw invalid(`${path} has ${(found.size / 2 ** 30).toFixed(1)} GiB, expected at most 5`, { hint });
}

const HEAD_BYTES = 8;
const KINDS: readonly (readonly [head: string, what: string, hint: string])[] = [
  ['\x1f\x8b', 'packed by gzip', 'unpack it first: gunzip'],
  ['\x28\xb5\x2f\xfd', 'packed by zstd', 'unpack it first: unzstd'],
  ['\xfd7zXZ', 'packed by xz', 'unpack it first: unxz'],
  ['BZh', 'packed by bzip2', 'unpack it first: bunzip2'],
  ['PK\x03\x04', 'a ZIP archive or a spreadsheet', 'unpack it, or save the sheet as CSV'],
  ['ARROW1', 'an Arrow file', 'write it as Parquet'],
  ['PARE', 'an encrypted Parquet file', 'write it again without encryption'],
  ['\xff\xfe', 'UTF-16', 'write it again as UTF-8'],
  ['\xfe\xff', 'UTF-16', 'write it again as UTF-8'],
];

/** Throws DATASET_INVALID if the first bytes are those of another file format, or of Parquet under another extension. */
function checkHead(path: string, head: string): void {
  const isMisnamed = head.startsWith('PAR1') && extname(path).toLowerCase() !== '.parquet';
  const found = isMisnamed
    ? (['PAR1', 'a Parquet file', 'give it a name that ends in .parquet'] as const)
    : KINDS.find(([begin]) => head.startsWith(begin));
  if (found === undefined) return;
  const [, what, hint] = found;
  throw invalid(`expected JSONL, CSV or Parquet by the name of the file, found that ${path} is ${what}`, { hint });
}

const NEWLINE = 0x0a;

export async function* readJsonl(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<RawRow> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 0;
  let isFirst = true;
  for await (const { bytes, isEnded } of linesOf(chunks, path)) {
    const place = `line ${++number}`;
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

/** Reports multi-line JSON or one big list once for the file, not per line. `text` is the first line. */
function refuseOneValue(text: string, path: string): void {
  const isList = text.startsWith('[');
  if (!isList && text !== '{') return;
  const found = isList ? ' is a JSON list' : ': the first JSON object goes on over more lines';
  const again = `jq -c ${isList ? "'.[]'" : '.'} ${/^[\w./-]+$/.test(path) ? path : '<file>'} > tasks.jsonl`;
  throw invalid(`${path}${found}, expected one JSON object a line`, { hint: `write it again with one object a line: ${again}` });
}

/** `isEnded`: whether a newline follows; the last line may have none. */
async function* linesOf(
  chunks: AsyncIterable<Uint8Array>,
  path: string,
): AsyncGenerator<{ readonly bytes: Uint8Array; readonly isEnded: boolean }> {
  let rest: Uint8Array = new Uint8Array();
  let number = 1;
  for await (const chunk of chunks) {
    const bytes = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    let start = 0;
    for (let end = bytes.indexOf(NEWLINE); end !== -1; end = bytes.indexOf(NEWLINE, start)) {
      yield { bytes: bytes.subarray(start, end), isEnded: true };
      start = end + 1;
      number++;
    }
    rest = bytes.subarray(start);
    if (rest.length > MAX_LINE_BYTES) {
      throw invalid(`${path} line ${number} is longer than ${MAX_LINE_BYTES / 2 ** 20} MiB`, {
        hint: 'one JSON object a line; keep large data in files of their own and name them in metadata',
      });
    }
  }
  if (rest.length > 0) yield { bytes: rest, isEnded: false };
}

function rowOf(text: string, place: string, isEnded: boolean): RawRow {
  const parsed = parseJson(text);
  if ('problem' in parsed) {
    const isTorn = !isEnded && !/[}\]]\s*$/.test(text);
    return { kind: 'bad', place, problem: `${parsed.problem}${isTorn ? '; it has no line end: was the file cut off?' : ''}` };
  }
  if (isObject(parsed.value)) return { kind: 'row', place, row: parsed.value };
  return { kind: 'bad', place, problem: `: expected a JSON object, found ${kindOf(parsed.value)}` };
}

/** `problem` continues the name of the place. */
export function parseJson(text: string): { readonly value: unknown } | { readonly problem: string } {
  const { nesting, keys } = sizeOfJson(text);
  if (nesting > MAX_NESTING) return { problem: `: nested deeper than ${MAX_NESTING} levels` };
  try {
    const value: unknown = JSON.parse(text);
    // `JSON.parse` silently keeps only the last value of a duplicate key.
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

/** Gives the position without the surrounding text, which may be an answer. */
function positionIn(thrown: unknown): string {
  const position = /position (\d+)/.exec(messageOf(thrown))?.[1];
  return position === undefined ? '' : ` (at character ${Number(position) + 1})`;
}
