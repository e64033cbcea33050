import { describe, expect, it } from 'vitest';
import { capacityOf } from './staleness.ts';

describe('capacityOf', () => {
  it('is what the staleness bound leaves, but never more than may run at once', () => {
    const some = { staleness: 2, version: 1, batchSize: 16, accepted: 14 };
    expect(capacityOf({ ...some, running: 0, concurrency: 1000 })).toBe((2 + 1 + 1) * 16 - 14);
    expect(capacityOf({ ...some, running: 0, concurrency: 32 })).toBe(32);
    expect(capacityOf({ ...some, running: 10, concurrency: 32 })).toBe(22);
  });

  it('is at most one batch without staleness, and negative when too many were started', () => {
    const sync = { staleness: 0, version: 3, batchSize: 4, concurrency: 100 };
    expect(capacityOf({ ...sync, accepted: 12, running: 0 })).toBe(4);
    expect(capacityOf({ ...sync, accepted: 12, running: 4 })).toBe(0);
    expect(capacityOf({ ...sync, accepted: 12, running: 7 })).toBe(-3);
  });

  it('treats a batch size or concurrency of 0 as 1', () => {
    expect(capacityOf({ staleness: 0, version: 0, batchSize: 0, accepted: 0, running: 0, concurrency: 0 })).toBe(1);
  });
});
