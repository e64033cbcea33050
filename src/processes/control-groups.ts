/**
 * Where this process may make control groups of Linux, for memory and for the number of processes: version 2 in a subtree that was handed
 * over to this user, version 1 where its folders can be written to.
 *
 * Only finds and sweeps folders. What a group is used for is said in memory-limit.ts.
 */
import { accessSync, constants, existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { isAbandoned, ownedName } from './owned-name.ts';

export interface ControlGroupPlace {
  readonly version: 1 | 2;
  /** Folder under which groups with a memory limit can be made. */
  readonly memory: string;
  /** The same for a limit on processes; in version 2 it is the same folder. */
  readonly pids: string | undefined;
}

const ROOT = '/sys/fs/cgroup';
const OURS = 'trainyard';

let found: { readonly place: ControlGroupPlace | undefined } | undefined;

/** Looked for once; what processes that died left there is swept then. */
export function controlGroupPlace(): ControlGroupPlace | undefined {
  if (found === undefined) {
    found = { place: process.platform === 'linux' ? findPlace() : undefined };
    if (found.place !== undefined) for (const folder of foldersOf(found.place)) sweep(folder);
  }
  return found.place;
}

export function foldersOf({ memory, pids }: ControlGroupPlace): readonly string[] {
  return pids === undefined || pids === memory ? [memory] : [memory, pids];
}

export function groupName(number: number | string): string {
  return ownedName(OURS, number);
}

function findPlace(): ControlGroupPlace | undefined {
  try {
    const lines = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n');
    const paths = new Map(
      lines.map((line) => {
        const [, controllers = '', ...path] = line.split(':');
        return [controllers, path.join(':')] as const;
      }),
    );
    return versionTwo(paths.get('')) ?? versionOne(paths);
  } catch {
    return undefined;
  }
}

/** A group with processes of its own cannot hand memory on, so groups are made beside this process's own, or below where that works. */
function versionTwo(own: string | undefined): ControlGroupPlace | undefined {
  if (own === undefined || !existsSync(join(ROOT, 'cgroup.controllers'))) return undefined;
  const folder = join(ROOT, own);
  const places = own === '/' ? [folder] : [folder, dirname(folder)];
  const handsOn = (at: string): string[] => readFileSync(join(at, 'cgroup.subtree_control'), 'utf8').trim().split(' ');
  const memory = places.find((at) => usable(at) && handsOn(at).includes('memory'));
  if (memory === undefined) return undefined;
  return { version: 2, memory, pids: handsOn(memory).includes('pids') ? memory : undefined };
}

function versionOne(paths: ReadonlyMap<string, string>): ControlGroupPlace | undefined {
  const folderOf = (controller: string): string | undefined => {
    const entry = [...paths].find(([names]) => names.split(',').includes(controller));
    if (entry === undefined) return undefined;
    const folder = join(ROOT, entry[0], entry[1]);
    return usable(folder) ? folder : undefined;
  };
  const memory = folderOf('memory');
  return memory === undefined ? undefined : { version: 1, memory, pids: folderOf('pids') };
}

/** Rights alone do not say it: the file system may be mounted read-only. */
function usable(folder: string): boolean {
  const trial = join(folder, groupName('trial'));
  try {
    accessSync(join(folder, 'cgroup.procs'), constants.W_OK);
    mkdirSync(trial);
    rmdirSync(trial);
    return true;
  } catch {
    return false;
  }
}

/** Groups of runs that were killed, with what still runs in them. */
function sweep(folder: string): void {
  for (const name of readdirSync(folder).filter((one) => isAbandoned(OURS, one))) {
    try {
      endedIn(join(folder, name));
      // Where something in it is still ending, the next run finds it.
      removed(join(folder, name));
    } catch {
      // Swept by a neighbour.
    }
  }
}

/** Those of other namespaces are listed as 0, which `kill` would take for this process's own group. */
export function processesIn(group: string): readonly number[] {
  const listed = readFileSync(join(group, 'cgroup.procs'), 'utf8').split('\n').map(Number);
  return listed.filter((pid) => pid > 0);
}

function endedIn(group: string): void {
  for (const inner of groupsIn(group)) endedIn(inner);
  for (const pid of processesIn(group)) process.kill(pid, 'SIGKILL');
}

/** Those that pools and sandboxes inside of it made. */
function groupsIn(group: string): readonly string[] {
  const inner = readdirSync(group, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return inner.map(({ name }) => join(group, name));
}

/** With the groups in it; false where something still runs there. */
export function removed(group: string): boolean {
  try {
    for (const inner of groupsIn(group)) removed(inner);
    rmdirSync(group);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT';
  }
}
