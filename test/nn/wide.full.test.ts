/**
 * Models wide enough that the kernels cut their sums and outputs into blocks (more than 384 inputs, 2,048 outputs and 192 rows), with sizes
 * that leave a remainder in each: all parameters and an adapter, against the float64 reference.
 */
import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { Sample } from '../../src/core/types.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { planLora } from '../../src/engines/embedded/lora.ts';
import { type Flat, type LlamaConfig, planLayout } from '../../src/engines/embedded/model/config.ts';
import { gaussian, randomStream } from '../../src/engines/embedded/random.ts';
import { crossEntropy } from '../../src/training/losses.ts';
import { adaptedTensors, bareName, LORA, openAdapted, writeModel } from '../fixtures/nn/adapters.ts';
import { ADAM, openModel, randomSample, randomTokens, relativeError, request, scored } from '../fixtures/nn/models.ts';
import { crossEntropyReference } from '../fixtures/nn/reference.ts';

const sizes = {
  ...{ vocabSize: 2111, hiddenSize: 394, intermediateSize: 1045, layers: 1, contextLength: 400 },
  ...{ rmsNormEps: 1e-6, ropeTheta: 10_000, ropeScaling: undefined },
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
function wideTensors(tensors: Flat['tensors'], seed: number): Float32Array {
  const random = randomStream(seed);
  return Float32Array.from(
    tensors.flatMap(({ name, shape, length }) => {
      const mean = name.endsWith('norm.weight') ? 1 : 0;
      const deviation = shape.length === 2 ? 1 / Math.sqrt(shape[1]!) : 0.25;
      return Array.from({ length }, () => mean + deviation * gaussian(random));
    }),
  );
}

function samplesOf(config: LlamaConfig): Sample[] {
  return [randomSample(config, 230, 1, { prompt: 200 }), randomSample(config, 11, 2, { temperature: 0.7, weight: 0.5 })];
}

const VARIANTS = ['relaxed', 'plain'] as const;

describe.each(Object.entries(WIDE))('a wide %s', (_, config) => {
  const weights = wideTensors(planLayout(config).tensors, 5);
  const samples = samplesOf(config);

  it('gives the reference’s log-probabilities and gradient of all parameters, and samples by them', async () => {
    const wanted = crossEntropyReference(config, Float64Array.from(weights), 0, samples);
    for (const variant of VARIANTS) {
      const model = await openModel(config, { variant });
      model.weights().set(weights);
      await model.publish(1);
      await expectAsReference(model, planLayout(config).tensors, wanted);
      await expectSampledAsTrained(model);
    }
  });

  it('gives the reference’s log-probabilities and gradient of an adapter, and samples by them', async () => {
    const dir = await writeModel(config, weights);
    const { tensors } = planLora(config, LORA);
    const adapter = wideTensors(tensors, 6);
    const whole = adaptedTensors(config, Float64Array.from(weights), LORA, Float64Array.from(adapter));
    const wanted = crossEntropyReference(config, whole, LORA.alpha / LORA.rank, samples);
    for (const variant of VARIANTS) {
      const model = await openAdapted(dir, { variant, threads: 2 });
      model.weights().set(adapter);
      await model.publish(1);
      await expectAsReference(model, tensors, wanted);
      await expectSampledAsTrained(model);
    }
  });

  async function expectAsReference(
    model: EmbeddedModel,
    tensors: Flat['tensors'],
    { logprobs, gradient }: ReturnType<typeof crossEntropyReference>,
  ): Promise<void> {
    const found = await model.forwardBackward(samples, crossEntropy());
    found.logprobs.forEach((own, i) => {
      expect(relativeError(own, logprobs[i]!)).toBeLessThan(1e-5);
    });
    const slopes = model.gradient();
    for (const { name, offset, length } of tensors) {
      const own = slopes.subarray(offset, offset + length);
      expect(relativeError(own, gradient.get(bareName(name))!), name).toBeLessThan(1e-5);
    }
  }
});

/** Bit for bit, in a batch that shares prompts. */
async function expectSampledAsTrained(model: EmbeddedModel): Promise<void> {
  const stem = randomTokens(model.config, 300, 1);
  const asked = [30, 220, 260, 300].map((length) => request(stem.slice(0, length), { seed: length, maxTokens: 25 }));
  const results = await Promise.all(asked.map((one) => model.sample(one)));
  const samples = results.map((result, i) => scored(asked[i]!, result));
  expect(await model.forward(samples)).toEqual(results.map(({ logprobs }) => logprobs));
}

describe('a model so large that its gradient has fewer lanes', () => {
  it('is trained to the same bytes on 1, 2 and 3 threads', async () => {
    const large = { ...sizes, vocabSize: 25_001, hiddenSize: 200, intermediateSize: 310 };
    const config: LlamaConfig = { ...large, family: 'qwen2', heads: 4, kvHeads: 2, headDim: 50, tied: false };
    const samples = Array.from({ length: 40 }, (_, i) => randomSample(config, 300, i, { prompt: 297 }));
    const run = async (threads: number) => {
      await using model = await EmbeddedModel.create({ config, seed: 1, threads });
      const { logprobs, loss } = await model.forwardBackward(samples, crossEntropy());
      const { gradNorm } = await model.optimStep(ADAM);
      return { logprobs, loss, gradNorm, weights: createHash('sha256').update(model.weights().slice()).digest('hex') };
    };
    const one = await run(1);
    expect(await run(2)).toEqual(one);
    expect(await run(3)).toEqual(one);
  });
});
