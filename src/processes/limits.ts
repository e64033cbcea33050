/**
 * A bound on the resident memory of a process and everything it starts: looked at several times a second, and reported once when it is
 * exceeded, to be killed.
 *
 * This is the only bound on memory in Trainyard, because it needs no rights and works everywhere. What it cannot do: stop an allocation
 * between two looks (a tenth of a second), count what is in swap or in files that nobody has mapped, or count shared pages only once.
 *
 * A process belongs to a watch when it descends from the watched one, or is in the process group that it leads. A daemon that left both is
 * not counted.
 */
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { tried } from './process-group.ts';

export const BYTES_PER_MB = 2 ** 20;

const INTERVAL_MS = 100;
/** `ps` has to be started for each look. It is also the longest interval. */
const PS_INTERVAL_MS = 1_000;
/** Of the time, on a machine with thousands of processes. */
const MOST_SHARE = 0.05;

interface Watch {
  readonly pid: number;
  readonly limit: number;
  readonly over: (bytes: number) => void;
  bytes: number;
}

/** One process, as /proc or ps shows it. */
interface Row {
  readonly pid: number;
  readonly parent: number;
  readonly group: number;
  readonly bytes: number;
}

const watches = new Map<number, Watch>();
/** Which watch a process belonged to at the last look: process numbers start again from 1, so a child can be listed before its parent. */
let owners = new Map<number, Watch>();
let isWatching = false;

/** Calls `over` once, with the bytes found, when there are more than `limit`. Returns what ends the watch. */
export function watchMemory(pid: number, limit: number, over: (bytes: number) => void): () => void {
  const watch: Watch = { pid, limit, over, bytes: 0 };
  watches.set(pid, watch);
  if (!isWatching) void watchAll();
  return () => {
    if (watches.get(pid) === watch) watches.delete(pid);
  };
}

/** One look serves all watches. */
async function watchAll(): Promise<void> {
  isWatching = true;
  while (watches.size > 0) {
    const began = performance.now();
    look(process.platform === 'linux' ? rowsOfProc() : await rowsOfPs());
    const least = process.platform === 'linux' ? INTERVAL_MS : PS_INTERVAL_MS;
    const restMs = Math.min(Math.max(least, (performance.now() - began) / MOST_SHARE), PS_INTERVAL_MS);
    await new Promise<void>((resolve) => void setTimeout(resolve, restMs).unref());
  }
  isWatching = false;
}

function look(rows: Iterable<Row>): void {
  const before = owners;
  owners = new Map();
  for (const watch of watches.values()) watch.bytes = 0;
  for (const { pid, parent, group, bytes } of rows) {
    const watch = watches.get(pid) ?? owners.get(parent) ?? before.get(parent) ?? watches.get(group);
    if (watch === undefined) continue;
    owners.set(pid, watch);
    watch.bytes += bytes;
  }
  for (const watch of [...watches.values()].filter(({ bytes, limit }) => bytes > limit)) {
    watches.delete(watch.pid);
    watch.over(watch.bytes);
  }
}

/** Synchronous: asynchronous reads of these tiny files cost five times the processor time. */
function* rowsOfProc(): Iterable<Row> {
  for (const name of tried(() => readdirSync('/proc')) ?? []) {
    const fields = /^\d/.test(name) ? statOf(name) : undefined;
    if (fields === undefined) continue;
    yield { pid: Number(name), parent: Number(fields[1]), group: Number(fields[2]), bytes: Number(fields[21]) * pageBytes() };
  }
}

/** State, parent, group and so on; the 22nd is the number of resident pages. Undefined where the process has ended meanwhile. */
function statOf(pid: string): readonly string[] | undefined {
  const text = tried(() => readFileSync(`/proc/${pid}/stat`, 'latin1'));
  // Before them comes the program's name in brackets, which may hold anything.
  return text?.slice(text.lastIndexOf(')') + 2).split(' ');
}

let foundPageBytes: number | undefined;

/** 4 KiB, more on some ARM systems: found from what Node says about this process. */
function pageBytes(): number {
  foundPageBytes ??= 2 ** Math.round(Math.log2(process.memoryUsage.rss() / Number(statOf('self')?.[21])));
  return foundPageBytes;
}

const BYTES_PER_KB = 1024;

/** macOS and others. */
async function rowsOfPs(): Promise<readonly Row[]> {
  const listed = await promisify(execFile)('/bin/ps', ['-A', '-o', 'pid=,ppid=,pgid=,rss=']).catch(() => ({ stdout: '' }));
  return listed.stdout.split('\n').map((line) => {
    const [pid = 0, parent = 0, group = 0, kilobytes = 0] = line.trim().split(/\s+/).map(Number);
    return { pid, parent, group, bytes: kilobytes * BYTES_PER_KB };
  });
}
