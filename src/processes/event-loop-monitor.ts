/**
 * Reports code that blocks the event loop: while one workflow computes or waits synchronously, all others stand still, and nothing else
 * would show it.
 *
 * A worker thread, running this same file, watches a heartbeat of the main thread. When it stops, the worker requests the main thread's
 * call stack through the inspector, which interrupts running JavaScript without pausing it. During a blocking native call, the answer comes
 * when that call returns, before the code after it runs. Otherwise no inspector session is attached.
 *
 * Each location is reported the 1st, 10th, 100th … time. Time during which the main thread waited for a processor does not count, where the
 * system tells it (Linux). Off while a debugger listens, because at a breakpoint everything stands still.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { url as debuggerUrl, Session } from 'node:inspector';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parentPort, Worker, workerData } from 'node:worker_threads';
import { tried } from '../core/errors.ts';

/** Noticeable to a person, and many times what one turn of the event loop should take. */
const THRESHOLD_MS = 200;
const OWN_FOLDER = new URL('../', import.meta.url).href;
/** Global symbol of the main thread's heartbeat, which is read together with the stack. */
const HEARTBEAT = 'trainyard.heartbeat';

/** As `util.getCallSites` returns it. Sent between threads. */
interface CallSite {
  readonly functionName: string;
  /** A URL or a path; empty for code without a file. */
  readonly scriptName: string;
  /** From 1. */
  readonly lineNumber: number;
}

interface ThreadData {
  readonly heartbeat: Int32Array;
  readonly thresholdMs: number;
}

interface Place {
  readonly file: string;
  readonly line: number;
  readonly functionName: string;
}

interface MonitorOptions {
  readonly warn: (message: string) => void;
  readonly thresholdMs?: number;
  /** URL of a folder whose code is never blamed. Defaults to Trainyard's own. */
  readonly own?: string;
}

export function watchEventLoop({ warn, thresholdMs = THRESHOLD_MS, own = OWN_FOLDER }: MonitorOptions): AsyncDisposable {
  if (debuggerUrl() !== undefined) return { [Symbol.asyncDispose]: async () => {} };
  const heartbeat = new Int32Array(new SharedArrayBuffer(4));
  Object.assign(globalThis, { [Symbol.for(HEARTBEAT)]: heartbeat });
  const timer = setInterval(() => Atomics.add(heartbeat, 0, 1), thresholdMs / 4).unref();
  const data: ThreadData = { heartbeat, thresholdMs };
  const thread = new Worker(new URL(import.meta.url), { workerData: { [HEARTBEAT]: data } });
  const found = new Map<string, { times: number; milliseconds: number }>();
  thread.on('message', ({ sites, milliseconds }: Required<Block>) => {
    const place = blamed(sites, own);
    const warning = place && noted(found, place, milliseconds);
    if (warning !== undefined) warn(warning);
  });
  const exited = once(thread, 'exit');
  // If the thread fails, only the monitoring stops, never the run.
  thread.on('error', () => {});
  exited.catch(() => {});
  thread.unref();
  return {
    [Symbol.asyncDispose]: async () => {
      thread.ref();
      clearInterval(timer);
      thread.postMessage('end');
      const bound = setTimeout(() => void thread.terminate(), thresholdMs * 5);
      await exited.catch(() => {});
      clearTimeout(bound);
    },
  };
}

const ADVICE = "use an asynchronous call, or isolation: 'process'";

function noted(found: Map<string, { times: number; milliseconds: number }>, place: Place, ms: number): string | undefined {
  const { file, line, functionName } = place;
  // By function, because a loop can be interrupted on any of its lines.
  const key = `${file}\n${functionName || line}`;
  const before = found.get(key) ?? { times: 0, milliseconds: 0 };
  const times = before.times + 1;
  const milliseconds = before.milliseconds + ms;
  found.set(key, { times, milliseconds });
  if (!Number.isInteger(Math.log10(times))) return undefined;
  const seconds = `${(milliseconds / 1000).toFixed(1)} s`;
  const near = relative('.', file);
  const at = `${near.startsWith('..') ? file : near}:${line}${functionName === '' ? '' : ` ${functionName}`}`;
  return `${at} blocked all rollouts ${times === 1 ? `for ${seconds}` : `${times} times, ${seconds} in all`}; ${ADVICE}`;
}

/**
 * The innermost frame that the user can change: not in Node or a package, which only do as told. Undefined if none, or if it is in `own`.
 */
export function blamed(sites: readonly CallSite[], own: string): Place | undefined {
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
  return name.startsWith('file:') ? fileURLToPath(name) : name;
}

const STACK_REQUEST = `JSON.stringify({
  beat: Atomics.load(globalThis[Symbol.for('${HEARTBEAT}')], 0),
  sites: process.getBuiltinModule('node:util').getCallSites(100),
})`;

/** A period without a heartbeat. Reported once both fields are known: the stack may arrive after the heart beats again. */
interface Block {
  sites?: readonly CallSite[];
  milliseconds?: number;
}

function tell(block: Block): void {
  if (block.sites !== undefined && block.milliseconds !== undefined) parentPort?.postMessage(block);
}

function askForStack(block: Block, during: number): void {
  const session = new Session();
  session.connectToMainThread();
  session.post('Runtime.evaluate', { expression: STACK_REQUEST, returnByValue: true, silent: true }, (error, answer) => {
    session.disconnect();
    if (error !== null || typeof answer.result.value !== 'string') return;
    const { beat, sites } = JSON.parse(answer.result.value) as { readonly beat: number; readonly sites: readonly CallSite[] };
    // A later stack shows other code.
    if (beat !== during) return;
    block.sites = sites;
    tell(block);
  });
}

/** Milliseconds without those that the main thread spent waiting for a processor, which the system adds up when it gets one. */
export function ownTime(now = performance.now(), schedstat = tried(() => readFileSync('/proc/self/schedstat', 'utf8'))): number {
  const [, nanoseconds = 0] = schedstat?.split(' ').map(Number) ?? [];
  return now - nanoseconds / 1e6;
}

function watch({ heartbeat, thresholdMs }: ThreadData): void {
  let beat = -1;
  let since = ownTime();
  let current: Block | undefined;
  const end = () => {
    const milliseconds = ownTime() - since;
    if (current !== undefined && milliseconds >= thresholdMs) tell(Object.assign(current, { milliseconds }));
    current = undefined;
  };
  const look = () => {
    const now = Atomics.load(heartbeat, 0);
    if (now !== beat) {
      end();
      beat = now;
      since = ownTime();
    } else if (current === undefined && ownTime() - since >= thresholdMs) {
      current = {};
      askForStack(current, beat);
    }
  };
  const timer = setInterval(look, thresholdMs / 4);
  // Any message ends the watch; report a current block first.
  parentPort?.once('message', () => {
    clearInterval(timer);
    end();
    setTimeout(() => parentPort?.close(), thresholdMs / 4);
  });
}

const given = (workerData as Record<string, ThreadData | undefined> | null)?.[HEARTBEAT];
if (given !== undefined) watch(given);
