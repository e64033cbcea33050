import { describe, expect, it } from 'vitest';
import { type Placement, type Slot, SlotTable } from './slots.ts';

const count = (n: number, from = 0) => Array.from({ length: n }, (_, i) => from + i);
const tableOf = (slots: number, pages = 4 * slots, page = 16) => new SlotTable({ slots, pages, page });

function take(table: SlotTable, prompt: number[], limit = prompt.length + 1): Placement & { kind: 'take' } {
  const placement = table.place(prompt, limit);
  if (placement.kind !== 'take') throw new Error(`expected a slot, found ${placement.kind}`);
  return placement;
}

/** As if the whole sequence had been computed, and its request had ended. */
function finish(table: SlotTable, slot: Slot): void {
  slot.cached = slot.tokens.length;
  table.release(slot);
}

describe('slots', () => {
  it('are full when all are busy', () => {
    const table = tableOf(2);
    take(table, [1]);
    const { slot } = take(table, [2]);
    expect(table.place([3], 4)).toEqual({ kind: 'full' });
    table.release(slot);
    expect(table.place([3], 4).kind).toBe('take');
  });

  it('continue a conversation in place, with more pages where it needs them', () => {
    const table = tableOf(3);
    const { slot } = take(table, count(10));
    finish(table, slot);
    const [page] = slot.pages;
    const next = take(table, count(15), 40);
    expect(next).toEqual({ kind: 'take', slot, copy: undefined });
    expect(slot.cached).toBe(10);
    expect(slot.pages).toHaveLength(3);
    expect(slot.pages[0]).toBe(page);
  });

  it('always leave the last prompt token to be computed', () => {
    const table = tableOf(2);
    finish(table, take(table, count(10)).slot);
    expect(take(table, count(10)).slot.cached).toBe(9);
  });

  it('share the whole pages of a common beginning, copy the begun one, and keep the other conversation', () => {
    const table = tableOf(3);
    const { slot } = take(table, count(45));
    finish(table, slot);
    const before = [...slot.pages];
    const { slot: other, copy } = take(table, [...count(40), 99, 98], 60);
    expect(other).not.toBe(slot);
    expect(other.cached).toBe(40);
    expect(other.pages.slice(0, 2)).toEqual(before.slice(0, 2));
    expect(copy).toEqual({ from: before[2], to: other.pages[2], count: 8 });
    expect(slot.pages).toEqual(before);
    expect(new Set([...before, ...other.pages]).size).toBe(3 + 2);
  });

  it('take the pages of conversations that ended, the oldest first, and wait where there are none', () => {
    const table = tableOf(4, 4);
    const [first, second] = [take(table, [1, 2], 16).slot, take(table, [3, 4], 16).slot];
    finish(table, first);
    finish(table, second);
    const large = take(table, count(20, 100), 48);
    expect(first.pages).toEqual([]);
    expect(second.pages).toHaveLength(1);
    expect(table.place(count(20, 200), 32)).toEqual({ kind: 'full' });
    expect(second.pages).toHaveLength(1);
    finish(table, large.slot);
    expect(take(table, count(20, 200), 32).slot.pages).toHaveLength(2);
  });

  it('give every page back in the end, whatever was shared', () => {
    const table = tableOf(6, 12);
    for (let round = 0; round < 50; round++) {
      const taken = [1, 2, 3].map((n) => table.place([...count(10 + ((round * 7) % 25)), round, ...count(n, n)], 60));
      // Other weights may be served while requests run.
      if (round % 3 === 0) table.forget();
      for (const placement of taken) if (placement.kind === 'take') finish(table, placement.slot);
    }
    table.forget();
    expect(take(table, count(100), 12 * 16).slot.pages.toSorted((a, b) => a - b)).toEqual(count(12));
  });

  it('wait for a prompt that is just being computed, if it is long enough', () => {
    const table = tableOf(3);
    const { slot } = take(table, count(40));
    expect(table.place([...count(39), 7], 41).kind).toBe('wait');
    expect(table.place([...count(5), 7], 7).kind).toBe('take');
    slot.cached = 40;
    expect(take(table, [...count(39), 7]).slot.cached).toBe(39);
  });

  it('give up the one that was used longest ago', () => {
    const table = tableOf(2);
    const first = take(table, [1, 2, 3]).slot;
    const second = take(table, [4, 5, 6]).slot;
    finish(table, second);
    finish(table, first);
    expect(take(table, [7, 8]).slot).toBe(second);
  });

  it('forget everything when the weights change', () => {
    const table = tableOf(2);
    finish(table, take(table, count(30)).slot);
    table.forget();
    expect(take(table, count(30)).slot.cached).toBe(0);
  });
});
