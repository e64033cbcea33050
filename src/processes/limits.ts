/**
 * Bounds of child processes, and what ends with them: process group, memory, the output that is kept, temporary folders.
 *
 * Memory: resident memory of the process and everything it starts is looked at several times a second; `watchMemory` reports once when it
 * is over the limit, for its caller to kill it. It is the only bound on memory in Trainyard, because it needs no rights and works everywhere.
 * It cannot stop an allocation between two looks (a tenth of a second; up to a whole one on a machine with thousands of processes), count what is in swap or in files that nobody has mapped, or count
 * shared pages only once. A process counts when it descends from the watched one or is in the group that it leads: not a daemon that left both.
 */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { chmod, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { printable } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';

/** Undefined where it throws: for what is not there on every system, or is gone meanwhile. */
export function tried<T>(attempt: () => T): T | undefined {
  try {
    return attempt();
  } catch {
    return undefined;
  }
}

// ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * `spawn`, that throws where the system has no descriptors left for the pipes of a process. Node then gives a process without any streams,
 * and an error event a moment later, which would end the program: nobody listens yet.
 */
export function spawned(command: string, args: readonly string[], options: SpawnOptions): ChildProcess {
  const child = spawn(command, args, options);
  if ((child.stdio as ChildProcess['stdio'] | undefined | null) != null) return child;
  child.on('error', () => {});
  throw new Error(`${command} cannot be started: too many files are open (raise the limit: ulimit -n)`);
}

/** SIGKILLs the group that `pid` leads, if there still is one. Windows has no groups: there what a child spawned lives on. */
export function killGroup(pid: number): void {
  tried(() => process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL'));
}

/** Timers beyond this fire at once instead of late. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws USAGE for a deadline that a timer cannot keep. */
export function checkedDeadline(deadlineMs: number): number {
  if (deadlineMs > 0 && deadlineMs <= LONGEST_TIMER_MS) return deadlineMs;
  throw new TrainyardError('USAGE', `deadlineMs is ${deadlineMs}, expected milliseconds from 1 to ${LONGEST_TIMER_MS}`, {
    hint: 'every call is bounded; give a large number where you want no practical limit',
  });
}

// ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

export const BYTES_PER_MB = 2 ** 20;

const INTERVAL_MS = 100;
/** `ps` has to be started for each look. It is also the longest interval. */
const PS_INTERVAL_MS = 1_000;
/** Share of the time that looking may take, on a machine with thousands of processes. */
const MOST_SHARE = 0.02;

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

// ── output ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

const TAIL_CHARS = 8_192;
const TAIL_LINES = 12;
/** V8 ends a crash report with its own stack; the reason stands above it. */
const NATIVE_FRAME = /^\s*\d+: 0x[0-9a-f]+/;

/** The end of what a process printed, to be shown when it fails: a bounded number of characters, however much is printed. */
export class OutputTail {
  readonly #most: number;
  #text = '';

  constructor(most = TAIL_CHARS) {
    this.#most = most;
  }

  /** As it was printed. */
  get text(): string {
    return this.#text;
  }

  add(chunk: string): void {
    this.#text = (this.#text + chunk).slice(-this.#most);
  }

  clear(): void {
    this.#text = '';
  }

  lastLines(): string {
    const lines = printable(this.#text).split('\n');
    return lines
      .filter((line) => line.trim() !== '' && !NATIVE_FRAME.test(line))
      .slice(-TAIL_LINES)
      .join('\n');
  }
}

// ── temporary folders ───────────────────────────────────────────────────────────────────────────────────────────────────

const swept = new Set<string>();

/**
 * A folder that whoever made it removes. Those that killed processes left behind are removed by the next process that makes one of the same
 * kind: the name holds the process number, and its PID namespace, in which alone the number means something. Throws FILE_NOT_FOUND.
 */
export function temporaryFolder(what: string): string {
  const parent = tmpdir();
  const namespace = /\d+/.exec(tried(() => readlinkSync('/proc/self/ns/pid')) ?? '')?.[0] ?? '0';
  const prefix = `${what}-${namespace}-`;
  try {
    const folder = mkdtempSync(join(parent, `${prefix}${process.pid}-`));
    if (!swept.has(what)) sweep(parent, prefix);
    swept.add(what);
    return folder;
  } catch (thrown) {
    throw new TrainyardError('FILE_NOT_FOUND', `no temporary folder can be made in ${parent}: ${messageOf(thrown)}`, {
      hint: 'set TMPDIR to a folder that exists, can be written to and has free space',
    });
  }
}

function sweep(parent: string, prefix: string): void {
  for (const name of readdirSync(parent).filter((one) => one.startsWith(prefix))) {
    const owner = Number(name.slice(prefix.length).split('-')[0]);
    // It may be another user's, or being removed by a neighbour.
    if (owner > 0 && !isAlive(owner)) tried(() => rmSync(join(parent, name), { recursive: true, force: true }));
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
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
