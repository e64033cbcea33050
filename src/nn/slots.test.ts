import { describe, expect, it } from 'vitest';
import { type Placement, type Slot, SlotTable } from './slots.ts';

const count = (n: number, from = 0) => Array.from({ length: n }, (_, i) => from + i);

function take(table: SlotTable, prompt: number[]): Placement & { kind: 'take' } {
  const placement = table.place(prompt);
  if (placement.kind !== 'take') throw new Error(`expected a slot, found ${placement.kind}`);
  table.occupy(placement.slot, prompt, placement.reused);
  return placement;
}

/** As if the whole sequence had been computed, and its request had ended. */
function finish(table: SlotTable, slot: Slot): void {
  slot.cached = slot.tokens.length;
  table.release(slot);
}

describe('slots', () => {
  it('are full when all are busy', () => {
    const table = new SlotTable(2);
    take(table, [1]);
    const { slot } = take(table, [2]);
    expect(table.place([3])).toEqual({ kind: 'full' });
    table.release(slot);
    expect(table.place([3]).kind).toBe('take');
  });

  it('continue a conversation in place', () => {
    const table = new SlotTable(3);
    const { slot } = take(table, count(10));
    finish(table, slot);
    expect(take(table, count(15))).toEqual({ kind: 'take', slot, from: undefined, reused: 10 });
  });

  it('always leave the last prompt token to be computed', () => {
    const table = new SlotTable(2);
    finish(table, take(table, count(10)).slot);
    expect(take(table, count(10)).reused).toBe(9);
  });

  it('copy a shared prefix and keep the other conversation', () => {
    const table = new SlotTable(3);
    const { slot } = take(table, count(20));
    finish(table, slot);
    const placement = take(table, [...count(12), 99, 98]);
    expect(placement).toMatchObject({ from: slot, reused: 12 });
    expect(placement.slot).not.toBe(slot);
  });

  it('wait for a prompt that is just being computed, if it is long enough', () => {
    const table = new SlotTable(3);
    const { slot } = take(table, count(40));
    expect(table.place([...count(39), 7]).kind).toBe('wait');
    expect(table.place([...count(5), 7]).kind).toBe('take');
    slot.cached = 40;
    expect(take(table, [...count(39), 7])).toMatchObject({ from: slot, reused: 39 });
  });

  it('give up the one that was used longest ago', () => {
    const table = new SlotTable(2);
    const first = take(table, [1, 2, 3]).slot;
    const second = take(table, [4, 5, 6]).slot;
    finish(table, second);
    finish(table, first);
    expect(take(table, [7, 8]).slot).toBe(second);
  });

  it('forget everything when the weights change', () => {
    const table = new SlotTable(2);
    finish(table, take(table, count(30)).slot);
    table.forget();
    expect(take(table, count(30)).reused).toBe(0);
  });
});
