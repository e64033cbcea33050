import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { drawTruncated } from './sample-loop.ts';

const logits = Float32Array.of(1, 3, 2, 3, -1);

/** Every token that some uniform number draws, with its log-probability. */
function support(settings: { temperature: number; topK: number; topP: number }): Map<number, number> {
  const draws = Array.from({ length: 1000 }, (_, i) => drawTruncated(logits, settings, i / 1000));
  return new Map(draws.map(({ token, logprob }) => [token, logprob]));
}

describe('a truncated draw', () => {
  it.each([
    ['the likeliest token', { topK: 1, topP: 1 }, [1]],
    ['the k likeliest tokens, lower ids first among equals', { topK: 2, topP: 1 }, [1, 3]],
    ['all k of them', { topK: 3, topP: 1 }, [1, 2, 3]],
    ['the shortest run of tokens whose share reaches top-p', { topK: 0, topP: 0.01 }, [1]],
    ['as many as that takes', { topK: 0, topP: 0.8 }, [1, 2, 3]],
    // Of two equal tokens the first alone has a share of one half.
    ['top-p of what top-k left, renormalised', { topK: 2, topP: 0.5 }, [1]],
    ['both where one is not enough', { topK: 2, topP: 0.51 }, [1, 3]],
  ])('keeps %s', (_, settings, kept) => {
    expect([...support({ temperature: 1, ...settings }).keys()].toSorted()).toEqual(kept);
  });

  it('reports log-probabilities of the distribution drawn from', () => {
    fc.assert(
      fc.property(
        fc.array(fc.float({ min: -20, max: 20, noNaN: true }), { minLength: 1, maxLength: 30 }),
        fc.double({ min: 0.1, max: 3, noNaN: true }),
        fc.nat(30),
        fc.double({ min: 0.01, max: 1, noNaN: true }),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        (values, temperature, topK, topP, uniform) => {
          const row = Float32Array.from(values);
          const { token, logprob } = drawTruncated(row, { temperature, topK, topP }, uniform);
          const likelier = row.filter((z, i) => z > row[token]! || (z === row[token] && i < token)).length;
          expect(topK === 0 || likelier < topK).toBe(true);
          const full = row.reduce((sum, z) => sum + Math.exp((z - row[token]!) / temperature), 0);
          expect(logprob).toBeGreaterThanOrEqual(-Math.log(full) - 1e-9);
          expect(logprob).toBeLessThanOrEqual(0);
        },
      ),
    );
  });

  it('never draws a token without weight, whatever rounding leaves over', () => {
    const spread = Float32Array.from({ length: 40 }, (_, i) => (i < 39 ? Math.fround(Math.sin(i)) : -3e38));
    const { token, logprob } = drawTruncated(spread, { temperature: 1, topK: 40, topP: 1 }, 1);
    expect([token === 39, Number.isFinite(logprob)]).toEqual([false, true]);
  });
});
