import { describe, expect, it } from 'vitest';
import { adaptedTensors, LORA, strongAdapter } from '../fixtures/nn/adapters.ts';
import { randomTokens, relativeError, SHAPES, strongWeights } from '../fixtures/nn/models.ts';
import { ReferenceModel, rotaryFrequencies } from '../fixtures/nn/reference.ts';

describe('the float64 reference', () => {
  it.each(Object.entries(SHAPES))('has the gradient that central differences give, an adapter’s included (%s)', (_, config) => {
    const base = Float64Array.from(strongWeights(config, 5));
    const weights = adaptedTensors(config, base, LORA, Float64Array.from(strongAdapter(config, LORA, 6)));
    const model = new ReferenceModel(config, weights, LORA.alpha / LORA.rank);
    const tokens = randomTokens(config, 7, 11);
    const slopes = Float64Array.from(tokens, (_token, i) => (i === 3 ? 0 : Math.sin(i + 1)));
    const temperature = 0.8;
    const gradient = new Map([...weights].map(([name, tensor]) => [name, new Float64Array(tensor.length)]));
    model.backward(tokens, temperature, slopes, gradient);

    const loss = () => model.logprobs(tokens, temperature).reduce((sum, lp, i) => sum + lp * slopes[i]!, 0);
    for (const [name, tensor] of weights) {
      const places = Array.from({ length: 6 }, (_unused, k) => Math.floor((k * tensor.length) / 6));
      const expected = places.map((place) => {
        const kept = tensor[place]!;
        tensor[place] = kept + 1e-5;
        const above = loss();
        tensor[place] = kept - 1e-5;
        const below = loss();
        tensor[place] = kept;
        return (above - below) / 2e-5;
      });
      const found = places.map((place) => gradient.get(name)![place]!);
      expect(Math.max(...expected.map(Math.abs)) === 0 || relativeError(found, expected) < 1e-6, name).toBe(true);
    }
  });

  it('turns as Llama-3.2 does: the frequencies that transformers 5 gives for its settings', () => {
    const found = rotaryFrequencies({
      ...SHAPES['Llama 3’s scaled rotary positions']!,
      headDim: 64,
      ropeTheta: 500_000,
      ropeScaling: { factor: 32, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalContext: 8192 },
    });
    const theirs = new Map([
      [0, 1],
      [1, 0.663601279258728],
      [14, 0.0032114461064338684],
      [15, 0.0012905480107292533],
      [16, 0.000429556705057621],
      [17, 9.708286233944818e-5],
      [18, 1.9461638657958247e-5],
      [31, 9.418306490260875e-8],
    ]);
    for (const [pair, frequency] of theirs) expect(relativeError([found[pair]!], [frequency]), `pair ${pair}`).toBeLessThan(3e-7);
  });
});
