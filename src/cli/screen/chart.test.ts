import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cellsOf } from '../output/text.ts';
import { bar, blocks, curve, type Point, scaleOf, shares, withPoint } from './chart.ts';

const UNIT = { low: 0, high: 1 };
const pointsOf = (...values: readonly number[]): readonly Point[] => values.map((value, i) => ({ step: i + 1, value }));
const anyPoints = fc
  .array(fc.record({ step: fc.nat(2000), value: fc.double({ noNaN: true, noDefaultInfinity: true }) }), { maxLength: 60 })
  .map((points) => points.toSorted((a, b) => a.step - b.step));

describe('a row of blocks', () => {
  it('rises with the values and ends where they end', () => {
    expect(blocks(pointsOf(0, 0.5, 1), { from: 0, span: 6 }, UNIT, 6, 'join')).toBe('▁▅█   ');
  });

  it('joins points that are apart, or holds each until the next', () => {
    const points = [
      { step: 1, value: 0 },
      { step: 5, value: 1 },
    ];
    expect(blocks(points, { from: 0, span: 5 }, UNIT, 5, 'join')).toBe('▁▃▅▆█');
    expect(blocks(points, { from: 0, span: 5 }, UNIT, 5, 'hold')).toBe('▁▁▁▁█');
  });

  it('shows the mean where many steps share a column, or the last value where each is held', () => {
    const points = pointsOf(...Array.from({ length: 100 }, (_, i) => (i < 50 ? i % 2 : 1)));
    expect(blocks(points, { from: 0, span: 100 }, UNIT, 2, 'join')).toBe('▅█');
    expect(blocks(points, { from: 0, span: 100 }, UNIT, 2, 'hold')).toBe('██');
  });

  it('begins after the steps that an earlier process took', () => {
    expect(blocks([{ step: 21, value: 1 }], { from: 20, span: 4 }, UNIT, 4, 'join')).toBe('█   ');
  });
});

describe('a braille curve', () => {
  it('goes from the lowest dot to the highest without a hole', () => {
    expect(curve(pointsOf(0, 1), { from: 0, span: 2 }, UNIT, 1, 2)).toEqual(['⢸', '⡸']);
    expect(curve(pointsOf(1, 0), { from: 0, span: 2 }, UNIT, 1, 2)).toEqual(['⢱', '⢸']);
  });
});

describe('every picture', () => {
  it('is exactly as wide as asked, whatever the values', () => {
    const [widths, heights] = [fc.integer({ min: 1, max: 90 }), fc.integer({ min: 1, max: 5 })];
    const fits = fc.property(anyPoints, fc.nat(2000), widths, heights, (points, span, width, height) => {
      const [axis, scale] = [{ from: 0, span }, scaleOf(points)];
      expect(cellsOf(blocks(points, axis, scale, width, 'hold'))).toBe(width);
      const rows = curve(points, axis, scale, width, height);
      expect(rows.map(cellsOf)).toEqual(Array.from({ length: height }, () => width));
    });
    fc.assert(fits);
  });

  it('of shares fills the width', () => {
    expect(shares([8, 1, 1], 10)).toEqual([8, 1, 1]);
    expect(shares([1, 1, 1], 10)).toEqual([3, 4, 3]);
    expect(shares([0, 0, 0], 10)).toEqual([0, 0, 0]);
  });
});

describe('a bar', () => {
  it('is as full as the share, and never more than full or less than empty', () => {
    const filled = [0, 0.5, 1, 7, -1, Number.NaN].map((share) => bar(share, 10).filled.length);
    expect(filled).toEqual([0, 5, 10, 10, 0, 0]);
    expect(bar(0.5, 4)).toEqual({ filled: '━━', rest: '──' });
  });
});

describe('the scale', () => {
  it('is 0 to 1 for rewards within, and fits all others', () => {
    expect(scaleOf(pointsOf(0.2, 0.4))).toEqual(UNIT);
    expect(scaleOf(pointsOf(-2, 0.5))).toEqual({ low: -2, high: 0.5 });
    expect(scaleOf(pointsOf(3, 12))).toEqual({ low: 0, high: 12 });
    expect(scaleOf(pointsOf(-2, -2))).toEqual({ low: -2, high: -1 });
  });
});

describe('the points of a long run', () => {
  it('stay few, keep the last step, and keep the mean', () => {
    let points: readonly Point[] = [];
    for (let step = 1; step <= 5000; step++) points = withPoint(points, { step, value: step % 2 });
    expect(points.length).toBeLessThanOrEqual(1024);
    expect(points.at(-1)?.step).toBe(5000);
    expect(points[0]?.value).toBe(0.5);
  });

  it('leave out what is not a number', () => {
    expect(withPoint([], { step: 1, value: Number.NaN })).toEqual([]);
  });
});
