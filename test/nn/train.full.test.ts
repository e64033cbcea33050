import { describe, expect, it } from 'vitest';
import type { Loss } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { planLayout } from '../../src/engines/embedded/model/config.ts';
import { cispo, crossEntropy, dro, importanceSampling, ppo } from '../../src/training/losses.ts';
import { withKl } from '../../src/training/penalties.ts';
import {
  ADAM as BASE_ADAM,
  mixedSamples,
  openModel,
  REGULAR,
  randomSample,
  relativeError,
  request,
  SHAPES,
  strongWeights,
} from '../fixtures/nn/models.ts';
import { ReferenceModel } from '../fixtures/nn/reference.ts';
import { ReferenceAdamW } from '../fixtures/nn/reference-adamw.ts';
import { refusal } from '../fixtures/refusal.ts';

const ADAM = { ...BASE_ADAM, weightDecay: 0.1, maxGradNorm: 0.5 };
const clip = { clipLow: 0.2, clipHigh: 0.28 };
const LOSSES: Loss[] = [crossEntropy(), importanceSampling(), ppo(clip), cispo(clip), dro({ beta: 0.1 }), withKl(ppo(clip), 0.1)];

/** The batch's loss and gradient by the float64 reference. */
function expected(model: EmbeddedModel, samples: readonly Sample[], loss: Loss): { loss: number; gradient: Float64Array } {
  const weights = Float64Array.from(model.weights());
  const reference = new ReferenceModel(model.config, weights);
  const gradient = new Float64Array(weights.length);
  let total = 0;
  for (const sample of samples) {
    const trained = Array.from(sample.mask.keys()).filter((i) => sample.mask[i] === 1);
    const pick = (values: ArrayLike<number>) => Float32Array.from(trained, (i) => values[i]!);
    const output = loss.evaluate({
      logprobs: pick(reference.logprobs(sample.tokens, sample.temperature)),
      sampled: pick(sample.logprobs),
      advantages: pick(sample.advantages),
      reference: sample.reference && pick(sample.reference),
    });
    const slopes = new Float64Array(sample.tokens.length);
    trained.forEach((i, k) => {
      slopes[i] = output.gradient[k]! * sample.weight;
    });
    total += output.loss * sample.weight;
    reference.backward(sample.tokens, sample.temperature, slopes, gradient);
  }
  return { loss: total, gradient };
}

describe.each(['relaxed', 'plain'] as const)('the %s kernels', (variant) => {
  describe.each(Object.entries(SHAPES))('%s', (_, config) => {
    it.each(LOSSES)('give the reference’s gradient for $name $settings, tensor by tensor', async (loss) => {
      const model = await openModel(config, { variant });
      const samples = mixedSamples(config);
      const result = await model.forwardBackward(samples, loss);
      const wanted = expected(model, samples, loss);
      expect(relativeError([result.loss], [wanted.loss])).toBeLessThan(1e-5);
      const gradient = model.gradient();
      for (const { name, offset, length } of planLayout(config).tensors) {
        const found = gradient.subarray(offset, offset + length);
        expect(relativeError(found, wanted.gradient.subarray(offset, offset + length)), name).toBeLessThan(1e-5);
      }
    });

    it('give the reference’s log-probabilities, at each sample’s temperature', async () => {
      const model = await openModel(config, { variant });
      const samples = mixedSamples(config);
      const reference = new ReferenceModel(config, Float64Array.from(model.weights()));
      const found = await model.forward(samples);
      samples.forEach(({ tokens, mask, temperature }, i) => {
        const wanted = reference.logprobs(tokens, temperature).filter((_lp, position) => mask[position] === 1);
        expect(found[i]).toHaveLength(wanted.length);
        expect(relativeError(found[i]!, wanted)).toBeLessThan(5e-6);
      });
    });
  });

  it('take the same AdamW steps as the reference, clipped and decayed', async () => {
    const model = await openModel(REGULAR, { variant });
    const weights = Float64Array.from(model.weights());
    const optimizer = new ReferenceAdamW(weights.length);
    for (let step = 0; step < 5; step++) {
      await model.forwardBackward([randomSample(REGULAR, 20 + step, step)], crossEntropy());
      const norm = optimizer.step(weights, model.gradient(), ADAM);
      const { gradNorm } = await model.optimStep(ADAM);
      expect(relativeError([gradNorm], [norm])).toBeLessThan(1e-5);
    }
    expect(relativeError(model.weights(), weights)).toBeLessThan(1e-6);
    const start = strongWeights(REGULAR, 3);
    const change = (now: ArrayLike<number>) => Float64Array.from(start, (weight, i) => now[i]! - weight);
    expect(relativeError(change(model.weights()), change(weights))).toBeLessThan(1e-5);
  });
});

