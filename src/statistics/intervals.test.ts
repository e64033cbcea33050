import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { meanInterval, meanOf, sharesInterval, studentQuantile, wilson } from './intervals.ts';

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
    [2, 4.3027],
    [3, 3.1824],
    [10, 2.2281],
    [30, 2.0423],
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
