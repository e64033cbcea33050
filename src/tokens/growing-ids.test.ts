import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { grown } from './renderer.ts';

/** Few of them, so that conversations often go on in the same way. */
const ids = fc.array(fc.integer({ min: 0, max: 2 }), { maxLength: 8 }).map((list) => Int32Array.from(list));

describe('ids that grow', () => {
  it('are their parts, and none of those given out ever changes, whichever of them is gone on from', () => {
    fc.assert(
      fc.property(ids, fc.array(fc.tuple(fc.nat(), ids, ids), { maxLength: 30 }), (start, steps) => {
        const made: Int32Array[] = [start];
        const expected = [[...start]];
        for (const [which, a, b] of steps) {
          const from = which % made.length;
          made.push(grown(made[from]!, a, b));
          expected.push([...expected[from]!, ...a, ...b]);
        }
        expect(made.map((one) => [...one])).toEqual(expected);
      }),
      { numRuns: 2000 },
    );
  });

  it('share memory where a conversation simply goes on', () => {
    let prompt = grown(Int32Array.of(1), Int32Array.of(2, 3));
    const buffers = new Set<ArrayBufferLike>();
    for (let turn = 0; turn < 1000; turn++) {
      prompt = grown(prompt, Int32Array.of(turn), Int32Array.of(turn));
      buffers.add(prompt.buffer);
    }
    expect(prompt.length).toBe(2003);
    expect(buffers.size).toBeLessThan(20);
  });

  it('share it too with whoever went on in the same way before, and with nobody else', () => {
    const prompt = grown(Int32Array.of(1, 2, 3, 4, 5, 6), Int32Array.of(7));
    const counted = grown(prompt, Int32Array.of(8), Int32Array.of(9));
    expect(grown(prompt, Int32Array.of(8), Int32Array.of(9)).buffer).toBe(counted.buffer);
    expect(grown(prompt, Int32Array.of(8)).buffer).toBe(counted.buffer);
    expect([...grown(prompt, Int32Array.of(8), Int32Array.of(0))]).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 0]);
    expect([...counted]).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });

  it('are not written into memory of others: of a text that was rendered, of a part of something', () => {
    const whole = Int32Array.of(1, 2, 3, 4);
    grown(whole.subarray(0, 2), Int32Array.of(9));
    grown(whole, Int32Array.of(9));
    const prompt = grown(whole, Int32Array.of(5));
    grown(prompt.subarray(1), Int32Array.of(9, 9));
    expect([...whole, ...prompt]).toEqual([1, 2, 3, 4, 1, 2, 3, 4, 5]);
  });
});