describe('training', () => {
  it('gives the same bytes on 1, 3 and 16 threads, sampling and shared prefixes included', async () => {
    const stem = randomSample(REGULAR, 30, 1).tokens;
    const samples = Array.from({ length: 220 }, (_, i) => {
      const sample = randomSample(REGULAR, 40 + ((i * 37) % 50), i, { prompt: 5 });
      if (i % 3 === 0) sample.tokens.set(stem);
      return sample;
    });
    const run = async (threads: number) => {
      const model = await openModel(REGULAR, { threads });
      const results = [];
      for (let step = 0; step < 2; step++)
        results.push(await model.forwardBackward(samples, ppo(clip)), await model.optimStep(ADAM));
      await model.publish(1);
      const asked = samples.slice(0, 64).map(({ tokens }, seed) => request(tokens.slice(0, 12), { seed }));
      const sampled = await Promise.all(asked.map((one) => model.sample(one)));
      return { results, sampled, logprobs: await model.forward(samples), weights: model.weights().slice() };
    };
    const one = await run(1);
    expect(await run(3)).toEqual(one);
    expect(await run(16)).toEqual(one);
  });

  it('steps with the gradient of all microbatches, and starts from zero after it', async () => {
    const model = await openModel();
    const samples = Array.from({ length: 200 }, (_, i) => randomSample(REGULAR, 90, i));
    await model.forwardBackward(samples, crossEntropy());
    const wanted = Math.hypot(...model.gradient());
    const { gradNorm } = await model.optimStep(ADAM);
    expect(relativeError([gradNorm], [wanted])).toBeLessThan(1e-5);
    expect(model.gradient().every((g) => g === 0)).toBe(true);
  });

  it('handles a sequence as long as the context, and more tokens than a microbatch holds', async () => {
    const config = { ...REGULAR, contextLength: 1500 };
    const model = await openModel(config);
    const long = randomSample(config, 1500, 8, { prompt: 1490 });
    const samples = [long, ...Array.from({ length: 30 }, (_, i) => randomSample(config, 70, i))];
    const all = await model.forward(samples);
    const [alone] = await model.forward([long]);
    expect(all[0]).toEqual(alone);
    await expect(model.forward([randomSample(config, 1501, 1)])).rejects.toThrow(
      refusal('SAMPLE_REFUSED', '1501 tokens, the context is 1500'),
    );
    const reference = new ReferenceModel(config, Float64Array.from(model.weights()));
    const wanted = reference.logprobs(samples[5]!.tokens, 1).filter((_lp, i) => samples[5]!.mask[i] === 1);
    expect(relativeError(all[5]!, wanted)).toBeLessThan(1e-6);
  });

  it('keeps reference weights while the current ones move on', async () => {
    const model = await openModel();
    const samples = mixedSamples(REGULAR);
    await expect(model.forward(samples, 'reference')).rejects.toMatchObject({ code: 'TRAINER_FAILED' });
    await model.freezeReference();
    const before = await model.forward(samples);
    await model.forwardBackward(samples, crossEntropy());
    await model.optimStep(ADAM);
    expect(await model.forward(samples, 'reference')).toEqual(before);
    expect(await model.forward(samples)).not.toEqual(before);
  });

  it('skips samples without trained tokens', async () => {
    const model = await openModel();
    const empty = randomSample(REGULAR, 6, 1, { mask: new Uint8Array(6) });
    expect(await model.forwardBackward([empty], crossEntropy())).toEqual({
      loss: 0,
      trainedTokens: 0,
      metrics: {},
      logprobs: [new Float32Array(0)],
    });
    expect(await model.forward([empty])).toEqual([new Float32Array(0)]);
  });

  const bad: Record<string, Partial<Sample>> = {
    'an id outside the vocabulary': { tokens: Int32Array.of(1, 48, 2, 3) },
    'a negative id': { tokens: Int32Array.of(1, -1, 2, 3) },
    'arrays of other lengths': { advantages: new Float32Array(3) },
    'a first token that is trained': { mask: Uint8Array.of(1, 1, 0, 0) },
    'a mask that is not 0 or 1': { mask: Uint8Array.of(0, 2, 0, 0) },
    'advantages that are not finite': { advantages: Float32Array.of(0, Number.NaN, 0, 0) },
    'log-probabilities that are not finite': { logprobs: Float32Array.of(0, Number.NEGATIVE_INFINITY, 0, 0) },
    'a weight that is not finite': { weight: Number.POSITIVE_INFINITY },
    'temperature 0': { temperature: 0 },
    'a temperature too small for float32': { temperature: 1e-9 },
  };
  it.each(Object.entries(bad))('refuses a sample with %s and leaves the gradient alone', async (_, changes) => {
    const model = await openModel();
    await model.forwardBackward(mixedSamples(REGULAR), crossEntropy());
    const before = model.gradient();
    const samples = [randomSample(REGULAR, 4, 1), randomSample(REGULAR, 4, 2, changes)];
    await expect(model.forwardBackward(samples, crossEntropy())).rejects.toThrow(
      refusal('SAMPLE_REFUSED', 'sample 1 (rollout "rollout-2")'),
    );
    await expect(model.forward(samples)).rejects.toMatchObject({ code: 'SAMPLE_REFUSED' });
    expect(model.gradient()).toEqual(before);
  });

  it('takes no step on the gradient before a forwardBackward that failed, even if both were asked for at once', async () => {
    const model = await openModel();
    await model.forwardBackward(mixedSamples(REGULAR), crossEntropy());
    const before = model.weights().slice();
    const refused = model.forwardBackward([randomSample(REGULAR, 4, 2, { weight: Number.NaN })], crossEntropy());
    const step = model.optimStep(ADAM);
    await expect(refused).rejects.toMatchObject({ code: 'SAMPLE_REFUSED' });
    await expect(step).rejects.toMatchObject({ code: 'TRAINER_FAILED', message: expect.stringContaining('forwardBackward') });
    expect(model.weights()).toEqual(before);
    await model.forwardBackward(mixedSamples(REGULAR), crossEntropy());
    expect((await model.optimStep(ADAM)).gradNorm).toBeGreaterThan(0);
  });

  it('fails on a loss that is not finite, with weights untouched and the gradient cleared', async () => {
    const model = await openModel(REGULAR, { threads: 2 });
    const samples = Array.from({ length: 60 }, (_, i) => randomSample(REGULAR, 80, i));
    const before = model.weights().slice();
    const broken: Loss = {
      ...crossEntropy(),
      evaluate: (input) => ({
        ...crossEntropy().evaluate(input),
        loss: input.advantages[0] === samples[40]!.advantages[1] ? Number.NaN : 0,
      }),
    };
    await expect(model.forwardBackward(samples, broken)).rejects.toMatchObject({ code: 'TRAINER_FAILED' });
    expect(model.gradient().every((g) => g === 0)).toBe(true);
    expect(model.weights()).toEqual(before);
    expect((await model.forwardBackward(samples, crossEntropy())).trainedTokens).toBeGreaterThan(0);
  });

  it('fails a step whose gradient is not finite or whose settings cannot be, with weights untouched', async () => {
    const model = await openModel();
    const before = model.weights().slice();
    const sample = randomSample(REGULAR, 20, 1, { weight: 3e38, advantages: new Float32Array(20).fill(1e30) });
    const steep: Loss = { ...crossEntropy(), evaluate: (input) => ({ loss: 0, gradient: input.logprobs.map(() => 3e38) }) };
    await model.forwardBackward([sample], steep);
    await expect(model.optimStep(ADAM)).rejects.toMatchObject({ code: 'TRAINER_FAILED' });
    expect(model.gradient().every((g) => g === 0)).toBe(true);
    await model.forwardBackward(mixedSamples(REGULAR), crossEntropy());
    await expect(model.optimStep({ ...ADAM, beta1: 1 })).rejects.toThrow(/beta1 is 1/);
    await expect(model.optimStep({ ...ADAM, learningRate: 1e300 })).rejects.toMatchObject({
      code: 'TRAINER_FAILED',
      message: 'learningRate is 1e+300, expected a number of at least 0 that float32 can hold',
    });
    expect(model.weights()).toEqual(before);
  });

  it.each([1, 3])('fails a step whose new weights are not finite, and says that they are lost (%d threads)', async (threads) => {
    const model = await openModel(REGULAR, { threads });
    await model.forwardBackward(mixedSamples(REGULAR), crossEntropy());
    await expect(model.optimStep({ ...ADAM, learningRate: 3e38, weightDecay: 10 })).rejects.toMatchObject({
      code: 'TRAINER_FAILED',
      message: 'step 1 at learning rate 3e+38 gave weights that are not finite',
      hint: expect.stringContaining('load the last checkpoint') as string,
    });
    expect(model.weights().every(Number.isFinite)).toBe(false);
    expect(model.gradient().every((g) => g === 0)).toBe(true);
  });

  it('learns to copy: after a separator the model repeats what came before it', async () => {
    const config = { ...REGULAR, vocabSize: 16, contextLength: 32, hiddenSize: 48, kvHeads: 4, headDim: 12 };
    await using model = await EmbeddedModel.create({ config, seed: 7, threads: 2 });
    const length = 4;
    const draw = (seed: number): Sample => {
      const sample = randomSample({ ...config, vocabSize: 15 }, 2 * length + 1, seed);
      sample.tokens[length] = 15;
      sample.tokens.copyWithin(length + 1, 0, length);
      const mask = Uint8Array.from(sample.tokens, (_, i) => (i > length ? 1 : 0));
      return { ...sample, mask, advantages: Float32Array.from(mask), weight: 1 / (64 * length) };
    };
    let loss = Number.POSITIVE_INFINITY;
    for (let step = 0; step < 400 && loss > 0.02; step++) {
      ({ loss } = await model.forwardBackward(
        Array.from({ length: 64 }, (_, i) => draw(step * 64 + i)),
        crossEntropy(),
      ));
      await model.optimStep({ ...ADAM, learningRate: 0.004, weightDecay: 0, maxGradNorm: 1 });
    }
    expect(loss).toBeLessThan(0.02);
    await model.publish(1);
    const prompt = Int32Array.of(3, 9, 0, 12, 15);
    const sampling = { temperature: 0, topP: 1, topK: 0, maxTokens: length };
    const { ids } = await model.sample({ promptIds: prompt, sampling, stopIds: [], seed: 0 });
    expect(Array.from(ids)).toEqual([3, 9, 0, 12]);
  });
});
