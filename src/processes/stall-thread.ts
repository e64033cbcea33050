/**
 * The watching side of stall-watch.ts: when the main thread's heart stops, asks it for its call stack, and says how long it stood still
 * once it goes on.
 *
 * The stack is asked for through the inspector, which interrupts running JavaScript without pausing it. In a native call that blocks, the
 * question waits until that returns, and is answered before the code behind it goes on. Nothing is attached in between.
 */
import { parentPort, workerData } from 'node:worker_threads';
import type { CallSite } from './stall-place.ts';

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
const QUESTION = `JSON.stringify({
  beat: Atomics.load(globalThis[Symbol.for('${HEARTBEAT}')], 0),
  sites: process.getBuiltinModule('node:util').getCallSites(100),
})`;

const { beats, thresholdMs } = workerData as StallThreadData;
// A Node without an inspector has no stacks to give.
const inspector = await import('node:inspector').catch(() => undefined);
let beat = -1;
let since = performance.now();
let asked: { sites: readonly CallSite[] | undefined } | undefined;

function look(): void {
  const now = Atomics.load(beats, 0);
  if (now === beat) {
    if (asked === undefined && performance.now() - since >= thresholdMs) ask();
    return;
  }
  // The answer may be on its way when the heart beats again.
  if (asked !== undefined) setTimeout(tell, thresholdMs, asked, performance.now() - since);
  asked = undefined;
  beat = now;
  since = performance.now();
}

function ask(): void {
  const stall: typeof asked = { sites: undefined };
  asked = stall;
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

function tell({ sites }: NonNullable<typeof asked>, milliseconds: number): void {
  if (sites !== undefined) parentPort?.postMessage({ sites, milliseconds } satisfies Stall);
}

setInterval(look, thresholdMs / 4);
