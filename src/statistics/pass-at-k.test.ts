import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { meanOf } from './intervals.ts';
import { passAtK, passHatK } from './pass-at-k.ts';

/** Every way to draw k of the tries, one by one. */
function byDrawing(n: number, c: number, k: number): { readonly any: number; readonly all: number } {
  let [draws, any, all] = [0, 0, 0];
  for (let set = 0; set < 1 << n; set++) {
    const drawn = Array.from({ length: n }, (_, i) => i).filter((i) => set & (1 << i));
    if (drawn.length !== k) continue;
    draws++;
    if (drawn.some((i) => i < c)) any++;
    if (drawn.every((i) => i < c)) all++;
  }
  return { any: any / draws, all: all / draws };
}

describe('pass@k and pass^k', () => {
  it('are the shares of all draws of k tries in which one, or all, were successful', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 9 }), fc.nat(9), fc.integer({ min: 1, max: 9 }), (n, some, many) => {
        const [c, k] = [Math.min(some, n), Math.min(many, n)];
        const { any, all } = byDrawing(n, c, k);
        expect(passAtK(n, c, k)).toBeCloseTo(any, 12);
        expect(passHatK(n, c, k)).toBeCloseTo(all, 12);
      }),
    );
  });

  it('of more tries than there were are refused, never guessed', () => {
    expect(() => passAtK(2, 0, 4)).toThrow('4 of 2 tries cannot be drawn');
    expect(() => passHatK(2, 2, 3)).toThrow('3 of 2 tries cannot be drawn');
  });

  it('stay within 0 and 1 for very many tries', () => {
    expect(passAtK(100_000, 1, 50_000)).toBeCloseTo(0.5, 9);
    expect(passHatK(100_000, 99_999, 50_000)).toBeCloseTo(0.5, 9);
    expect(passAtK(100_000, 50_000, 100_000)).toBe(1);
    expect(passHatK(100_000, 50_000, 100_000)).toBe(0);
  });

  it('of three tasks solved 4, 0 and 1 times in 4 tries are 5/12 for one try, 2/3 for any of four and 1/3 for all of four', () => {
    const over = (of: (c: number) => number): number => meanOf([4, 0, 1].map(of));
    expect(over((c) => passAtK(4, c, 1))).toBeCloseTo(5 / 12, 12);
    expect(over((c) => passAtK(4, c, 4))).toBeCloseTo(2 / 3, 12);
    expect(over((c) => passHatK(4, c, 4))).toBeCloseTo(1 / 3, 12);
  });
});
