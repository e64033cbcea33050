/**
 * The files that a rollout left in its folder, on their way from a worker to the coordinator, where its grader finds them. Links and empty
 * folders within are left behind. What a worker says of them is checked before anything is written.
 */
import { mkdir, open, readdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join, relative, sep } from 'node:path';
import { printableLine, shortLine } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';

/** `path`: below the folder, with slashes. `.` is the folder itself, with no bytes. */
export interface RolloutFile {
  readonly path: string;
  readonly mode: number;
  readonly bytes: Buffer;
}

/** Bytes of one rollout. More would not fit into a statement of the database. */
export const MOST = 200 * 1024 * 1024;
export const MOST_FILES = 100_000;
/** Bytes of a name, and of a path: what file systems take. */
const LONGEST_NAME = 255;
const LONGEST_PATH = 2_000;

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
export async function writeFiles(folder: string, all: readonly RolloutFile[]): Promise<void> {
  const files = all.filter((file) => file.path !== '.');
  const paths = new Set<string>();
  for (const { path } of files) {
    if (paths.size === paths.add(path).size) throw refusal('that is there twice', path);
  }
  for (const file of files) {
    const found = problemOf(file, paths);
    if (found !== undefined) throw refusal(found, file.path);
  }
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  for (const { path, mode, bytes } of files) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    // Without the bits that would let it run as its owner.
    await writeFile(join(folder, path), bytes, { mode: mode & 0o777 });
  }
}

function problemOf({ path, mode }: RolloutFile, paths: ReadonlySet<string>): string | undefined {
  const names = path.split(sep === '/' ? '/' : /[/\\]/);
  if (names.some((name) => name === '' || name === '.' || name === '..')) return 'outside its folder';
  if (printableLine(path) !== path) return 'whose name holds control characters';
  const lengths = names.map((name) => Buffer.byteLength(name));
  if (Math.max(...lengths) > LONGEST_NAME || Buffer.byteLength(path) > LONGEST_PATH) return 'whose name is too long';
  if (names.some((_, count) => paths.has(names.slice(0, count).join('/')))) return 'within another file';
  return Number.isInteger(mode) && mode >= 0 && mode <= 0o7777 ? undefined : `of mode ${mode}`;
}

function refusal(found: string, path: string): TrainyardError {
  return new TrainyardError('RESULT_REFUSED', `with a file ${found}: ${shortLine(path, 100)}`);
}
