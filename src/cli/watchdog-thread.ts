/** The watching side of watchdog.ts: wakes every second, and kills the process when the main thread has shown no life for long. */
import { writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { workerData } from 'node:worker_threads';
import { ERASE_BELOW, SHOW_CURSOR, wantsScreen } from './screen/terminal.ts';

const { beats, patience } = workerData as { readonly beats: Int32Array; readonly patience: number };
let last = -1;
let silent = 0;
setInterval(() => {
  const now = Atomics.load(beats, 0);
  silent = now === last ? silent + 1 : 0;
  last = now;
  if (silent < patience) return;
  const cause = `error WORKFLOW_FAILED: something has kept the event loop busy for ${patience} s without awaiting`;
  // Nobody else is left to put the terminal in order.
  const restored = wantsScreen(isatty(1) && isatty(2), process.env) ? `${ERASE_BELOW}${SHOW_CURSOR}` : '';
  writeSync(
    2,
    `${restored}${cause}; the process is killed\n  look for a loop without await in the workflow; what was acknowledged is kept\n`,
  );
  process.kill(process.pid, 'SIGKILL');
}, 1000);
