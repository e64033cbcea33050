/**
 * The files that a rollout left in its folder, on their way from a worker to the coordinator, where its grader finds them. Links and empty
 * folders within are left behind. What a worker says of them is checked before anything is written.
 */
import { mkdir, open, readdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join, relative, sep } from 'node:path';
import { printableLine, shortLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';

/** `path`: below the folder, with slashes. `.` is the folder itself, with no bytes. */
export interface RolloutFile {
  readonly path: string;
  readonly mode: number;
  readonly bytes: Buffer;
}

/** As the database has it. */
export interface ReturnedFile extends Omit<RolloutFile, 'bytes'> {
  /** Null from the file on with which there are more than `MOST`. */
  readonly bytes: Buffer | null;
}

/** Bytes of one rollout. More would not fit into a statement of the database. */
export const MOST = 256 * 1024 * 1024;

/** Bytes of a name, and of a path: what file systems take. */
const [LONGEST_NAME, LONGEST_PATH] = [255, 2_000];
/** Permissions, and three bits that are dropped: a file of a worker runs as nobody else. */
const [PERMISSIONS, MODES] = [0o777, 0o7777];

/** Removes the folder. Throws if there is more in it than can be sent. */
export async function filesIn(folder: string): Promise<readonly RolloutFile[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch((thrown: NodeJS.ErrnoException) => {
    if (thrown.code !== 'ENOENT') throw thrown;
  });
  if (entries === undefined) return [];
  const files: RolloutFile[] = [{ path: '.', mode: 0, bytes: Buffer.alloc(0) }];
  let left = MOST;
  for (const entry of entries.filter((one) => one.isFile())) {
    const file = join(entry.parentPath, entry.name);
    await using handle = await open(file);
    const { size, mode } = await handle.stat();
    left -= size;
    if (left < 0) throw new TrainyardError('WORKFLOW_FAILED', `the rollout left more than ${MOST / 1024 / 1024} MiB of files`);
    files.push({ path: relative(folder, file).replaceAll(sep, '/'), mode: mode & 0o777, bytes: await handle.readFile() });
  }
  await rm(folder, { recursive: true, force: true });
  return files;
}

/** In place of what is there. A worker cannot write anywhere else: throws RESULT_REFUSED, before anything is written or removed. */
export async function writeFiles(folder: string, all: readonly ReturnedFile[]): Promise<void> {
  const files = all.filter((file) => file.path !== '.');
  const paths = new Set<string>();
  for (const { path, mode } of files) {
    const found = problemOf(path, mode) ?? (paths.has(path) ? 'twice' : undefined);
    if (found !== undefined) throw new TrainyardError('RESULT_REFUSED', `with a file ${found}: ${shortLine(path, 100)}`);
    paths.add(path);
  }
  for (const path of paths) {
    const above = foldersOf(path).find((one) => paths.has(one));
    if (above === undefined) continue;
    throw new TrainyardError('RESULT_REFUSED', `with a file that is a folder too: ${shortLine(above, 100)}`);
  }
  if (files.some(({ bytes }) => bytes === null)) {
    throw new TrainyardError('RESULT_REFUSED', `with more than ${MOST / 1024 / 1024} MiB of files`);
  }
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  for (const { path, mode, bytes } of files) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), bytes!, { mode: mode & PERMISSIONS });
  }
}

function problemOf(path: string, mode: number): string | undefined {
  const names = path.split(sep === '/' ? '/' : /[/\\]/);
  if (names.some((name) => name === '' || name === '.' || name === '..')) return 'outside its folder';
  if (printableLine(path) !== path) return 'whose name holds control characters';
  const isLong = Buffer.byteLength(path) > LONGEST_PATH || names.some((name) => Buffer.byteLength(name) > LONGEST_NAME);
  if (isLong) return 'whose name is too long';
  return Number.isInteger(mode) && mode >= 0 && mode <= MODES ? undefined : `of mode ${mode}`;
}

const foldersOf = (path: string): readonly string[] => {
  const names = path.split('/');
  return names.slice(1).map((_, count) => names.slice(0, count + 1).join('/'));
};
