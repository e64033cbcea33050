import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { breath } from './breath.ts';

function keepLoopBusy(milliseconds: number): void {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

describe('a breath', () => {
  it('is not taken while the loop is not busy', async () => {
    await nextTurn();
    expect(breath()).toBeUndefined();
    await nextTurn();
    expect(breath()).toBeUndefined();
  });

  it('is waited for in order, a few at a time, and others get their turn in between', async () => {
    await nextTurn();
    expect(breath()).toBeUndefined();
    keepLoopBusy(20);
    const went: number[] = [];
    const crowd = Array.from({ length: 100 }, async (_, place) => {
      await breath();
      went.push(place);
    });
    const wentPerTurn: number[] = [];
    while (went.length < crowd.length) {
      await nextTurn();
      wentPerTurn.push(went.length);
    }
    await Promise.all(crowd);
    expect(went).toEqual(went.toSorted((a, b) => a - b));
    expect(wentPerTurn.length).toBeGreaterThan(2);
    await nextTurn();
    await nextTurn();
    expect(breath()).toBeUndefined();
  });

  it('lets nobody overtake those who wait', async () => {
    await nextTurn();
    breath();
    keepLoopBusy(20);
    const went: string[] = [];
    const early = Array.from({ length: 40 }, () => breath()!.then(() => went.push('early')));
    await nextTurn();
    const late = breath()?.then(() => went.push('late'));
    await Promise.all([...early, late]);
    expect(went.at(-1)).toBe('late');
  });
});
