/**
 * Kills a process whose event loop a workflow has blocked for good. Neither a deadline nor Ctrl-C can stop a loop without `await`, because
 * both need the blocked thread. So a second thread, which also runs this file, wakes every second and kills the process once the main
 * thread has shown no sign of life for too long. It counts its own wake-ups, not wall-clock time, so a suspended laptop does not look
 * blocked.
 */
import { writeSync } from 'node:fs';
import { url } from 'node:inspector';
import { isatty } from 'node:tty';
import { fileURLToPath } from 'node:url';
import { isMainThread, Worker, workerData } from 'node:worker_threads';
import { ERASE_BELOW, SHOW_CURSOR, wantsScreen } from './output/text.ts';

/** Seconds. */
const PATIENCE = 120;

interface Watched {
  readonly beats: Int32Array;
  readonly patience: number;
}

/** A debugger may hold the process for as long as it likes. */
export function watch(patience = url() === undefined ? PATIENCE : Infinity): Disposable {
  const beats = new Int32Array(new SharedArrayBuffer(4));
  const timer = setInterval(() => Atomics.add(beats, 0, 1), 500).unref();
  const watcher = new Worker(fileURLToPath(import.meta.url), { workerData: { watched: { beats, patience } } });
  watcher.unref();
  return {
    [Symbol.dispose]: () => {
      clearInterval(timer);
      void watcher.terminate();
    },
  };
}

function killWhenBlocked({ beats, patience }: Watched): void {
  let last = -1;
  let silent = 0;
  setInterval(() => {
    const now = Atomics.load(beats, 0);
    silent = now === last ? silent + 1 : 0;
    last = now;
    if (silent < patience) return;
    const cause = `error WORKFLOW_FAILED: something has kept the event loop busy for ${patience} s without awaiting`;
    // No other code is left to restore the terminal.
    const restored = wantsScreen(isatty(1) && isatty(2), process.env) ? `${ERASE_BELOW}${SHOW_CURSOR}` : '';
    const hint = 'look for a loop without await in the workflow; what was acknowledged is kept';
    writeSync(2, `${restored}${cause}; the process is killed\n  ${hint}\n`);
    process.kill(process.pid, 'SIGKILL');
  }, 1000);
}

const { watched } = (isMainThread ? {} : (workerData ?? {})) as { readonly watched?: Watched };
if (watched !== undefined) killWhenBlocked(watched);
