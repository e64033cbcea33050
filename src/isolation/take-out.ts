/**
 * Copies a folder that somebody else may be changing at the same moment, and empties it. Linux only.
 *
 * Whoever changes it may put a link in the place of a folder between two looks at it, and have files of elsewhere copied or deleted. So no
 * path is walked twice: every folder and file is opened once, without following a link, and from then on reached through its descriptor.
 * Links are copied as links. What is neither file, folder nor link is left out.
 */
import { constants } from 'node:fs';
import { copyFile, type FileHandle, mkdir, open, readdir, readlink, rmdir, symlink, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';

/** A file can be said to be of any size without there being anything in it; its copy takes the place. */
const MOST_BYTES = 2 ** 30;
const MOST_FILES = 100_000;
/** Each level holds a descriptor. */
const MOST_LEVELS = 64;
/** Not blocking: a pipe without a writer would be waited for. */
const NO_LINK = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Whether there was such a folder. Throws WORKFLOW_FAILED for more than fits; what was copied until then is there. */
export async function takeOut(from: string, to: string): Promise<boolean> {
  const opened = await open(from, NO_LINK | constants.O_DIRECTORY).catch(() => undefined);
  if (opened === undefined) return false;
  await using folder = opened;
  await new Copying().folder(folder, to, 1);
  return true;
}

class Copying {
  #bytes = 0;
  #files = 0;

  async folder(folder: FileHandle, to: string, level: number): Promise<void> {
    if (level > MOST_LEVELS) throw tooMuch(`folders ${level} deep, expected at most ${MOST_LEVELS}`);
    await mkdir(to, { recursive: true });
    const here = `/proc/self/fd/${folder.fd}`;
    for (const name of await readdir(here)) {
      if (++this.#files > MOST_FILES) throw tooMuch(`more than ${MOST_FILES} files`);
      await this.#entry(join(here, name), join(to, name), level);
    }
  }

  async #entry(path: string, to: string, level: number): Promise<void> {
    const opened = await open(path, NO_LINK).catch((thrown: NodeJS.ErrnoException) => thrown.code);
    if (opened === 'ELOOP') return await this.#link(path, to);
    // Gone in the meantime, or not to be read.
    if (opened === undefined || typeof opened === 'string') return;
    await using entry = opened;
    const found = await entry.stat();
    if (found.isDirectory()) {
      await this.folder(entry, to, level + 1);
      await rmdir(path).catch(() => {});
      return;
    }
    if (found.isFile()) {
      this.#bytes += found.size;
      if (this.#bytes > MOST_BYTES) throw tooMuch(`files of more than ${MOST_BYTES / 2 ** 20} MB together`);
      await copyFile(`/proc/self/fd/${entry.fd}`, to);
    }
    await unlink(path).catch(() => {});
  }

  async #link(path: string, to: string): Promise<void> {
    const target = await readlink(path).catch(() => undefined);
    if (target !== undefined) await symlink(target, to);
    await unlink(path).catch(() => {});
  }
}

function tooMuch(found: string): TrainyardError {
  return new TrainyardError('WORKFLOW_FAILED', `the rollout kept ${found} in its artifactsDir`, {
    hint: 'keep there what the grader reads, and the rest in a temporary folder',
  });
}
