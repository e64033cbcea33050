import { describe, expect, it } from 'vitest';
import type { Sample } from '../core/types.ts';
import { type Agreement, AgreementBound, agreementOf } from './agreement.ts';

/** Of tokens that all differ by about as much. */
const of = (meanDifference: number, bias = 0, tokens = 1000): Agreement => ({
  ...{ tokens, meanDifference, bias, meanSquare: meanDifference ** 2 },
  largestDifference: 2 * meanDifference,
});

/** A run that was taken up again after a first step with this much noise. */
const resumedAfter = (meanDifference: number, comparedTokens = 1000): AgreementBound =>
  new AgreementBound([{ metrics: { meanDifference, comparedTokens, meanSquareDifference: meanDifference ** 2 } }]);

describe('how far engine and trainer are apart', () => {
  it('is counted over the tokens that the version in training sampled, and no others', () => {
    const sample: Sample = {
      tokens: Int32Array.of(1, 2, 3, 4),
      mask: Uint8Array.of(0, 1, 1, 1),
      logprobs: Float32Array.of(0, -1, -2, -3),
      advantages: new Float32Array(4),
      versions: Int32Array.of(0, 3, 4, 4),
      ...{ temperature: 1, weight: 1, rolloutId: 'r', groupId: 'g' },
    };
    const own = Float32Array.of(-9, -2.5, -2.75);
    expect(agreementOf([sample], [own], 4)).toEqual({
      ...{ tokens: 2, meanDifference: 0.375, largestDifference: 0.5, bias: 0.125, meanSquare: 0.15625 },
    });
    expect(agreementOf([sample], [own], 5)).toBeUndefined();
  });

  it('is bounded by the noise of the first step', () => {
    const bound = new AgreementBound();
    const exceeded = [0.01, 0.03, 0.05, 0.01].map((noise) => bound.exceededBy(of(noise)));
    expect(exceeded).toEqual([undefined, undefined, 'at most 0.040', undefined]);
  });

  it('is bounded on the first step too, where an engine that lies from the start would set the measure itself', () => {
    expect(new AgreementBound().exceededBy(of(0.2))).toBe('at most 0.10');
    expect(new AgreementBound().exceededBy(of(0.05, -0.04))).toMatch(/rounding/);
    expect(new AgreementBound().exceededBy(of(0.05, -0.01))).toBeUndefined();
  });

  it('of an exact policy is nothing, but for what does no harm; a run that is taken up again knows its noise', () => {
    const exceeded = [0, 0.004, 0.006].map((noise) => resumedAfter(0).exceededBy(of(noise)));
    expect(exceeded).toEqual([undefined, undefined, 'at most 0.0050']);
    expect(resumedAfter(0.02).exceededBy(of(0.07))).toBeUndefined();
  });

  it('is not beyond the bound for a few tokens of a sharp policy that differ a lot', () => {
    const spike = { tokens: 200, meanDifference: 0.015, largestDifference: 3, bias: 0.015, meanSquare: 0.045 };
    expect(resumedAfter(0.002).exceededBy(spike)).toBeUndefined();
  });

  it('of too few tokens to be judged, or beyond all rounding, is no measure for a run that is taken up again', () => {
    expect(resumedAfter(0.6, 8).exceededBy(of(0.5, 0, 100))).toBe('at most 0.10');
    expect(resumedAfter(0.6).exceededBy(of(0.5))).toBe('at most 0.10');
  });

  it('of a few tokens is judged together with that of the next', () => {
    const bound = new AgreementBound();
    expect([of(3, 0, 20), of(2.5, 0, 20)].map((one) => bound.exceededBy(one))).toEqual([undefined, 'at most 0.10']);
  });
});
