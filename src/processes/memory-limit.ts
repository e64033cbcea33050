/**
 * A limit on the memory of a process and everything it starts, kept by the system: a control group, which counts buffers, shared files and
 * children, and in which the system ends what goes over it. Optionally a limit on the number of processes, against fork bombs.
 *
 * `limitMemory` gives undefined where no control group can be made (not Linux, or no right to): then `watchMemory` of group-memory.ts is
 * what is left. A program that runs as root can leave its group on purpose: this bounds mistakes, it does not confine.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ControlGroupPlace, controlGroupPlace, foldersOf, groupName, processesIn, removed } from './control-groups.ts';

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

export interface MemoryLimitOptions {
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
  try {
    const counts = readFileSync(join(group, version === 1 ? 'memory.oom_control' : 'memory.events'), 'utf8');
    return Number(/^oom_kill (\d+)$/m.exec(counts)?.[1] ?? 0);
  } catch {
    return 0;
  }
}

/** What forks faster than it is listed is found in the next round. */
function killAll(group: string): void {
  for (let round = 0; round < KILL_ROUNDS; round += 1) {
    let pids: readonly number[] = [];
    tried(() => {
      pids = processesIn(group);
    });
    if (pids.length === 0) return;
    for (const pid of pids) tried(() => process.kill(pid, 'SIGKILL'));
  }
}

function tried(attempt: () => void): void {
  try {
    attempt();
  } catch {
    // Not on this system, or gone meanwhile.
  }
}
