import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { settledReward, toReward } from './reward.ts';

const bad = (result: unknown) =>
  expect.objectContaining({ code: 'GRADER_BAD_REWARD', message: expect.stringContaining(String(result)) });

function refusal(result: unknown): unknown {
  try {
    return { accepted: toReward(result) };
  } catch (error) {
    return error;
  }
}

describe('a reward', () => {
  it('is any number up to 1e30 from 0, as it is', () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, min: -1e30, max: 1e30 }), (value) => {
        expect(toReward(value)).toEqual({ value });
        expect(toReward({ value, parts: { a: value } })).toEqual({ value, parts: { a: value } });
      }),
    );
  });

  it('is a plain copy', () => {
    const result = { value: 1, parts: { style: 0.5 } };
    const reward = toReward(result);
    expect(reward).toEqual({ value: 1, parts: { style: 0.5 } });
    expect(reward.parts).not.toBe(result.parts);
    expect(toReward({ value: 1, parts: undefined })).toEqual({ value: 1 });
  });

  it('has nothing that a reward has not: a misspelt name would be dropped', () => {
    const list = 'value, success, parts, metrics, byTurn, byThread, byRole, untrained';
    for (const [result, says] of [
      [{ value: 1, sucess: false }, `a reward has no 'sucess'; did you mean success?`],
      [{ value: 1, part: { style: 1 } }, `a reward has no 'part'; did you mean parts?`],
      [{ value: 1, Success: false }, `a reward has no 'Success'; did you mean success?`],
      [{ value: 1, byTrun: { 0: 1 } }, `a reward has no 'byTrun'; did you mean byTurn?`],
      [{ value: 1, reason: 'good' }, `a reward has no 'reason'; it may have ${list}`],
    ] as const) {
      expect(refusal(result)).toEqual(bad(says));
    }
    // Of the workflow's own reward, as a grader is given it.
    const stored = { value: 1, byTurn: { 0: 1 }, source: 'workflow', credit: { turnDiscount: 0.9, per: 'turn' } };
    expect(toReward(stored)).toEqual({ value: 1, byTurn: { 0: 1 } });
  });

  it('may be an instance of a class whose prototype has the fields', () => {
    class Graded {
      get value() {
        return 0.5;
      }
      get parts() {
        return { format: 1 };
      }
    }
    expect(toReward(new Graded())).toEqual({ value: 0.5, parts: { format: 1 } });
  });

  it('says what was most likely forgotten', () => {
    expect(refusal(true)).toEqual(bad('; write Number(…) around it'));
    expect(refusal({ value: false })).toEqual(bad('; write Number(…) around it'));
    expect(refusal({ value: 1, parts: { a: true } })).toEqual(bad('; write Number(…) around it'));
    expect(refusal(undefined)).toEqual(bad('; is a `return` missing?'));
  });

  it('may name threads that are not trained, which the rollout must have', () => {
    const reward = toReward({ value: 1, untrained: ['main', 'main'] });
    expect(reward).toEqual({ value: 1, untrained: ['main'] });
    const identity = { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' } as const;
    const turns = [{ index: 0, thread: 'main', role: 'policy' }] as unknown as Parameters<typeof settledReward>[2];
    expect(settledReward(reward, identity, turns)).toEqual(reward);
    expect(() => settledReward({ value: 1, untrained: ['other'] }, identity, turns)).toThrowError(/"other".*it has main/);
  });

  it('is never made of anything but numbers', () => {
    const anythingElse = fc.anything().filter((value) => typeof value !== 'number');
    fc.assert(
      fc.property(anythingElse, (value) => {
        expect(refusal({ value })).toMatchObject({ code: 'GRADER_BAD_REWARD' });
        expect(refusal({ value: 1, parts: { a: value } })).toMatchObject({ code: 'GRADER_BAD_REWARD' });
      }),
    );
  });

  for (const [result, shown] of [
    [Number.NaN, 'NaN'],
    [-1e31, 'from -1e30 to 1e30'],
    [{ value: 0, byRole: { a: 1e300 } }, 'from -1e30 to 1e30'],
    [Number.NEGATIVE_INFINITY, '-Infinity'],
    ['1', "'1'"],
    [1n, '1n'],
    [[1], '[ 1 ]'],
    [{}, '{}'],
    [{ score: 1 }, '{ score: 1 }'],
    [{ value: '1' }, "'1'"],
    [{ value: 1, parts: [1] }, '[ 1 ]'],
    [{ value: 1, untrained: ['main', 3] }, "[ 'main', 3 ]"],
    [{ value: 1, parts: new Map([['a', 1]]) }, 'Map'],
    [{ value: 1, parts: { a: Number.NaN } }, 'NaN'],
    [{ value: 1, parts: JSON.parse('{"__proto__":1}') }, '__proto__'],
    [{ value: 1, parts: Object.fromEntries(Array.from({ length: 10_000 }, (_, n) => [`p${n}`, n])) }, '10000 parts'],
    [{ value: 1, metrics: { ['x'.repeat(1_000_000)]: 1 } }, 'a name of 1000000 characters'],
    [{ value: 1, untrained: ['x'.repeat(1_001)] }, 'a name of 1001 characters'],
  ] as const) {
    it(`is not ${shown}, and the error says so`, () => {
      expect(refusal(result)).toEqual(bad(shown));
    });
  }

  it('is described within bounds when it is huge', () => {
    for (const result of [{ value: 'x'.repeat(1_000_000) }, { value: 1, parts: { ['x'.repeat(1_000_000)]: 1 } }]) {
      expect((refusal(result) as Error).message.length).toBeLessThan(400);
    }
  });
});
