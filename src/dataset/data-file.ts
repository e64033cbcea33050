/**
 * Opens a file of tasks. Everything that is no ordinary file is refused by name and at once: reading a pipe or a device may never end. A
 * file of another kind is refused by its first bytes, not as a line that is no JSON. The path is the user's own, so where it leads does not
 * matter.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { extname } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { invalid } from './rows.ts';

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

export interface DataFile extends AsyncDisposable {
  readonly path: string;
  readonly size: number;
  /** Throws DATASET_INVALID where somebody wrote to the file since it was opened. */
  checkUnchanged(): Promise<void>;
  /** From the beginning, in pieces; throws at the end what `checkUnchanged` throws. */
  chunks(): AsyncGenerator<Uint8Array>;
  /** Bytes from `start` to `end`, or fewer where the file ends before. */
  slice(start: number, end: number): Promise<Uint8Array>;
}

export async function openDataFile(path: string): Promise<DataFile> {
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
export async function checkHead({ path, slice }: DataFile): Promise<void> {
  const head = await slice(0, HEAD_BYTES);
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
