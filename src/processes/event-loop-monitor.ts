/**
 * Finds what blocks the event loop, and names it: while one workflow computes or waits without `await`, all others stand still, and nothing
 * else would say so.
 *
 * A timer on the main thread beats; a thread of its own watches, which is this same file. When the heart stops, the thread asks the main
 * one for its call stack through the inspector, which interrupts running JavaScript without pausing it. In a native call that blocks, the
 * request waits until that returns, and is answered before the code behind it goes on. Nothing is attached in between.
 *
 * Each place is reported when it is first found, and again with a count at the 10th time, the 100th and so on. A machine that is much too
 * busy can make a short call look like a long one. Off while a debugger listens: at a breakpoint everything stands still.
 */
import { url as debuggerUrl, Session } from 'node:inspector';
import { relative } from 'node:path';
import { parentPort, Worker, workerData } from 'node:worker_threads';

/** Milliseconds that a person would notice, many times what a turn of the event loop should take. */
const THRESHOLD_MS = 200;
/** Under which the main thread keeps its heartbeat, to be read together with the stack. */
const HEARTBEAT = 'trainyard.heartbeat';

/** As `util.getCallSites` gives it, and as it is sent from thread to thread. */
export interface CallSite {
  readonly functionName: string;
  /** A URL or a path; empty for code without a file. */
  readonly scriptName: string;
  /** From 1. */
  readonly lineNumber: number;
}

interface Blocked {
  readonly sites: readonly CallSite[];
  readonly milliseconds: number;
}

interface ThreadData {
  readonly heartbeat: Int32Array;
  readonly thresholdMs: number;
}

interface Place {
  /** Path of the file. */
  readonly file: string;
  readonly line: number;
  /** Empty where the function has no name. */
  readonly functionName: string;
}

interface Found {
  readonly place: Place;
  times: number;
  milliseconds: number;
}

interface MonitorOptions {
  /** Told in words what blocked. */
  readonly warn: (message: string) => void;
  readonly thresholdMs?: number;
  /** URL of the folder whose code is never named; by default Trainyard's own. */
  readonly own?: string;
}

/** Disposing ends the watch. */
export function watchEventLoop({ warn, thresholdMs = THRESHOLD_MS, own = ownFolder() }: MonitorOptions): AsyncDisposable {
  if (debuggerUrl() !== undefined) return { [Symbol.asyncDispose]: async () => {} };
  const heartbeat = new Int32Array(new SharedArrayBuffer(4));
  Object.assign(globalThis, { [Symbol.for(HEARTBEAT)]: heartbeat });
  const timer = setInterval(() => Atomics.add(heartbeat, 0, 1), thresholdMs / 4).unref();
  const data: ThreadData = { heartbeat, thresholdMs };
  const thread = new Worker(new URL(import.meta.url), { workerData: { [HEARTBEAT]: data } });
  const found = new Map<string, Found>();
  thread.on('message', ({ sites, milliseconds }: Blocked) => {
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

function note(found: Map<string, Found>, place: Place, milliseconds: number, warn: (message: string) => void): void {
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

function inWords({ file, line, functionName }: Place): string {
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

/**
 * The place in a call stack that a person can change. Frames of Node and of packages are passed over, from the innermost outwards, because
 * they do what they were told. Where the first frame left is Trainyard's own (`own`: URL of its folder), or there is none, nobody is named.
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
  return name.startsWith('file:') ? decodeURIComponent(new URL(name).pathname) : name;
}

// ── the watching thread ─────────────────────────────────────────────────────────────────────────────────────────────────

/** How long an answer is waited for after the time it is about. */
const PATIENCE_MS = 1_000;
const STACK_REQUEST = `JSON.stringify({
  beat: Atomics.load(globalThis[Symbol.for('${HEARTBEAT}')], 0),
  sites: process.getBuiltinModule('node:util').getCallSites(100),
})`;

interface Stop {
  sites: readonly CallSite[] | undefined;
  /** When it was over, and how long it took; 0 while it lasts. */
  endedAt: number;
  milliseconds: number;
}

class Watcher {
  readonly #heartbeat: Int32Array;
  readonly #thresholdMs: number;
  #beat = -1;
  #since = performance.now();
  #current: Stop | undefined;
  /** Over, and not told yet: the stack may be on its way when the heart beats again. */
  #over: Stop[] = [];

  constructor({ heartbeat, thresholdMs }: ThreadData) {
    this.#heartbeat = heartbeat;
    this.#thresholdMs = thresholdMs;
  }

  look(): void {
    this.tell();
    const now = Atomics.load(this.#heartbeat, 0);
    if (now === this.#beat) {
      if (this.#current === undefined && performance.now() - this.#since >= this.#thresholdMs) this.#ask();
      return;
    }
    this.end();
    this.#beat = now;
    this.#since = performance.now();
  }

  end(): void {
    const endedAt = performance.now();
    if (this.#current !== undefined) {
      this.#over.push(Object.assign(this.#current, { endedAt, milliseconds: endedAt - this.#since }));
    }
    this.#current = undefined;
  }

  tell(): void {
    for (const { sites, milliseconds } of this.#over) {
      if (sites !== undefined) parentPort?.postMessage({ sites, milliseconds } satisfies Blocked);
    }
    this.#over = this.#over.filter(({ sites, endedAt }) => sites === undefined && performance.now() - endedAt < PATIENCE_MS);
  }

  #ask(): void {
    const stop: Stop = { sites: undefined, endedAt: 0, milliseconds: 0 };
    this.#current = stop;
    const during = this.#beat;
    const session = new Session();
    session.connectToMainThread();
    session.post('Runtime.evaluate', { expression: STACK_REQUEST, returnByValue: true, silent: true }, (error, answer) => {
      session.disconnect();
      if (error !== null || typeof answer.result.value !== 'string') return;
      const told = JSON.parse(answer.result.value) as { readonly beat: number; readonly sites: readonly CallSite[] };
      // A stack of later is somebody else's.
      if (told.beat === during) stop.sites = told.sites;
    });
  }
}

function watch(data: ThreadData): void {
  const watcher = new Watcher(data);
  const timer = setInterval(() => watcher.look(), data.thresholdMs / 4);
  // Any message asks for the end; what is known is told first.
  parentPort?.once('message', () => {
    clearInterval(timer);
    watcher.end();
    setTimeout(() => {
      watcher.tell();
      parentPort?.close();
    }, data.thresholdMs / 4);
  });
}

const given = (workerData as Record<string, ThreadData | undefined> | null)?.[HEARTBEAT];
if (given !== undefined) watch(given);
