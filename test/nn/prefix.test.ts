/**
 * Samples that share prefixes are computed together, each shared row once; what comes out must be what each gives alone.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Loss } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import type { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { planLayout } from '../../src/engines/embedded/model/config.ts';
import { assemble, planBatch } from '../../src/engines/embedded/train-step.ts';
import { crossEntropy, ppo } from '../../src/training/losses.ts';
import { openModel, REGULAR, randomSample, randomTokens, relativeError, SHAPES } from '../fixtures/nn/models.ts';
import { crossEntropyReference } from '../fixtures/nn/reference.ts';

/** One of few stems, then few different tokens: random sequences repeat, branch anywhere and are prefixes of each other. */
const drawnSamples = fc.array(
  fc.record({
    stem: fc.integer({ min: 0, max: 2 }),
    stemLength: fc.integer({ min: 0, max: 50 }),
    own: fc.array(fc.integer({ min: 0, max: 1 }), { minLength: 1, maxLength: 30 }),
    trainedFrom: fc.integer({ min: 1, max: 70 }),
    temperature: fc.constantFrom(1, 0.7, 1.4),
    weight: fc.constantFrom(1, 0.25, -2),
  }),
  { minLength: 1, maxLength: 40 },
);

type Drawn = typeof drawnSamples extends fc.Arbitrary<readonly (infer T)[]> ? T : never;

/** Nothing is trained where `trainedFrom` lies beyond the end. */
function toSample({ stem, stemLength, own, trainedFrom, temperature, weight }: Drawn, i: number): Sample {
  const tokens = Int32Array.of(...randomTokens(REGULAR, 50, stem).subarray(0, stemLength), ...own);
  return { ...randomSample(REGULAR, tokens.length, i, { prompt: trainedFrom, temperature, weight }), tokens };
}

/** The gradient of the accumulated calls, which are then forgotten: a step of rate 0 changes nothing. */
async function takeGradient(model: EmbeddedModel): Promise<Float32Array> {
  const gradient = model.gradient();
  await model.optimStep({ learningRate: 0, beta1: 0, beta2: 0, epsilon: 1, weightDecay: 0, maxGradNorm: 0 });
  return gradient;
}

const loss: Loss = ppo({ clipLow: 0.2, clipHigh: 0.28 });

describe('samples that share prefixes', () => {
  it('have the log-probabilities and the gradient that each has alone, whatever the tree', async () => {
    const model = await openModel(REGULAR, { threads: 2 });
    await fc.assert(
      fc.asyncProperty(drawnSamples, async (drawn) => {
        const samples = drawn.map(toSample);
        const together = await model.forward(samples);
        const whole = await model.forwardBackward(samples, loss);
        const gradient = await takeGradient(model);
        let lossAlone = 0;
        for (const [i, sample] of samples.entries()) {
          expect(together[i]).toEqual((await model.forward([sample]))[0]);
          lossAlone += (await model.forwardBackward([sample], loss)).loss;
        }
        const gradientAlone = await takeGradient(model);
        expect(Math.abs(whole.loss - lossAlone)).toBeLessThan(1e-4 * (1 + Math.abs(lossAlone)));
        expect(relativeError(gradient, gradientAlone)).toBeLessThan(2e-5);
      }),
      { numRuns: 25, seed: 7 },
    );
  });

  it.each(Object.entries(SHAPES))('have the reference’s gradient (%s)', async (_, config) => {
    const model = await openModel(config);
    const stem = randomTokens(config, 40, 1);
    const samples = Array.from({ length: 12 }, (_unused, i) => {
      const tokens = Int32Array.of(...stem.subarray(0, 7 * (i % 6)), ...randomTokens(config, 1 + ((i * 5) % 50), i % 5));
      return { ...randomSample(config, tokens.length, i, { temperature: i % 2 ? 1 : 0.8, weight: 1 / (1 + i) }), tokens };
    });
    await model.forwardBackward(samples, crossEntropy());
    const wanted = crossEntropyReference(config, Float64Array.from(model.weights()), 0, samples).gradient;
    const found = model.gradient();
    for (const { name, offset, length } of planLayout(config).tensors) {
      expect(relativeError(found.subarray(offset, offset + length), wanted.get(name)!), name).toBeLessThan(1e-5);
    }
  });

  it('have no gradient where the loss is flat, and the same elsewhere as if only that were trained', async () => {
    const model = await openModel();
    const stem = randomTokens(REGULAR, 40, 1);
    const samples = Array.from({ length: 9 }, (_, i) => {
      const tokens = Int32Array.of(...stem, ...randomTokens(REGULAR, 20, i));
      return { ...randomSample(REGULAR, tokens.length, i, { prompt: 44 }), tokens };
    });
    const looked = samples.map((sample) => ({ ...sample, mask: new Uint8Array(60).fill(1, 1) }));
    await model.forwardBackward(samples, crossEntropy());
    const wanted = await takeGradient(model);
    const { logprobs } = await model.forwardBackward(looked, crossEntropy());
    expect(relativeError(await takeGradient(model), wanted)).toBeLessThan(1e-5);
    expect(logprobs).toEqual(await model.forward(looked));
    await model.forwardBackward(
      looked.map((sample) => ({ ...sample, weight: 0 })),
      crossEntropy(),
    );
    expect(model.gradient().every((slope) => slope === 0)).toBe(true);
  });
});

