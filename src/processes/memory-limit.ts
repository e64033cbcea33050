/**
 * A limit on the memory of a process and everything it starts, kept by the system: a control group, which counts buffers, shared files and
 * children, and in which the system ends what goes over it. Optionally a limit on the number of processes, against fork bombs.
 *
 * `limitMemory` gives undefined where no control group can be made (not Linux, or no right to): then `watchMemory` of group-memory.ts is
 * what is left. A program that runs as root can leave its group on purpose: this bounds mistakes, it does not confine.
 */
import { accessSync, constants, existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { tried } from './process-group.ts';
import { isAbandoned, ownedName } from './temporary-folder.ts';

/** For how long the end of a group's processes is waited for, in steps of `REMOVE_STEP_MS`. */
const REMOVE_MS = 2_000;
const REMOVE_STEP_MS = 20;
const KILL_ROUNDS = 10;

/** Joins each group named before `--`, then turns into the program: whatever it starts is in them from its first instruction on. */
const JOIN = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"';

export interface MemoryLimit {
  /** To be put before a command and its arguments; keeps all descriptors, and the process number. */
  readonly prefix: readonly string[];
  /** Whether the system ended something for going over the limit. Ask before `remove`. */
  exceeded(): boolean;
  /** Ends everything that is in it, however detached. */
  kill(): void;
  /** Once what ran in it was killed. Idempotent; never rejects: what stays is swept by a later run. */
  remove(): Promise<void>;
}

interface MemoryLimitOptions {
  readonly bytes: number;
  /** Processes and threads at once. Absent: no limit but the system's. */
  readonly processes?: number;
}

let made = 0;

export function limitMemory({ bytes, processes }: MemoryLimitOptions): MemoryLimit | undefined {
  const place = controlGroupPlace();
  if (place === undefined) return undefined;
  made += 1;
  const name = groupName(made);
  const groups: string[] = [];
  try {
    for (const folder of foldersOf(place)) {
      const group = join(folder, name);
      mkdirSync(group);
      groups.push(group);
    }
    setMemory(place.version, join(place.memory, name), bytes);
    if (place.pids !== undefined && processes !== undefined) set(join(place.pids, name), 'pids.max', processes);
  } catch {
    for (const group of groups) removed(group);
    return undefined;
  }
  return {
    prefix: ['/bin/sh', '-c', JOIN, 'sh', ...groups.map((group) => join(group, 'cgroup.procs')), '--'],
    exceeded: () => kills(place, join(place.memory, name)) > 0,
    kill: () => {
      for (const group of groups) killAll(group);
    },
    remove: async () => {
      const end = performance.now() + REMOVE_MS;
      for (;;) {
        if (groups.filter((group) => !removed(group)).length === 0 || performance.now() > end) return;
        await sleep(REMOVE_STEP_MS);
      }
    },
  };
}

function setMemory(version: 1 | 2, group: string, bytes: number): void {
  if (version === 1) {
    set(group, 'memory.limit_in_bytes', bytes);
    // Memory and swap together; not there where the system does not count swap.
    tried(() => set(group, 'memory.memsw.limit_in_bytes', bytes));
    return;
  }
  set(group, 'memory.max', bytes);
  tried(() => set(group, 'memory.swap.max', 0));
  tried(() => set(group, 'memory.oom.group', 1));
}

function set(group: string, file: string, value: number): void {
  writeFileSync(join(group, file), String(value));
}

function kills({ version }: ControlGroupPlace, group: string): number {
  const counts = tried(() => readFileSync(join(group, version === 1 ? 'memory.oom_control' : 'memory.events'), 'utf8'));
  return Number(/^oom_kill (\d+)$/m.exec(counts ?? '')?.[1] ?? 0);
}

/** What forks faster than it is listed is found in the next round. */
function killAll(group: string): void {
  for (let round = 0; round < KILL_ROUNDS; round += 1) {
    const pids = tried(() => processesIn(group)) ?? [];
    if (pids.length === 0) return;
    for (const pid of pids) tried(() => process.kill(pid, 'SIGKILL'));
  }
}

// ── where this process may make control groups ──────────────────────────────────────────────────────────────────────────

/** Version 2 in a subtree that was handed over to this user, version 1 where its folders can be written to. */
interface ControlGroupPlace {
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
    found = { place: process.platform === 'linux' ? tried(findPlace) : undefined };
    if (found.place !== undefined) for (const folder of foldersOf(found.place)) sweep(folder);
  }
  return found.place;
}

export function foldersOf({ memory, pids }: ControlGroupPlace): readonly string[] {
  return pids === undefined || pids === memory ? [memory] : [memory, pids];
}

function groupName(number: number | string): string {
  return ownedName(OURS, number);
}

function findPlace(): ControlGroupPlace | undefined {
  const lines = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n');
  const paths = new Map(
    lines.map((line) => {
      const [, controllers = '', ...path] = line.split(':');
      return [controllers, path.join(':')] as const;
    }),
  );
  return versionTwo(paths.get('')) ?? versionOne(paths);
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
  const worked = tried(() => {
    accessSync(join(folder, 'cgroup.procs'), constants.W_OK);
    mkdirSync(trial);
    rmdirSync(trial);
    return true;
  });
  return worked === true;
}

/** Groups of runs that were killed, with what still runs in them. */
function sweep(folder: string): void {
  for (const name of readdirSync(folder).filter((one) => isAbandoned(OURS, one))) {
    tried(() => {
      endedIn(join(folder, name));
      // Where something in it is still ending, the next run finds it.
      removed(join(folder, name));
    });
  }
}

/** Those of other namespaces are listed as 0, which `kill` would take for this process's own group. */
function processesIn(group: string): readonly number[] {
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
function removed(group: string): boolean {
  try {
    for (const inner of groupsIn(group)) removed(inner);
    rmdirSync(group);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT';
  }
}
