import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  meanInterval,
  meanOf,
  passAtK,
  passHatK,
  shareDifferenceInterval,
  sharesInterval,
  signFlipChance,
  studentQuantile,
  wilson,
} from './statistics.ts';

const close = (found: readonly number[] | null, expected: readonly number[], digits = 4): void => {
  expect(found).not.toBeNull();
  expected.forEach((value, i) => {
    expect(found?.[i]).toBeCloseTo(value, digits);
  });
};

describe('the interval of a share', () => {
  it('is Wilson’s where each task was tried once', () => {
    close(wilson(0.8, 10), [0.4902, 0.9433]);
    close(sharesInterval([1, 1, 1, 1, 1, 1, 1, 1, 0, 0], 1), [0.4902, 0.9433]);
    close(wilson(1, 10), [0.7225, 1]);
    close(wilson(0, 10), [0, 0.2775]);
  });

  // R. G. Newcombe, Two-sided confidence intervals for the single proportion, 1998, table I, method 3.
  it.each([
    [81, 263, 0.2553, 0.3662],
    [15, 148, 0.0624, 0.1605],
    [0, 20, 0, 0.1611],
    [1, 29, 0.0061, 0.1718],
  ])('is, for %i of %i, as published', (solved, n, low, high) => {
    close(wilson(solved / n, n), [low, high]);
  });

  it('is everything where nothing was seen, and never certain after a few', () => {
    expect(sharesInterval([], 4)).toEqual([0, 1]);
    expect(wilson(0, 0)).toEqual([0, 1]);
    close(sharesInterval([1], 8), [0.2065, 1]);
    close(sharesInterval([1, 1, 1], 100), wilson(1, 3), 12);
  });

  it('counts tasks, not tries: tries that all end alike within each task add nothing', () => {
    expect(sharesInterval([1, 0, 1, 0], 16)).toEqual(sharesInterval([1, 0, 1, 0], 1));
  });

  it('counts tries where many tasks are alike, less so where few are', () => {
    close(sharesInterval(Array<number>(50).fill(0.5), 4), wilson(0.5, 200 * (1.959964 / 2.009575) ** 2), 6);
    close(sharesInterval([0.5, 0.5, 0.5], 4), wilson(0.5, 3), 12);
  });

  it('lies between that of tasks and that of tries where tasks differ somewhat', () => {
    // Spread between tasks 0.0625, of a single try 0.25: worth 4 tries a task.
    const shares = Array.from({ length: 40 }, (_, i) => (i % 2 === 0 ? 0.25 : 0.75));
    close(sharesInterval(shares, 8), wilson(0.5, 160 * (1.959964 / 2.022691) ** 2), 6);
  });

  it('always holds the share, within 0 and 1', () => {
    const solved = fc.array(fc.nat(6), { minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(solved, (counts) => {
        const shares = counts.map((count) => count / 6);
        const [low, high] = sharesInterval(shares, 6);
        expect(low).toBeGreaterThanOrEqual(0);
        expect(high).toBeLessThanOrEqual(1);
        expect(low).toBeLessThanOrEqual(meanOf(shares) + 1e-12);
        expect(high).toBeGreaterThanOrEqual(meanOf(shares) - 1e-12);
        expect(high - low).toBeGreaterThan(0);
      }),
    );
  });
});

describe('the interval of a mean', () => {
  it('is Student’s', () => {
    close(meanInterval([1, 2, 3, 4, 5]), [1.0368, 4.9632]);
    close(meanInterval([0, 1]), [0.5 - 6.3531, 0.5 + 6.3531]);
  });

  it.each([
    [1, 12.7062],
    [10, 2.2281],
    [199, 1.972],
    [200, 1.9719],
    [201, 1.9718],
    [1000, 1.9623],
  ])('reaches, with %i degrees of freedom, %f standard errors', (freedom, expected) => {
    expect(studentQuantile(freedom)).toBeCloseTo(expected, 3);
  });

  it('and the mean itself stay finite for the largest numbers', () => {
    expect(meanOf([1e308, 1e308, 1e308])).toBeCloseTo(1e308, -300);
    expect(meanOf([-1.7e308, -1.7e308])).toBe(-1.7e308);
    expect(meanInterval([1e308, 1e308, 1e307])).toBeNull();
  });

  it('is none without spread', () => {
    expect(meanInterval([])).toBeNull();
    expect(meanInterval([3])).toBeNull();
    expect(meanInterval([0.1, 0.1, 0.1])).toBeNull();
    expect(meanInterval([1e308, -1e308])).toBeNull();
  });
});

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
    close(shareDifferenceInterval([1, 1, 1, 1, -1, 0, 0, 0, 0, 0]), [0.25 - half, 0.25 + half], 5);
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
});