describe('a batch', () => {
  const ROWS = { trainRows: 200, microbatchRows: { usual: 64, sharing: 64 }, trunk: { rows: 50 } };
  const stem = randomTokens(REGULAR, 60, 1);
  const samplesWith = (common: number, prompt: number, count = 40): Sample[] =>
    Array.from({ length: count }, (_, i) => {
      const tokens = Int32Array.of(...stem.subarray(0, common), i % 48, ...randomTokens(REGULAR, 30, i));
      return { ...randomSample(REGULAR, tokens.length, i, { prompt }), tokens };
    });
  const trunkOf = (samples: readonly Sample[]) => planBatch(samples, ROWS).trunk;

  it('stands on what all samples begin with, as far as there is room, before the first row that predicts', () => {
    expect(trunkOf(samplesWith(40, 45))).toEqual(stem.slice(0, 40));
    expect(trunkOf(samplesWith(60, 65))).toEqual(stem.slice(0, 50));
    // Position 38 is trained, so row 37 predicts.
    expect(trunkOf(samplesWith(40, 38))).toEqual(stem.slice(0, 37));
    const { trunk, microbatches } = planBatch(samplesWith(40, 45), ROWS);
    const batches = microbatches.map((one) => assemble(one, trunk.length).batch);
    expect(batches.reduce((sum, { tokens }) => sum + tokens.length, 0)).toBe(40 * 30);
    for (const { segments, trunk: length } of batches) expect([segments[1], length]).toEqual([40, 40]);
  });

  it('has no trunk where it would not pay: little in common, or few microbatches', () => {
    expect(trunkOf(samplesWith(31, 45))).toHaveLength(0);
    expect(trunkOf(samplesWith(40, 45, 3))).toHaveLength(0);
    expect(trunkOf(samplesWith(40, 45, 1))).toHaveLength(0);
    expect(trunkOf([])).toHaveLength(0);
  });
});

describe('a microbatch', () => {
  const planned = (samples: readonly Sample[]) =>
    planBatch(samples, { trainRows: 600, microbatchRows: { usual: 512, sharing: 512 }, trunk: { rows: 0 } }).microbatches.map(
      (one) => assemble(one),
    );
  const rowsOf = (samples: readonly Sample[]) => planned(samples).map(({ batch }) => batch.tokens.length);
  const sampleOf = (tokens: Int32Array, prompt = 1) => ({ ...randomSample(REGULAR, tokens.length, 1, { prompt }), tokens });

  it('holds a shared prefix once, and a repeated sample not at all', () => {
    const stem = randomTokens(REGULAR, 60, 1);
    const branches = [5, 6, 5].map((last) => sampleOf(Int32Array.of(...stem, last, 1, 1)));
    // The last trained token is only a target.
    expect(rowsOf(branches)).toEqual([60 + 2 + 2]);
    expect(rowsOf([sampleOf(stem.subarray(0, 31)), sampleOf(stem.subarray(0, 41))])).toEqual([40]);
  });

  it('predicts a trained token of a shared prefix once, at each temperature', () => {
    const stem = Int32Array.of(...randomTokens(REGULAR, 60, 1));
    const whole = (last: number, temperature: number): Sample => {
      const tokens = Int32Array.of(...stem, last);
      return { ...sampleOf(tokens), mask: new Uint8Array(61).fill(1, 1), temperature };
    };
    const targets = (...samples: Sample[]) => planned(samples).map(({ batch }) => batch.rows.length);
    expect(targets(whole(5, 1), whole(6, 1), whole(7, 1))).toEqual([59 + 3]);
    expect(targets(whole(5, 1), whole(6, 0.5))).toEqual([60 + 60]);
    // What only the last of them trains is predicted for it.
    expect(targets({ ...whole(5, 1), mask: new Uint8Array(61).fill(1, 60) }, whole(6, 1))).toEqual([60 + 1]);
  });

  it('leaves out what follows the last trained token, and samples without one', () => {
    const long = { ...randomSample(REGULAR, 50, 1), mask: Uint8Array.from({ length: 50 }, (_, i) => (i === 20 ? 1 : 0)) };
    expect(rowsOf([long, { ...long, mask: new Uint8Array(50) }])).toEqual([20]);
    expect(rowsOf([])).toEqual([]);
  });

  it('does not outgrow its memory, in rows or in targets', () => {
    const apart = Array.from({ length: 40 }, (_, i) => sampleOf(Int32Array.of(i, ...randomTokens(REGULAR, 90, i))));
    const same = Array.from({ length: 40 }, () => apart[0]!);
    for (const samples of [apart, same, [...same, ...apart]]) {
      const members = planned(samples).flatMap((one) => one.members.map(({ index }) => index));
      expect(members.toSorted((a, b) => a - b)).toEqual([...samples.keys()]);
      for (const { batch } of planned(samples)) expect(Math.max(batch.tokens.length, batch.rows.length)).toBeLessThanOrEqual(600);
    }
    expect(rowsOf(apart).length % 4).toBe(0);
  });
});
