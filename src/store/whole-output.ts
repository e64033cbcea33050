/**
 * Files and folders for other programs: each has its name only once it is complete and on disk, and replaces nothing. A failure or an
 * interruption leaves nothing behind.
 */
import { randomUUID } from 'node:crypto';
import { link, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { boundary, TrainyardError } from '../core/errors.ts';
import { makeFolder, sync } from './files.ts';

/** Throws USAGE if anything but an empty folder is there. */
export async function checkFree(path: string): Promise<void> {
  const found = await readdir(path).catch((thrown: NodeJS.ErrnoException) => (thrown.code === 'ENOENT' ? [] : [path]));
  if (found.length === 0) return;
  throw new TrainyardError('USAGE', `${path} already exists`, 'give another path, or remove it');
}

/** `write` gets another path, which is free. Gives the number of bytes written. */
export async function completed(path: string, write: (path: string) => Promise<void>): Promise<number> {
  const whole = resolve(path);
  const unfinished = `${whole}.unfinished-${randomUUID().slice(0, 8)}`;
  try {
    return await boundary('STORE_FAILED', `cannot write ${path}`, async () => {
      await makeFolder(dirname(whole));
      await write(unfinished);
      const bytes = await synced(unfinished);
      await named(unfinished, whole);
      await sync(dirname(whole));
      return bytes;
    });
  } catch (thrown) {
    await rm(unfinished, { recursive: true, force: true });
    throw thrown;
  }
}

/** A folder replaces an empty one at most; a file replaces nothing, whoever else writes the same. */
async function named(unfinished: string, whole: string): Promise<void> {
  if ((await stat(unfinished)).isDirectory()) return await rename(unfinished, whole);
  await link(unfinished, whole);
  await rm(unfinished);
}

async function synced(path: string): Promise<number> {
  await sync(path);
  const found = await stat(path);
  if (!found.isDirectory()) return found.size;
  const sizes = await Promise.all((await readdir(path)).map((name) => synced(join(path, name))));
  return sizes.reduce((sum, size) => sum + size, 0);
}
