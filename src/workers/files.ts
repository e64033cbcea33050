/**
 * The files that a rollout left in its folder, on their way from a worker to the coordinator, where its grader finds them. Links and empty
 * folders within are left behind.
 */
import { mkdir, open, readdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join, relative, sep } from 'node:path';
import { TrainyardError } from '../core/errors.ts';

/** `path`: below the folder, with slashes. `.` is the folder itself, with no bytes. */
export interface RolloutFile {
  readonly path: string;
  readonly mode: number;
  readonly bytes: Buffer;
}

/** Bytes of one rollout. More would not fit into a statement of the database. */
const MOST = 256 * 1024 * 1024;

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

/** In place of what is there. A worker cannot write anywhere else. */
export async function writeFiles(folder: string, files: readonly RolloutFile[]): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  for (const { path, mode, bytes } of files.filter((file) => file.path !== '.')) {
    if (path.split(sep === '/' ? '/' : /[/\\]/).some((name) => name === '' || name === '.' || name === '..')) {
      const hint = 'who else writes to this database?';
      throw new TrainyardError('STORE_FORMAT', `a worker returned a file outside its folder: ${path.slice(0, 100)}`, { hint });
    }
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), bytes, { mode });
  }
}
