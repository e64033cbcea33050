import { describe, expect, it } from 'vitest';
import { WorkerPlacement } from './worker-pool.ts';

describe('placement', () => {
  it('sends requests to the least loaded worker', () => {
    const placement = new WorkerPlacement(3);
    expect([placement.enter(undefined), placement.enter(undefined), placement.enter(undefined)]).toEqual([0, 1, 2]);
    placement.leave(1);
    expect(placement.enter(undefined)).toBe(1);
  });

  it('keeps an affinity on its worker, between requests too, until the caches are dropped', () => {
    const placement = new WorkerPlacement(2);
    expect(placement.enter('a')).toBe(0);
    placement.leave(0);
    expect(placement.enter('b')).toBe(0);
    expect(placement.enter('a')).toBe(0);
    placement.forget();
    expect(placement.enter('a')).toBe(1);
  });

  it('remembers a bounded number of affinities, those used last', () => {
    const placement = new WorkerPlacement(2);
    const first = placement.enter('first');
    for (let i = 0; i < 5000; i++) {
      placement.leave(placement.enter(`${i}`));
      if (i % 1000 === 0) placement.leave(placement.enter('first'));
    }
    expect(placement.enter('first')).toBe(first);
    // Worker 0 is busy with 'first', so whoever was forgotten goes to worker 1.
    expect(placement.enter('0')).toBe(1);
  });
});
