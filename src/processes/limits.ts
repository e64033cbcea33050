/**
 * Starts, limits and ends child processes: process groups, memory, time, captured output, temporary folders.
 *
 * The memory limit polls the resident memory of a process, its descendants and its group, which needs no privileges. It polls every 0.1 s
 * where there is /proc (up to 1 s with thousands of processes), every second where there is only `ps`, and misses allocations in between. It
 * does not count swap, unmapped file pages or daemons that left the group, and counts shared pages more than once. Without both, as on
 * Windows, there is no limit, and a warning says so once.
 */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { chmod, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { printable } from '../core/describe.ts';
import { messageOf, TrainyardError, tried } from '../core/errors.ts';

/** Longer timers fire at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws USAGE if no timer can keep the deadline. */
export function checkedDeadline(deadlineMs: number): number {
  if (deadlineMs > 0 && deadlineMs <= LONGEST_TIMER_MS) return deadlineMs;
  throw new TrainyardError(
    'USAGE',
    `deadlineMs is ${deadlineMs}, expected milliseconds from 1 to ${LONGEST_TIMER_MS}`,
    'every call is bounded; give a large number where you want no practical limit',
  );
}

export async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  await Promise.race([awaited, over]);
  clearTimeout(timer);
}

/** How long to read a process's streams after its exit: another process may hold its pipes open. */
const DRAIN_MS = 250;

export type ProcessExit = { readonly code: number | null; readonly signal: NodeJS.Signals | null } | { readonly failure: string };

/**
 * A child process that leads its own group, which is killed as a whole, for the first cause given and after the process exits. A daemon
 * that leaves the group survives. Windows has no groups: only the process is killed.
 */
export class ProcessGroup<Cause = never> {
  readonly child: ChildProcess;
  /** Resolves when the process has exited, its group is killed, and its streams are read. */
  readonly ended: Promise<ProcessExit>;
  /** Ends what watches it. */
  readonly #unwatch: (() => void)[] = [];
  #timer: NodeJS.Timeout | undefined;
  #cause: Cause | undefined;

  /** Throws if the system has no file descriptors left for the pipes. */
  constructor(command: string, args: readonly string[], options: SpawnOptions, drainMs: number = DRAIN_MS) {
    this.child = spawn(command, args, { detached: process.platform !== 'win32', windowsHide: true, ...options });
    if ((this.child.stdio as ChildProcess['stdio'] | undefined | null) == null) {
      // Node also emits an error event a moment later, which would be uncaught without a listener.
      this.child.on('error', () => {});
      throw new Error(`${command} cannot be started: too many files are open (raise the limit: ulimit -n)`);
    }
    this.ended = this.#untilEnded(drainMs);
  }

  get isRunning(): boolean {
    const { pid, exitCode, signalCode } = this.child;
    return pid !== undefined && exitCode === null && signalCode === null;
  }

  /** Why it was killed. Undefined if it was not, or not by us. */
  get cause(): Cause | undefined {
    return this.#cause;
  }

  kill(cause?: Cause): void {
    this.#cause ??= cause;
    // Never after its exit: the pid could belong to another process by then.
    if (this.isRunning) this.#killGroup();
  }

  /** Replaces an earlier timer. Does nothing after the exit: a timer would keep this process alive. */
  killAfter(ms: number, cause?: Cause): void {
    clearTimeout(this.#timer);
    if (this.isRunning) this.#timer = setTimeout(() => this.kill(cause), ms);
  }

  killOn(signal: AbortSignal | undefined, cause: Cause): void {
    const kill = () => this.kill(cause);
    if (signal?.aborted) kill();
    signal?.addEventListener('abort', kill, { once: true });
    this.#unwatch.push(() => signal?.removeEventListener('abort', kill));
  }

  killOver(memoryMb: number | undefined, cause: (residentMb: number) => Cause): void {
    const { pid } = this.child;
    if (memoryMb === undefined || pid === undefined) return;
    const over = (bytes: number) => this.kill(cause(Math.round(bytes / BYTES_PER_MB)));
    this.#unwatch.push(watchMemory(pid, memoryMb * BYTES_PER_MB, over));
  }

  async #untilEnded(drainMs: number): Promise<ProcessExit> {
    const { child } = this;
    // Add all listeners before the first await: the events may come together.
    const closed = new Promise<void>((resolve) => void child.once('close', () => resolve()));
    const exit = await new Promise<ProcessExit>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
      child.on('error', (error) => child.pid === undefined && resolve({ failure: error.message }));
    });
    clearTimeout(this.#timer);
    for (const end of this.#unwatch) end();
    // Children may outlive it. The group id cannot be reused while one of them exists.
    this.#killGroup();
    await within(drainMs, closed);
    return exit;
  }

  #killGroup(): void {
    const { pid } = this.child;
    if (pid !== undefined) tried(() => process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL'));
  }
}

export const BYTES_PER_MB = 2 ** 20;

const INTERVAL_MS = 100;
/** Each poll starts `ps`. Also the longest interval. */
const PS_INTERVAL_MS = 1_000;
/** Maximum share of time spent polling, for machines with thousands of processes. */
const MOST_SHARE = 0.02;

interface Watch {
  readonly pid: number;
  readonly limit: number;
  readonly over: (bytes: number) => void;
  bytes: number;
}

