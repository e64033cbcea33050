import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Slots } from './slots.ts';

describe('slots', () => {
  it('are never more at once than there are, and all come back', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 0, max: 20 }), async (count, takers) => {
        const slots = new Slots(count);
        let held = 0;
        let most = 0;
        const order: number[] = [];
        const one = async (n: number): Promise<void> => {
          await using _slot = await slots.take();
          order.push(n);
          most = Math.max(most, ++held);
          await Promise.resolve();
          held--;
        };
        await Promise.all(Array.from({ length: takers }, (_, n) => one(n)));
        expect(held).toBe(0);
        expect(most).toBeLessThanOrEqual(count);
        expect(order).toEqual(order.toSorted((a, b) => a - b));
      }),
    );
  });

  it('are left to the next when whoever waits gives up', async () => {
    const slots = new Slots(1);
    const first = await slots.take();
    const leaving = new AbortController();
    const second = slots.take(leaving.signal);
    const third = slots.take();
    leaving.abort(new Error('gone'));
    await expect(second).rejects.toThrow('gone');
    await first[Symbol.asyncDispose]();
    await (await third)[Symbol.asyncDispose]();
    expect(slots.waiting).toBe(0);
    await using _again = await slots.take();
  });

  it('given back twice count once', async () => {
    const slots = new Slots(1);
    const slot = await slots.take();
    await slot[Symbol.asyncDispose]();
    await slot[Symbol.asyncDispose]();
    await using _first = await slots.take();
    const second = slots.take();
    expect(slots.waiting).toBe(1);
    expect(await Promise.race([second, Promise.resolve('waits')])).toBe('waits');
  });
});
