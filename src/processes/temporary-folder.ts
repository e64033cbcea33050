/**
 * Folders among the system's temporary files that end with this process: whoever made one removes it, and what processes that were killed
 * left behind is removed by the next that makes one of the same kind.
 */
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import { chmod, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { tried } from './process-group.ts';

const swept = new Set<string>();

/** Throws FILE_NOT_FOUND where none can be made. */
export function temporaryFolder(what: string): string {
  const parent = tmpdir();
  try {
    const folder = mkdtempSync(join(parent, ownedName(what, '')));
    if (!swept.has(what)) sweep(parent, what);
    swept.add(what);
    return folder;
  } catch (thrown) {
    throw new TrainyardError('FILE_NOT_FOUND', `no temporary folder can be made in ${parent}: ${messageOf(thrown)}`, {
      hint: 'set TMPDIR to a folder that exists, can be written to and has free space',
    });
  }
}

/** With folders that allow no changes, as caches of packages have them. Never rejects: what cannot be removed stays. */
export async function removeFolder(folder: string): Promise<void> {
  const remove = (): Promise<void> => rm(folder, { recursive: true, force: true, maxRetries: 3 });
  try {
    await remove().catch(async () => {
      const found = await readdir(folder, { recursive: true, withFileTypes: true });
      for (const one of found) if (one.isDirectory()) await chmod(join(one.parentPath, one.name), 0o700);
      await remove();
    });
  } catch {}
}

function sweep(parent: string, what: string): void {
  for (const name of readdirSync(parent).filter((one) => isAbandoned(what, one))) {
    // It may be another user's, or being removed by a neighbour.
    tried(() => rmSync(join(parent, name), { recursive: true, force: true }));
  }
}

/**
 * A name of something that ends with the process that made it, so that what a killed process left can be told from what is in use. `what`
 * says what it is for. Process numbers mean something in one namespace only, so that is part of the name. A number that was given again to
 * another process keeps what its first owner left, for as long as that one runs.
 */
export function ownedName(what: string, rest: number | string): string {
  return `${prefix(what)}${process.pid}-${rest}`;
}

/** Whether it is a name of this kind whose process is gone. */
export function isAbandoned(what: string, name: string): boolean {
  if (!name.startsWith(prefix(what))) return false;
  const owner = Number(name.slice(prefix(what).length).split('-')[0]);
  return Number.isSafeInteger(owner) && owner > 0 && owner !== process.pid && !isAlive(owner);
}

function prefix(what: string): string {
  return `${what}-${namespace()}-`;
}

function namespace(): string {
  return /\d+/.exec(tried(() => readlinkSync('/proc/self/ns/pid')) ?? '')?.[0] ?? '0';
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
