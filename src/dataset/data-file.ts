/**
 * Opens a file of tasks. Everything that is no ordinary file is refused by name and at once: reading a pipe or a device may never end.
 * The path is the user's own, so where it leads does not matter.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
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
    const length = Math.min(CHUNK_BYTES, size - position);
    const { bytesRead, buffer } = await handle.read(Buffer.allocUnsafe(length), 0, length, position);
    if (bytesRead === 0) return;
    position += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

async function sliceOf(handle: FileHandle, start: number, end: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(Math.max(0, end - start));
  let filled = 0;
  while (filled < bytes.length) {
    const { bytesRead } = await handle.read(bytes, filled, bytes.length - filled, start + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return bytes.subarray(0, filled);
}
