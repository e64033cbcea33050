import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { inParallel } from './in-parallel.ts';

describe('inParallel', () => {
  it('gives results in the order of the items, within the concurrency', async () => {
    let running = 0;
    let most = 0;
    const results = await inParallel([5, 1, 3, 0, 2], 2, async (ms, index) => {
      most = Math.max(most, ++running);
      await sleep(ms);
      running--;
      return `${index}:${ms}`;
    });
    expect(results).toEqual(['0:5', '1:1', '2:3', '3:0', '4:2']);
    expect(most).toBe(2);
  });

  it('stops starting at the first error and throws it after the running ones ended', async () => {
    let begun = 0;
    let ended = 0;
    const run = inParallel([1, 2, 3, 4], 2, async () => {
      if (++begun === 2) throw new Error('second');
      await sleep(10);
      ended++;
    });
    await expect(run).rejects.toThrow('second');
    expect({ begun, ended }).toEqual({ begun: 2, ended: 1 });
  });

  it('gives nothing when it was halted before the end, and everything when the halt came too late', async () => {
    const halt = new AbortController();
    const begun: number[] = [];
    const early = inParallel(
      [0, 1, 2, 3],
      1,
      async (item) => {
        begun.push(item);
        if (item === 1) halt.abort();
      },
      halt.signal,
    );
    expect(await early).toBeUndefined();
    expect(begun).toEqual([0, 1]);
    const late = new AbortController();
    const halting = async (item: number): Promise<number> => {
      late.abort();
      return item;
    };
    expect(await inParallel([7], 1, halting, late.signal)).toEqual([7]);
    expect(await inParallel([], 3, () => Promise.reject(new Error('never')))).toEqual([]);
  });
});
