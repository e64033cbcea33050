import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Trajectory } from '../core/types.ts';
import { collectGroups } from './scheduler.ts';

/** Runs with the given per-rollout delays; group n is worth keeping when `keep[n]`. */
async function collect(options: {
  wanted: number;
  atMost: number;
  size: number;
  concurrency: number;
  keep: readonly boolean[];
  delays: readonly number[];
}) {
  let started = 0;
  let running = 0;
  let mostRunning = 0;
  let tick = 0;
  const groups = await collectGroups({
    ...options,
    next: () => ({ groupId: String(started), task: { id: String(started++), prompt: [] }, size: options.size }),
    runOne: async ({ groupId }, place) => {
      mostRunning = Math.max(mostRunning, ++running);
      await sleep(options.delays[tick++ % options.delays.length]);
      running--;
      return { groupId, rolloutId: `${groupId}-${place}` } as Trajectory;
    },
    worthKeeping: ({ groupId }) => options.keep[Number(groupId) % options.keep.length] ?? true,
  });
  return { groups, mostRunning };
}

describe('collectGroups', () => {
  it('runs the same groups whatever finishes first, each rollout once, within the concurrency', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.record({
          wanted: fc.integer({ min: 1, max: 5 }),
          atMost: fc.integer({ min: 1, max: 12 }),
          size: fc.integer({ min: 1, max: 3 }),
          concurrency: fc.integer({ min: 1, max: 6 }),
          keep: fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }),
        }),
        fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 10 }),
        async (options, delays) => {
          const straight = await collect({ ...options, concurrency: 1, delays: [0] });
          const shuffled = await collect({ ...options, delays });
          expect(shuffled.groups).toEqual(straight.groups);
          expect(shuffled.mostRunning).toBeLessThanOrEqual(options.concurrency);
          const ids = shuffled.groups.flatMap(({ trajectories }) => trajectories.map(({ rolloutId }) => rolloutId));
          expect(new Set(ids).size).toBe(shuffled.groups.length * options.size);
          const kept = shuffled.groups.filter((_, n) => options.keep[n % options.keep.length]).length;
          expect(
            kept === options.wanted ||
              shuffled.groups.length === Math.min(options.atMost, Math.max(options.wanted, options.atMost)),
          ).toBe(true);
        },
      ),
      { numRuns: 60 },
    );
  });

  it('stops starting rollouts at the first error and throws it after the running ones ended', async () => {
    let ended = 0;
    let begun = 0;
    const run = collectGroups({
      wanted: 10,
      atMost: 10,
      concurrency: 2,
      next: () => ({ groupId: 'g', task: { id: 't', prompt: [] }, size: 1 }),
      runOne: async () => {
        if (++begun === 2) throw new Error('second');
        await sleep(10);
        ended++;
        return {} as Trajectory;
      },
      worthKeeping: () => true,
    });
    await expect(run).rejects.toThrow('second');
    expect({ begun, ended }).toEqual({ begun: 2, ended: 1 });
  });

  it('ends at once when there is nothing to run', async () => {
    const none = {
      wanted: 3,
      atMost: 3,
      concurrency: 2,
      next: () => undefined,
      runOne: () => Promise.reject(new Error('never')),
      worthKeeping: () => true,
    };
    expect(await collectGroups(none)).toEqual([]);
  });
});
