/**
 * The folders that isolated processes write to: each has a temporary folder, and one that it finds in the place of the run's artifacts. When a
 * rollout ends, its files are copied from there to where its grader looks for them, out of the process's reach.
 *
 * Whatever a rollout left running may change the folder while it is copied, and put a link in the place of a folder between two looks at it,
 * to have files of elsewhere copied or deleted. So no path is walked twice: every folder and file is opened once, without following a link,
 * and from then on reached through its descriptor. Links are copied as links; those that lead out of the rollout's files are dropped, because
 * whoever reads the files is in no sandbox. Linux only, as the sandbox is.
 */
import { constants, mkdirSync, writeFileSync } from 'node:fs';
import {
  copyFile,
  type FileHandle,
  mkdir,
  open,
  readdir,
  readlink,
  realpath,
  rm,
  rmdir,
  symlink,
  unlink,
} from 'node:fs/promises';
import { basename, join, sep } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { removeFolder, temporaryFolder } from '../processes/limits.ts';
import { HOME_INSIDE, type OwnFolders } from './rollout-sandbox.ts';

export class RolloutFiles implements AsyncDisposable {
  /** Not for processes to see. */
  readonly root: string = temporaryFolder('trainyard-isolated');
  readonly #empty = join(this.root, 'empty');

  constructor() {
    writeFileSync(this.#empty, '');
  }

  /** For one process, by its number in the pool. */
  open(process: number): OwnFolders {
    const own = { tmp: this.#folder(process, 'tmp'), artifacts: this.#folder(process, 'artifacts'), empty: this.#empty };
    mkdirSync(join(own.tmp, basename(HOME_INSIDE)), { recursive: true });
    mkdirSync(own.artifacts);
    return own;
  }

  /** Once the process is gone. What it kept for a grader stays until it is collected. */
  async leave(process: number): Promise<void> {
    await removeFolder(this.#folder(process, 'tmp'));
  }

  /** Brings what a rollout kept in the process to `folder`, if it kept anything. Throws WORKFLOW_FAILED for more than fits. */
  async collect(process: number | undefined, folder: string): Promise<void> {
    if (process === undefined) return;
    if (await takeOut(join(this.#folder(process, 'artifacts'), basename(folder)), folder)) await dropLinksOut(folder);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await removeFolder(this.root);
  }

  #folder(process: number, name: string): string {
    return join(this.root, String(process), name);
  }
}

async function dropLinksOut(folder: string): Promise<void> {
  const inside = `${await realpath(folder)}${sep}`;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isSymbolicLink()) continue;
    const path = join(entry.parentPath, entry.name);
    const target = await realpath(path).catch(() => undefined);
    if (!target?.startsWith(inside)) await rm(path);
  }
}

/** A file can be said to be of any size without there being anything in it; its copy takes the place. */
const MOST_BYTES = 2 ** 30;
const MOST_FILES = 100_000;
/** Each level holds a descriptor. */
const MOST_LEVELS = 64;
/** Not blocking: a pipe without a writer would be waited for. */
const NO_LINK = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Copies a folder and empties it. Whether there was such a folder. Throws WORKFLOW_FAILED; what was copied until then is there. */
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

  /** Pipes, sockets and devices are left out. */
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
