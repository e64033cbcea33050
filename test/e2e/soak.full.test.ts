/** Thousands of rollouts leave nothing behind: no memory, no sockets. `npm run bench -- soak` does it with fifty thousand, and in an evaluation. */
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, it } from 'vitest';
import { openYard } from '../../bench/rollouts/yard.ts';

const [WARM, MORE] = [1_500, 3_000];
/** Of the heap, after a full collection: 1.4 KB a rollout would be noticed. */
const MOST_BYTES = 4_000_000;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function heap(): number {
  for (let i = 0; i < 3; i++) collect();
  return process.memoryUsage().heapUsed;
}

const sockets = (): number => process.getActiveResourcesInfo().filter((name) => name.startsWith('TCP')).length;

it('rollouts in process and over HTTP leave no memory and no sockets behind', { timeout: 300_000 }, async () => {
  const before = sockets();
  let grown = 0;
  {
    await using yard = await openYard();
    const rollOut = async (count: number): Promise<void> => {
      await yard.run(0.9 * count, { atOnce: 64, latencyMs: 0, door: 'in-process' });
      await yard.run(0.1 * count, { atOnce: 64, latencyMs: 0, door: 'http' });
    };
    await rollOut(WARM);
    const start = heap();
    await rollOut(MORE);
    grown = heap() - start;
  }
  expect(grown).toBeLessThan(MOST_BYTES);
  // Clients close idle connections after a few seconds.
  for (let waits = 0; sockets() > before && waits < 100; waits++) await sleep(200);
  expect(sockets()).toBe(before);
});
