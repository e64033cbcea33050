/**
 * What a process can do to the whole machine by being user 0, without any capability: files of the kernel, and disks, ask for the number of
 * the user only. Whoever can write a core pattern has a program of theirs started by the kernel, outside of every namespace; whoever can
 * read a disk can read each file on it.
 *
 * Linux only. Empty for every other user, who may do none of this.
 */
import { lstatSync, readdirSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';

export interface RootReach {
  /** Not to be written to. */
  readonly readOnly: readonly string[];
  /** Not to be opened at all. */
  readonly hidden: readonly string[];
}

/** Those of `/proc` are of the namespace's own one. */
const KERNEL = ['/sys', ...['sys', 'sysrq-trigger', 'irq', 'bus', 'fs', 'acpi', 'scsi'].map((name) => `/proc/${name}`)];
/** What programs are made of, those that grade too. */
const SYSTEM = ['/usr', '/etc', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/boot'];
/** Character devices that are a way to a disk. */
const DISK_LIKE = /^(sg\d+|raw\d*)$/;

export function rootReach(): RootReach {
  if (process.getuid?.() !== 0) return { readOnly: [], hidden: [] };
  const isThere = (path: string): boolean => lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() === false;
  // Programs must be able to write somewhere.
  const isForWriting = (path: string): boolean => [homedir(), tmpdir()].some((folder) => `${folder}/`.startsWith(`${path}/`));
  const system = SYSTEM.filter((path) => !isForWriting(path));
  return { readOnly: [...KERNEL, ...system].filter(isThere), hidden: disksIn('/dev') };
}

function disksIn(folder: string): readonly string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === 'bsg' || entry.name === 'mapper' ? contentsOf(path) : [];
    return entry.isBlockDevice() || (entry.isCharacterDevice() && DISK_LIKE.test(entry.name)) ? [path] : [];
  });
}

/** Without links: they lead to what is found by itself. */
function contentsOf(folder: string): readonly string[] {
  const devices = readdirSync(folder, { withFileTypes: true }).filter(
    (entry) => entry.isBlockDevice() || entry.isCharacterDevice(),
  );
  return devices.map(({ name }) => join(folder, name)).filter((path) => path !== '/dev/mapper/control');
}
