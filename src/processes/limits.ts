/**
 * How a child process is started, bounded and ended: process group, memory, time, the output that is kept, temporary folders.
 *
 * Memory: resident memory of the process and everything it starts is looked at several times a second. This is the only bound on memory in
 * Trainyard, because it needs no rights and works everywhere. It cannot stop an allocation between two looks (a tenth of a second; up to a
 * whole one on a machine with thousands of processes), count what is in swap or in files that nobody has mapped, or count shared pages only
 * once. A process counts when it descends from the watched one or is in its group: not a daemon that left both.
 */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { chmod, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
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

/** Timers beyond this fire at once instead of late. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws USAGE for a deadline that a timer cannot keep. */
export function checkedDeadline(deadlineMs: number): number {
  if (deadlineMs > 0 && deadlineMs <= LONGEST_TIMER_MS) return deadlineMs;
  throw new TrainyardError('USAGE', `deadlineMs is ${deadlineMs}, expected milliseconds from 1 to ${LONGEST_TIMER_MS}`, {
    hint: 'every call is bounded; give a large number where you want no practical limit',
  });
}

/** Resolves with the promise, or when the time is over. */
export async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  await Promise.race([awaited, over]);
  clearTimeout(timer);
}

// ── a process and its group ─────────────────────────────────────────────────────────────────────────────────────────────

/** How long after its exit a process's streams are read: someone else may hold its pipes open. */
const DRAIN_MS = 250;

/** How a process ended, or why the system gave none. */
export type ProcessExit = { readonly code: number | null; readonly signal: NodeJS.Signals | null } | { readonly failure: string };

/**
 * A child process that leads a group of its own, which is killed as one: for the first cause there is, and when the process has exited and
 * left something running. What leaves the group on purpose (a daemon) outlives it. Windows has no groups: there only the process is killed.
 */
export class ProcessGroup<Cause = never> {
  readonly child: ChildProcess;
  /** Resolves when it has exited, its group was killed, and its streams were read. */
  readonly ended: Promise<ProcessExit>;
  /** Ends what watches it. */
  readonly #unwatch: (() => void)[] = [];
  #timer: NodeJS.Timeout | undefined;
  #cause: Cause | undefined;

  /** Throws where the system has no descriptors left for its pipes. */
  constructor(command: string, args: readonly string[], options: SpawnOptions, drainMs: number = DRAIN_MS) {
    this.child = spawn(command, args, { detached: process.platform !== 'win32', windowsHide: true, ...options });
    if ((this.child.stdio as ChildProcess['stdio'] | undefined | null) == null) {
      // Node tells it by an error event a moment later too, which would end the program: nobody listens yet.
      this.child.on('error', () => {});
      throw new Error(`${command} cannot be started: too many files are open (raise the limit: ulimit -n)`);
    }
    this.ended = this.#untilEnded(drainMs);
  }

  get isRunning(): boolean {
    const { pid, exitCode, signalCode } = this.child;
    return pid !== undefined && exitCode === null && signalCode === null;
  }

  /** Why it was killed; undefined where it was not, or not by us. */
  get cause(): Cause | undefined {
    return this.#cause;
  }

  kill(cause?: Cause): void {
    this.#cause ??= cause;
    // Never after its exit: the number could be another process's by then.
    if (this.isRunning) this.#killGroup();
  }

  /** Instead of an earlier time. Nothing after its exit: a timer would keep this process. */
  killAfter(ms: number, cause?: Cause): void {
    clearTimeout(this.#timer);
    if (this.isRunning) this.#timer = setTimeout(() => this.kill(cause), ms);
  }

  killOn(signal: AbortSignal | undefined, cause: Cause): void {
    const kill = (): void => this.kill(cause);
    if (signal?.aborted) kill();
    signal?.addEventListener('abort', kill, { once: true });
    this.#unwatch.push(() => signal?.removeEventListener('abort', kill));
  }

  killOver(memoryMb: number | undefined, cause: (residentMb: number) => Cause): void {
    const { pid } = this.child;
    if (memoryMb === undefined || pid === undefined) return;
    const over = (bytes: number): void => this.kill(cause(Math.round(bytes / BYTES_PER_MB)));
    this.#unwatch.push(watchMemory(pid, memoryMb * BYTES_PER_MB, over));
  }

  async #untilEnded(drainMs: number): Promise<ProcessExit> {
    const { child } = this;
    // All listeners before the first wait: the events may come in one go.
    const closed = new Promise<void>((resolve) => void child.once('close', () => resolve()));
    const exit = await new Promise<ProcessExit>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
      child.on('error', (error) => child.pid === undefined && resolve({ failure: error.message }));
    });
    clearTimeout(this.#timer);
    for (const end of this.#unwatch) end();
    // Processes that it had started may outlive it; the group's number is nobody else's while one of them is there.
    this.#killGroup();
    await within(drainMs, closed);
    return exit;
  }

  #killGroup(): void {
    const { pid } = this.child;
    if (pid !== undefined) tried(() => process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL'));
  }
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
function watchMemory(pid: number, limit: number, over: (bytes: number) => void): () => void {
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

/** The end of what a process prints to a stream, as it printed it: a bounded number of characters, however much it is. */
export class OutputTail {
  text = '';

  constructor(stream: Readable | null, most = TAIL_CHARS) {
    stream?.setEncoding('utf8').on('data', (chunk: string) => {
      this.text = (this.text + chunk).slice(-most);
    });
  }

  /** For a message about why it failed. */
  lastLines(): string {
    const lines = printable(this.text).split('\n');
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
