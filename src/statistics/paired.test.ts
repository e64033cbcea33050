import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { shareDifferenceInterval, signFlipChance } from './paired.ts';

/** All combinations of signs, one by one. */
function byFlipping(differences: readonly number[]): number {
  const seen = Math.abs(differences.reduce((sum, d) => sum + d, 0));
  let extreme = 0;
  for (let signs = 0; signs < 1 << differences.length; signs++) {
    const sum = differences.reduce((total, d, i) => total + (signs & (1 << i) ? d : -d), 0);
    if (Math.abs(sum) >= seen) extreme++;
  }
  return extreme / (1 << differences.length);
}

describe('the sign-flip test', () => {
  it('is the share of all sign combinations that are as extreme', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -12, max: 12 }), { maxLength: 11 }), (differences) => {
        expect(signFlipChance(differences)).toBeCloseTo(byFlipping(differences), 12);
      }),
    );
  });

  it('is McNemar’s exact test for tasks that were solved or not', () => {
    // 8 tasks better, 2 worse: twice the chance of at most 2 heads in 10.
    const differences = [...Array<number>(8).fill(1), -1, -1, 0, 0, 0];
    expect(signFlipChance(differences)).toBeCloseTo((2 * (1 + 10 + 45)) / 1024, 12);
  });

  it('finds no difference in equal measurements, or in none', () => {
    expect(signFlipChance([0, 0, 0])).toBe(1);
    expect(signFlipChance([])).toBe(1);
  });

  it('is the normal distribution’s where there are too many to count', () => {
    // 1.95 standard deviations from 0: a little more than 5 % are further.
    const many = Array.from({ length: 5000 }, (_, i) => (i < 2569 ? 1 : -1));
    expect(138 / Math.sqrt(5000)).toBeCloseTo(1.9516, 4);
    expect(signFlipChance(many)).toBeCloseTo(0.05098, 4);
    expect(signFlipChance(Array<number>(5000).fill(1))).toBeLessThan(1e-12);
  });
});

describe('the interval of a difference of shares', () => {
  it('is as if two more tasks had been seen', () => {
    // 10 tasks: 4 better, 1 worse. Mean 3/12, mean square 6/12.
    const half = 1.959964 * Math.sqrt((6 / 12 - (3 / 12) ** 2) / 12);
    const [low, high] = shareDifferenceInterval([1, 1, 1, 1, -1, 0, 0, 0, 0, 0]);
    expect(low).toBeCloseTo(0.25 - half, 5);
    expect(high).toBeCloseTo(0.25 + half, 5);
  });

  it('is wide where few tasks were equal, and holds within −1 and 1', () => {
    expect(shareDifferenceInterval([])).toEqual([-1, 1]);
    const [low, high] = shareDifferenceInterval([0, 0, 0]);
    expect(low).toBeCloseTo(-high, 12);
    expect(high).toBeGreaterThan(0.3);
    expect(shareDifferenceInterval(Array<number>(20).fill(1))[1]).toBe(1);
  });

  it('holds the mean difference', () => {
    const share = fc.integer({ min: -4, max: 4 }).map((d) => d / 4);
    fc.assert(
      fc.property(fc.array(share, { minLength: 1, maxLength: 30 }), (differences) => {
        const [low, high] = shareDifferenceInterval(differences);
        const mean = differences.reduce((sum, d) => sum + d, 0) / differences.length;
        expect(low).toBeLessThanOrEqual(mean + 1e-9);
        expect(high).toBeGreaterThanOrEqual(mean - 1e-9);
      }),
    );
  });
});
