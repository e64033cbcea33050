/**
 * Ends a process whose event loop a workflow has blocked for good: a loop without `await` can be stopped neither by its deadline
 * nor by Ctrl-C, because both are noticed by the very thread it keeps busy.
 *
 * Counts the watcher's own wake-ups without a sign of life, not wall-clock time, so that a suspended laptop is not taken for a loop.
 */
import { Worker } from 'node:worker_threads';

/** Seconds of a blocked event loop after which nothing else can help. */
const PATIENCE = 120;

export function watch(patience = PATIENCE): Disposable {
  const beats = new Int32Array(new SharedArrayBuffer(4));
  const timer = setInterval(() => Atomics.add(beats, 0, 1), 500).unref();
  const file = import.meta.url.endsWith('.ts') ? './watchdog-thread.ts' : './watchdog-thread.js';
  const watcher = new Worker(new URL(file, import.meta.url), { workerData: { beats, patience } });
  watcher.unref();
  return {
    [Symbol.dispose]: () => {
      clearInterval(timer);
      void watcher.terminate();
    },
  };
}
