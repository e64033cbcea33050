/**
 * Where rollouts behind walls keep their files while they run: each process has a folder of its own, which it finds in the place of the
 * run's artifacts. When a rollout ends, its files are copied out of the process's reach, to where its grader looks for them.
 *
 * A process tells which folder is its own by a name that only it can read, so it cannot speak for another. Links that lead out of a
 * rollout's files are dropped: whoever reads the files is behind no walls. Copied, not moved: what a rollout left running may hold a file
 * open, and would write to it while it is graded.
 */
import { randomUUID } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { readdir, realpath, rm } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { temporaryFolder } from '../processes/temporary-folder.ts';
import { takeOut } from './take-out.ts';

const NAME_FILE = '.inbox';

export class Inboxes implements AsyncDisposable {
  /** Not for processes to see. */
  readonly root: string = temporaryFolder('trainyard-artifacts');
  readonly #names = new Set<string>();

  /** A folder for one process. */
  open(): string {
    const name = randomUUID();
    this.#names.add(name);
    const folder = join(this.root, name);
    mkdirSync(folder);
    writeFileSync(join(folder, NAME_FILE), name);
    return folder;
  }

  /** Brings what a rollout kept to `folder`, by the name its process gave; nothing where that is no name, or nothing was kept. */
  async collect(name: unknown, folder: string): Promise<void> {
    if (typeof name !== 'string' || !this.#names.has(name)) return;
    if (await takeOut(join(this.root, name, basename(folder)), folder)) await dropLinksOut(folder);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.root, { recursive: true, force: true });
  }
}

/** In a process behind walls: the name of its folder, given where one of its rollouts keeps files. */
export function ownInbox(folder: string): string | undefined {
  try {
    return readFileSync(join(dirname(folder), NAME_FILE), 'utf8');
  } catch {
    return undefined;
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
