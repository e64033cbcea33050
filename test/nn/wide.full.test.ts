/**
 * Models wide enough that the kernels cut their sums and outputs into blocks (more than 384 inputs, 2,048 outputs and 192 rows), with sizes
 * that leave a remainder in each: all parameters and an adapter, against the float64 reference.
 */
import { describe, expect, it } from 'vitest';
import type { Sample } from '../../src/core/types.ts';
import type { LlamaConfig } from '../../src/nn/config.ts';
import { planLayout } from '../../src/nn/config.ts';
import { planLora } from '../../src/nn/lora.ts';
import { gaussian, randomStream } from '../../src/nn/random.ts';
import { crossEntropy } from '../../src/trainer/losses.ts';
import { adaptedTensors, bareName, LORA, openAdapted, writeModel } from '../fixtures/nn/adapters.ts';
import { openModel, randomSample, randomTokens, relativeError, request, scored } from '../fixtures/nn/models.ts';
import { crossEntropyReference } from '../fixtures/nn/reference.ts';

const sizes = {
  ...{
    vocabSize: 2111,
    hiddenSize: 394,
    intermediateSize: 1045,
    layers: 2,
    contextLength: 400,
    rmsNormEps: 1e-6,
    ropeTheta: 10_000,
  },
  ropeScaling: undefined,
};
const WIDE: Readonly<Record<string, LlamaConfig>> = {
  'Llama 3': {
    ...{ ...sizes, family: 'llama', heads: 5, kvHeads: 5, headDim: 78, tied: true },
    ropeScaling: { factor: 8, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalContext: 64 },
  },
  Qwen2: { ...sizes, family: 'qwen2', heads: 6, kvHeads: 2, headDim: 66, tied: true },
  Qwen3: { ...sizes, family: 'qwen3', heads: 10, kvHeads: 2, headDim: 46, tied: false },
};

/** As large as a trained model's: the spread of each sum is about one, whatever its width. */
function wideWeights(config: LlamaConfig, seed: number): Float32Array {
  const { tensors, length } = planLayout(config);
  const weights = new Float32Array(length);
  const random = randomStream(seed);
  for (const { name, shape, offset, length } of tensors) {
    const isNorm = name.endsWith('norm.weight');
    const deviation = shape.length === 2 ? 1 / Math.sqrt(shape[1]!) : 0.25;
    for (let i = offset; i < offset + length; i++) weights[i] = (isNorm ? 1 : 0) + deviation * gaussian(random);
  }
  return weights;
}

function samplesOf(config: LlamaConfig): Sample[] {
  return [randomSample(config, 230, 1, { prompt: 200 }), randomSample(config, 11, 2, { temperature: 0.7, weight: 0.5 })];
}

describe.each(['relaxed', 'plain'] as const)('the %s kernels', (variant) => {
  describe.each(Object.entries(WIDE))('on a wide %s', (_, config) => {
    it('give the reference’s log-probabilities and gradient of all parameters, and sample by them', async () => {
      const model = await openModel(config, { variant });
      const weights = wideWeights(config, 5);
      model.weights().set(weights);
      await model.publish(1);
      const samples = samplesOf(config);
      const wanted = crossEntropyReference(config, Float64Array.from(weights), 0, samples);
      const { logprobs } = await model.forwardBackward(samples, crossEntropy());
      expect(
        relativeError(
          logprobs.flatMap((one) => [...one]),
          wanted.logprobs.flatMap((one) => [...one]),
        ),
      ).toBeLessThan(1e-5);
      const gradient = model.gradient();
      for (const { name, offset, length } of planLayout(config).tensors) {
        expect(relativeError(gradient.subarray(offset, offset + length), wanted.gradient.get(name)!), name).toBeLessThan(1e-5);
      }
      await expectSampledAsTrained(model, config);
    });

    it('give the reference’s log-probabilities and gradient of an adapter, and sample by them', async () => {
      const weights = wideWeights(config, 5);
      const model = await openAdapted(await writeModel(config, weights), { variant, threads: 2 });
      const layout = planLora(config, LORA);
      const adapter = model.weights();
      for (const { name, shape, offset, length } of layout.tensors) {
        const deviation = name.includes('lora_A') ? 1 / Math.sqrt(shape[1]!) : 0.25;
        const random = randomStream(offset);
        for (let i = offset; i < offset + length; i++) adapter[i] = deviation * gaussian(random);
      }
      await model.publish(1);
      const samples = samplesOf(config);
      const tensors = adaptedTensors(config, Float64Array.from(weights), LORA, Float64Array.from(adapter));
      const wanted = crossEntropyReference(config, tensors, LORA.alpha / LORA.rank, samples);
      const { logprobs } = await model.forwardBackward(samples, crossEntropy());
      expect(
        relativeError(
          logprobs.flatMap((one) => [...one]),
          wanted.logprobs.flatMap((one) => [...one]),
        ),
      ).toBeLessThan(1e-5);
      const gradient = model.gradient();
      for (const { name, offset, length } of layout.tensors) {
        const part = gradient.subarray(offset, offset + length);
        expect(relativeError(part, wanted.gradient.get(bareName(name))!), name).toBeLessThan(1e-5);
      }
      await expectSampledAsTrained(model, config);
    });
  });
});

/** Bit for bit, in a batch that shares prompts. */
async function expectSampledAsTrained(model: Awaited<ReturnType<typeof openModel>>, config: LlamaConfig): Promise<void> {
  const stem = randomTokens(config, 300, 1);
  const asked = [30, 220, 260, 300].map((length) => request(stem.slice(0, length), { seed: length, maxTokens: 25 }));
  const results = await Promise.all(asked.map((one) => model.sample(one)));
  const samples = results.map((result, i) => scored(asked[i]!, result));
  expect(await model.forward(samples)).toEqual(results.map(({ logprobs }) => logprobs));
}
