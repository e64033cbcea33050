/**
 * How long the event loop of a process was held up, from one question to the next.
 *
 * A timer that is due every millisecond looks how much time has gone by since the last one, and how much of it this thread was computing:
 * the rest was a machine that had no core for it. Imported before anything else in the server's process, where it answers `stall` and
 * `computed` over the channel to its parent.
 */

/** Milliseconds: the longest time between two turns of the event loop, and the most that was computed between two. */
export interface Stall {
  readonly wall: number;
  readonly cpu: number;
}

let worst = { wall: 0, cpu: 0 };
let last = look();

function look(): Stall {
  const { user, system } = process.threadCpuUsage();
  return { wall: performance.now(), cpu: (user + system) / 1000 };
}

setInterval(() => {
  const now = look();
  worst = { wall: Math.max(worst.wall, now.wall - last.wall), cpu: Math.max(worst.cpu, now.cpu - last.cpu) };
  last = now;
}, 1).unref();

/** The longest since the last call. */
export function longestStall(): Stall {
  const longest = worst;
  worst = { wall: 0, cpu: 0 };
  return longest;
}

/** Milliseconds that all threads of this process have computed so far. */
export function computedMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

if (process.send !== undefined) {
  process.on('message', (message) => {
    if (message === 'stall') process.send?.(longestStall());
    if (message === 'computed') process.send?.(computedMs());
  });
  // The channel alone is no reason to stay.
  process.channel?.unref();
}
