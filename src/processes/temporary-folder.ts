/**
 * Folders among the system's temporary files that end with this process: whoever made one removes it, and what processes that were killed
 * left behind is removed by the next that makes one of the same kind.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { chmod, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { isAbandoned, ownedName } from './owned-name.ts';

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
    try {
      rmSync(join(parent, name), { recursive: true, force: true });
    } catch {
      // Another user's, or being removed by a neighbour.
    }
  }
}
