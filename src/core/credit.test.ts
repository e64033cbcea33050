import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Credit, credited } from './reward.ts';
import type { ForkCause, Turn } from './types.ts';

const turn = (index: number, after?: number, fork?: { cause: ForkCause; from: number }): Turn =>
  ({ index, ...(after === undefined ? {} : { after }), ...(fork && { fork }), sampledIds: Int32Array.of(1) }) as unknown as Turn;
const by = (turnDiscount: number, per: Credit['per'] = 'turn'): Credit => ({ turnDiscount, per });

describe('credit', () => {
  it('is given once', () => {
    const once = credited({ value: 1, byTurn: { 0: 1 } }, [turn(0)], by(0.9));
    expect(() => credited(once, [turn(0)], by(0.9))).toThrowError(/discounted before/);
  });

  it('leaves one value for all turns as it is where nothing is discounted', () => {
    expect(credited({ value: 3 }, [turn(0), turn(1, 0)], by(1))).toEqual({ value: 3 });
  });

  it('of interleaved conversations never crosses from one to the other', () => {
    // Turns of two conversations by turns: 0, 2, 4 and 1, 3, 5.
    const both = [turn(0), turn(1), turn(2, 0), turn(3, 1), turn(4, 2), turn(5, 3)];
    expect(credited({ value: 4, byTurn: { 4: 4 } }, both, by(0.5)).byTurn).toEqual({ 0: 1, 1: 0, 2: 2, 3: 0, 4: 4, 5: 0 });
    expect(credited({ value: 4 }, both, by(0.5)).byTurn).toEqual({ 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4 });
  });

  it.each<[ForkCause, number]>([
    ['dropped_reasoning', 2],
    ['compaction', 2],
    ['template_rewrites_history', 2],
    ['side_call', 0],
    ['asked_again', 0],
    ['rewound', 0],
  ])('after a fork by %s is %d for the turn before', (cause, earned) => {
    const forked = [turn(0), turn(1, undefined, { cause, from: 0 })];
    expect(credited({ value: 4, byTurn: { 1: 4 } }, forked, by(0.5)).byTurn).toEqual({ 0: earned, 1: 4 });
  });

  it('per row is what the row’s last turn earned; a side branch is a row of its own', () => {
    const tree = [turn(0), turn(1, 0), turn(2, 1), turn(3, 0)];
    expect(credited({ value: 9, byTurn: { 0: 1, 2: 5, 3: 3 } }, tree, by(1, 'row')).byTurn).toEqual({ 0: 5, 1: 5, 2: 5, 3: 3 });
  });

  it('is not given to turns of other models', () => {
    const other = { ...turn(1), model: 'helper' };
    expect(credited({ value: 2 }, [turn(0), other], by(0.5)).byTurn).toEqual({ 0: 2 });
  });

  it('of a line is the discounted sum of what follows, whatever was earned', () => {
    const rewards = fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 1, maxLength: 12 });
    fc.assert(
      fc.property(rewards, fc.constantFrom(0, 0.5, 1), (given, discount) => {
        const line = given.map((_, i) => turn(i, i === 0 ? undefined : i - 1));
        const { byTurn } = credited({ value: 0, byTurn: Object.fromEntries(given.entries()) }, line, by(discount));
        given.forEach((_, i) => {
          const expected = given.slice(i).reduce((sum, reward, k) => sum + reward * discount ** k, 0);
          expect(byTurn?.[i]).toBeCloseTo(expected, 9);
        });
      }),
    );
  });
});
