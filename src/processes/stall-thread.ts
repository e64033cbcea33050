/**
 * The watching side of stall-watch.ts: when the main thread's heart stops, asks it for its call stack, and says how long it stood still
 * once it goes on.
 *
 * The stack is asked for through the inspector, which interrupts running JavaScript without pausing it. In a native call that blocks, the
 * question waits until that returns, and is answered before the code behind it goes on. Nothing is attached in between.
 */
import { parentPort, workerData } from 'node:worker_threads';

/** As `util.getCallSites` gives it, and as it is sent from thread to thread. */
export interface CallSite {
  readonly functionName: string;
  /** A URL or a path; empty for code without a file. */
  readonly scriptName: string;
  /** From 1. */
  readonly lineNumber: number;
}

export interface StallThreadData {
  readonly beats: Int32Array;
  readonly thresholdMs: number;
}

export interface Stall {
  readonly sites: readonly CallSite[];
  readonly milliseconds: number;
}

/** Under which the main thread keeps its heartbeat, to be read together with the stack. */
const HEARTBEAT = 'trainyard.heartbeat';
/** How long an answer is waited for after the stall it is about. */
const PATIENCE_MS = 1_000;
const QUESTION = `JSON.stringify({
  beat: Atomics.load(globalThis[Symbol.for('${HEARTBEAT}')], 0),
  sites: process.getBuiltinModule('node:util').getCallSites(100),
})`;

const { beats, thresholdMs } = workerData as StallThreadData;
// A Node without an inspector has no stacks to give.
const inspector = await import('node:inspector').catch(() => undefined);
let beat = -1;
let since = performance.now();
let current: Asked | undefined;
/** Over, and not told yet: the answer may be on its way when the heart beats again. */
let ended: Ended[] = [];

interface Asked {
  sites: readonly CallSite[] | undefined;
}
interface Ended extends Asked {
  readonly at: number;
  readonly milliseconds: number;
}

function look(): void {
  tell();
  const now = Atomics.load(beats, 0);
  if (now === beat) {
    if (current === undefined && performance.now() - since >= thresholdMs) ask();
    return;
  }
  end();
  beat = now;
  since = performance.now();
}

function end(): void {
  const at = performance.now();
  // The same object: the answer is written into it.
  if (current !== undefined) ended.push(Object.assign(current, { at, milliseconds: at - since }));
  current = undefined;
}

function ask(): void {
  const stall: Asked = { sites: undefined };
  current = stall;
  const during = beat;
  if (inspector === undefined) return;
  const session = new inspector.Session();
  session.connectToMainThread();
  session.post('Runtime.evaluate', { expression: QUESTION, returnByValue: true, silent: true }, (error, answer) => {
    session.disconnect();
    if (error !== null || typeof answer.result.value !== 'string') return;
    const told = JSON.parse(answer.result.value) as { readonly beat: number; readonly sites: readonly CallSite[] };
    // A stack of later is somebody else's.
    if (told.beat === during) stall.sites = told.sites;
  });
}

function tell(): void {
  for (const { sites, milliseconds } of ended) {
    if (sites !== undefined) parentPort?.postMessage({ sites, milliseconds } satisfies Stall);
  }
  ended = ended.filter(({ sites, at }) => sites === undefined && performance.now() - at < PATIENCE_MS);
}

const timer = setInterval(look, thresholdMs / 4);
// Whoever says anything wants an end: what is known is told first.
parentPort?.once('message', () => {
  clearInterval(timer);
  end();
  setTimeout(() => {
    tell();
    parentPort?.close();
  }, thresholdMs / 4);
});
