/**
 * Finds what blocks the event loop, and names it: while one workflow computes or waits without `await`, all others stand still, and
 * nothing else would say so.
 *
 * A timer on this thread beats; a thread of its own listens. Each place is told when it is first found, and
 * again with a count at the 10th time, the 100th and so on.
 * A machine that is much too busy can make a short call look like a long one. Off while a debugger listens: a breakpoint is no stall.
 */
import { url as debuggerUrl } from 'node:inspector';
import { relative } from 'node:path';
import { Worker } from 'node:worker_threads';
import { siblingScript } from './protocol.ts';
import type { CallSite, Stall, StallThreadData } from './stall-thread.ts';

/** Milliseconds that a person would notice, many times what a turn of the event loop should take. */
const THRESHOLD_MS = 200;

/** As stall-thread.ts knows it. */
const heartbeat = Symbol.for('trainyard.heartbeat');

interface Found {
  readonly place: StallPlace;
  times: number;
  milliseconds: number;
}

interface StallWatchOptions {
  /** Told in words what blocked. */
  readonly warn: (message: string) => void;
  readonly thresholdMs?: number;
  /** URL of the folder whose code is never named; by default Trainyard's own. */
  readonly own?: string;
}

/** Disposing ends the watch. */
export function watchStalls({ warn, thresholdMs = THRESHOLD_MS, own = ownFolder() }: StallWatchOptions): AsyncDisposable {
  if (debuggerUrl() !== undefined) return { [Symbol.asyncDispose]: async () => {} };
  const beats = new Int32Array(new SharedArrayBuffer(4));
  Object.assign(globalThis, { [heartbeat]: beats });
  const timer = setInterval(() => Atomics.add(beats, 0, 1), thresholdMs / 4).unref();
  const workerData: StallThreadData = { beats, thresholdMs };
  const thread = new Worker(siblingScript(import.meta.url, 'stall-thread'), { workerData });
  const found = new Map<string, Found>();
  thread.on('message', ({ sites, milliseconds }: Stall) => {
    const place = blamed(sites, own);
    if (place !== undefined) note(found, place, milliseconds, warn);
  });
  const exited = new Promise<void>((resolve) => void thread.once('exit', () => resolve()));
  // A thread that cannot run costs the watch, never the run.
  thread.on('error', () => {});
  thread.unref();
  return {
    [Symbol.asyncDispose]: async () => {
      thread.ref();
      clearInterval(timer);
      // What was found last is told before the thread ends.
      thread.postMessage('end');
      const bound = setTimeout(() => void thread.terminate(), thresholdMs * 5);
      await exited;
      clearTimeout(bound);
    },
  };
}

const ADVICE = "use an asynchronous call, or isolation: 'process'";

function note(found: Map<string, Found>, place: StallPlace, milliseconds: number, warn: (message: string) => void): void {
  // A loop is interrupted on any of its lines.
  const key = `${place.file}\n${place.functionName || place.line}`;
  const known = found.get(key) ?? { place, times: 0, milliseconds: 0 };
  found.set(key, known);
  known.times += 1;
  known.milliseconds += milliseconds;
  if (!Number.isInteger(Math.log10(known.times))) return;
  const times =
    known.times === 1 ? `for ${seconds(milliseconds)}` : `${known.times} times, ${seconds(known.milliseconds)} in all`;
  warn(`${inWords(known.place)} blocked all rollouts ${times}; ${ADVICE}`);
}

function inWords({ file, line, functionName }: StallPlace): string {
  const near = relative('.', file);
  const at = `${near.startsWith('..') ? file : near}:${line}`;
  return functionName === '' ? at : `${at} ${functionName}`;
}

function seconds(milliseconds: number): string {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

/** The sources, or what was built of them. */
function ownFolder(): string {
  return new URL('../', import.meta.url).href;
}

interface StallPlace {
  /** Path of the file. */
  readonly file: string;
  readonly line: number;
  /** Empty where the function has no name. */
  readonly functionName: string;
}

/**
 * The place in a call stack that a person can change. Frames of Node and of packages are passed over, from the innermost outwards, because
 * they do what they were told. Where the first frame left is Trainyard's own (`own`: URL of its folder), or there is none, nobody is named.
 */
export function blamed(sites: readonly CallSite[], own: string): StallPlace | undefined {
  const first = sites.find(
    ({ scriptName }) => isFile(scriptName) && (isIn(own, scriptName) || !/[\\/]node_modules[\\/]/.test(scriptName)),
  );
  if (first === undefined || isIn(own, first.scriptName)) return undefined;
  return { file: pathOf(first.scriptName), line: first.lineNumber, functionName: first.functionName };
}

function isFile(name: string): boolean {
  return name.startsWith('file:') || name.startsWith('/') || /^[A-Za-z]:\\/.test(name);
}

function isIn(own: string, name: string): boolean {
  return name.startsWith(own) || name.startsWith(pathOf(own));
}

function pathOf(name: string): string {
  return name.startsWith('file:') ? decodeURIComponent(new URL(name).pathname) : name;
}
