/**
 * Files that are whole or absent: atomic writing, folders, what is put on disk, and the lock that one process holds on a folder. The operating
 * system releases the lock when the process ends, however it ends. Knows nothing of what the files hold.
 */
import { existsSync, statSync } from 'node:fs';
import { mkdir, open, realpath, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';

/** A file that is being written has this behind its name. */
export const UNFINISHED_FILE = '.unfinished';

/** Writes a file atomically. Follows links; writes to devices directly. */
export async function writeWhole(path: string, text: string): Promise<void> {
  await boundary('STORE_FAILED', `cannot write ${path}`, async () => {
    if (isDevice(path)) await writeFile(path, text);
    else await replaceFile(existsSync(path) ? await realpath(path) : path, text);
  });
}

/** Whether it is a pipe, a terminal or the like, which cannot be replaced. */
export function isDevice(path: string): boolean {
  return existsSync(path) && !statSync(path).isFile();
}

/** Not for links and devices. */
export async function replaceFile(path: string, text: string): Promise<void> {
  const unfinished = path + UNFINISHED_FILE;
  try {
    await writeFile(unfinished, text, { flush: true });
    await rename(unfinished, path);
  } catch (thrown) {
    await rm(unfinished, { force: true });
    throw thrown;
  }
}

/** Puts a file or folder on disk. Windows syncs only what is open for writing, and folders not at all. */
export async function sync(path: string): Promise<void> {
  const isWindows = process.platform === 'win32';
  if (isWindows && (await stat(path)).isDirectory()) return;
  await using handle = await open(path, isWindows ? 'r+' : 'r');
  await handle.sync();
}

/** Not `mkdir` with `recursive`, which never returns if an existing folder refuses new ones with ENOENT (/proc). */
export async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === 'EEXIST' && (await stat(path)).isDirectory()) return;
    if (code !== 'ENOENT' || dirname(path) === path) throw thrown;
    await makeFolder(dirname(path));
    await mkdir(path);
  }
}

/** `flag`: the option that selects another directory, for the hint. */
export function takeLock(path: string, flag?: string): DatabaseSync {
  let lock: DatabaseSync | undefined;
  try {
    // Waits out those who only look (`isLocked`).
    lock = new DatabaseSync(join(path, 'lock'), { timeout: 100 });
    lock.exec('PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE');
    return lock;
  } catch (cause) {
    lock?.close();
    const isTaken = messageOf(cause).includes('locked');
    const elsewhere = flag === undefined ? '' : `, or give ${flag} another directory`;
    if (isTaken) {
      throw new TrainyardError('RUN_LOCKED', `another process is using ${path}`, {
        cause,
        hint: `wait for it or stop it${elsewhere}`,
      });
    }
    const hint = `give ${flag ?? '--run'} a directory that can be written to`;
    throw new TrainyardError('USAGE', `cannot lock the run directory ${path}: ${messageOf(cause)}`, { cause, hint });
  }
}

/** Whether a process uses the directory. Looks without taking the lock. */
export function isLocked(path: string): boolean {
  const file = join(path, 'lock');
  if (!existsSync(file)) return false;
  let look: DatabaseSync | undefined;
  try {
    look = new DatabaseSync(file, { readOnly: true });
    look.prepare('SELECT 1 FROM sqlite_schema').all();
    return false;
  } catch (thrown) {
    return messageOf(thrown).includes('locked');
  } finally {
    look?.close();
  }
}
