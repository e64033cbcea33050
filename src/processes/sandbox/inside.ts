/**
 * What is found inside the sandbox: the parts of the system that programs need, read-only, and nothing of anyone's. Not all of /usr:
 * people keep projects in /usr/src.
 */
import { lstatSync, statSync } from 'node:fs';
import type { ReadableFile } from './program.ts';

/** The only place that can be written to; /tmp/work in it is the working directory. */
export const SCRATCH = '/tmp/work';

export const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LANG: 'C.UTF-8' } as const;

export const DEVICES = ['/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom'] as const;

/** Folders on some systems, links into /usr on others. */
const TOP = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'] as const;

const SYSTEM = [
  ...['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'libexec', 'share', 'local/bin', 'local/lib'].map(
    (name) => `/usr/${name}`,
  ),
  '/etc/alternatives',
  '/etc/ld.so.cache',
  '/nix/store',
] as const;

export interface SystemFiles {
  readonly readable: readonly ReadableFile[];
  /** Links of the root folder, to be made again. */
  readonly links: readonly string[];
}

export function systemFiles(): SystemFiles {
  const links = TOP.filter((path) => lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink());
  const folders = [...TOP.filter((path) => !links.includes(path)), ...SYSTEM].filter((path) => exists(path));
  // A link among them (lib64 → lib, on some systems) is found through what it points to.
  const readable = folders.filter((path) => !lstatSync(path).isSymbolicLink()).map((source) => ({ source }));
  return { readable, links: [...links, ...folders.filter((path) => lstatSync(path).isSymbolicLink())] };
}

function exists(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false }) !== undefined;
}
