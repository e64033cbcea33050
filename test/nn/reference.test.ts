import { describe, expect, it } from 'vitest';
import { planLayout } from '../../src/nn/config.ts';
import { randomTokens, relativeError, SHAPES, strongWeights } from '../fixtures/nn/models.ts';
import { ReferenceModel } from '../fixtures/nn/reference.ts';

describe('the float64 reference', () => {
  it.each(Object.entries(SHAPES))('has the gradient that central differences give (%s)', (_, config) => {
    const weights = Float64Array.from(strongWeights(config, 5));
    const model = new ReferenceModel(config, weights);
    const tokens = randomTokens(config, 7, 11);
    const slopes = Float64Array.from(tokens, (_token, i) => (i === 3 ? 0 : Math.sin(i + 1)));
    const temperature = 0.8;
    const gradient = new Float64Array(weights.length);
    model.backward(tokens, temperature, slopes, gradient);

    const loss = () => model.logprobs(tokens, temperature).reduce((sum, lp, i) => sum + lp * slopes[i]!, 0);
    for (const { name, offset, length } of planLayout(config).tensors) {
      const places = Array.from({ length: 6 }, (_unused, k) => offset + Math.floor((k * length) / 6));
      const expected = places.map((place) => {
        const kept = weights[place]!;
        weights[place] = kept + 1e-5;
        const above = loss();
        weights[place] = kept - 1e-5;
        const below = loss();
        weights[place] = kept;
        return (above - below) / 2e-5;
      });
      const found = places.map((place) => gradient[place]!);
      expect(Math.max(...expected.map(Math.abs)) === 0 || relativeError(found, expected) < 1e-6, name).toBe(true);
    }
  });

  it('gives probabilities that sum to one over the vocabulary', () => {
    const config = SHAPES['untied, odd sizes, grouped by 1']!;
    const model = new ReferenceModel(config, Float64Array.from(strongWeights(config, 6)));
    const prompt = randomTokens(config, 5, 12);
    let sum = 0;
    for (let token = 0; token < config.vocabSize; token++) {
      sum += Math.exp(model.logprobs(Int32Array.of(...prompt, token), 0.7).at(-1)!);
    }
    expect(sum).toBeCloseTo(1, 12);
  });
});