interface Row {
  readonly pid: number;
  readonly parent: number;
  readonly group: number;
  readonly bytes: number;
}

const watches = new Map<number, Watch>();
/** The watch of each process at the last poll: pids wrap around, so a child can be listed before its parent. */
let owners = new Map<number, Watch>();
let isWatching = false;

/** Calls `over` once, with the bytes found, when they exceed `limit`. Returns a function that ends the watch. */
function watchMemory(pid: number, limit: number, over: (bytes: number) => void): () => void {
  const watch: Watch = { pid, limit, over, bytes: 0 };
  watches.set(pid, watch);
  if (!isWatching) void watchAll();
  return () => {
    if (watches.get(pid) === watch) watches.delete(pid);
  };
}

async function watchAll(): Promise<void> {
  isWatching = true;
  while (watches.size > 0) {
    const began = performance.now();
    const inProc = [...rowsOfProc()];
    const rows = inProc.length > 0 ? inProc : await rowsOfPs();
    if (rows.some(({ pid }) => pid === process.pid)) look(rows);
    else warnUnlimited();
    const least = inProc.length > 0 ? INTERVAL_MS : PS_INTERVAL_MS;
    const restMs = Math.min(Math.max(least, (performance.now() - began) / MOST_SHARE), PS_INTERVAL_MS);
    await new Promise<void>((resolve) => void setTimeout(resolve, restMs).unref());
  }
  isWatching = false;
}

let isWarned = false;

function warnUnlimited(): void {
  const found = 'neither /proc nor ps lists processes here, so memory limits of graders and other programs are not enforced';
  if (!isWarned) process.emitWarning(found, 'TrainyardWarning');
  isWarned = true;
}

function look(rows: readonly Row[]): void {
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

/** Synchronous: asynchronous reads of these tiny files use five times the CPU time. */
function* rowsOfProc(): Iterable<Row> {
  for (const name of tried(() => readdirSync('/proc')) ?? []) {
    const fields = /^\d/.test(name) ? statOf(name) : undefined;
    if (fields === undefined) continue;
    yield { pid: Number(name), parent: Number(fields[1]), group: Number(fields[2]), bytes: Number(fields[21]) * pageBytes() };
  }
}

/** State, parent, group and so on; the 22nd is the number of resident pages. Undefined if the process has ended. */
function statOf(pid: string): readonly string[] | undefined {
  const text = tried(() => readFileSync(`/proc/${pid}/stat`, 'latin1'));
  // They follow the program's name in parentheses, which may contain anything.
  return text?.slice(text.lastIndexOf(')') + 2).split(' ');
}

let foundPageBytes: number | undefined;

/** 4 KiB, more on some ARM systems. Derived from what Node reports for this process. */
function pageBytes(): number {
  foundPageBytes ??= 2 ** Math.round(Math.log2(process.memoryUsage.rss() / Number(statOf('self')?.[21])));
  return foundPageBytes;
}

const BYTES_PER_KB = 1024;

async function rowsOfPs(): Promise<readonly Row[]> {
  const listed = await promisify(execFile)('/bin/ps', ['-A', '-o', 'pid=,ppid=,pgid=,rss=']).catch(() => ({ stdout: '' }));
  return listed.stdout.split('\n').map((line) => {
    const [pid = 0, parent = 0, group = 0, kilobytes = 0] = line.trim().split(/\s+/).map(Number);
    return { pid, parent, group, bytes: kilobytes * BYTES_PER_KB };
  });
}

const TAIL_CHARS = 8_192;
const TAIL_LINES = 12;
/** V8 ends a crash report with a native stack; the reason is above it. */
const NATIVE_FRAME = /^\s*\d+: 0x[0-9a-f]+/;

export class OutputTail {
  text = '';

  constructor(stream: Readable | null, most = TAIL_CHARS) {
    stream?.setEncoding('utf8').on('data', (chunk: string) => {
      this.text = (this.text + chunk).slice(-most);
    });
  }

  lastLines(): string {
    const lines = printable(this.text).split('\n');
    return lines
      .filter((line) => line.trim() !== '' && !NATIVE_FRAME.test(line))
      .slice(-TAIL_LINES)
      .join('\n');
  }
}

const swept = new Set<string>();

/**
 * Creates a folder that the caller must remove. Also removes those of the same kind that killed processes left: their names hold the pid
 * and the PID namespace in which it is valid. Throws FILE_NOT_FOUND.
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
    throw new TrainyardError(
      'FILE_NOT_FOUND',
      `no temporary folder can be made in ${parent}: ${messageOf(thrown)}`,
      'set TMPDIR to a folder that exists, can be written to and has free space',
    );
  }
}

function sweep(parent: string, prefix: string): void {
  for (const name of readdirSync(parent).filter((one) => one.startsWith(prefix))) {
    const owner = Number(name.slice(prefix.length).split('-')[0]);
    // It may belong to another user, or another process may be removing it.
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

/** Also removes read-only folders, as in package caches. Never rejects: what cannot be removed stays. */
export async function removeFolder(folder: string): Promise<void> {
  const remove = () => rm(folder, { recursive: true, force: true, maxRetries: 3 });
  try {
    await remove().catch(async () => {
      const found = await readdir(folder, { recursive: true, withFileTypes: true });
      for (const one of found) if (one.isDirectory()) await chmod(join(one.parentPath, one.name), 0o700);
      await remove();
    });
  } catch {}
}
