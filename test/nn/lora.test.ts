/**
 * Low-rank adapters over frozen weights: what they compute, what is trained, what is sampled, and what a checkpoint keeps of them.
 */
import { cp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { SampleRequest, SampleResult } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { type LoraSettings, planLora } from '../../src/engines/embedded/lora.ts';
import { readSafetensors } from '../../src/engines/embedded/model/safetensors.ts';
import { crossEntropy, ppo } from '../../src/training/losses.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { adaptedTensors, bareName, LORA, openAdapted, writeModel } from '../fixtures/nn/adapters.ts';
import {
  ADAM,
  mixedSamples,
  REGULAR,
  randomSample,
  randomTokens,
  relativeError,
  request,
  SHAPES,
  scored,
  steps,
  strongWeights,
} from '../fixtures/nn/models.ts';
import { crossEntropyReference, ReferenceModel } from '../fixtures/nn/reference.ts';
import { ReferenceAdamW } from '../fixtures/nn/reference-adamw.ts';
import { refusal } from '../fixtures/refusal.ts';

const FEW = { ...LORA, rank: 8, targets: ['v_proj', 'o_proj', 'gate_proj'] } as const;

/** A strong adapter over the base in a folder, and the folder that it was saved to. */
async function savedAdapter(base: string, options: Parameters<typeof openAdapted>[1] = {}) {
  const model = await openAdapted(base, options);
  const dir = temporaryFolder();
  await model.save(dir);
  return { model, dir };
}

/** The adapter's log-probabilities of every trained token, and its gradient by name, in float64. */
function expected(model: EmbeddedModel, base: Float32Array, lora: LoraSettings, samples: readonly Sample[]) {
  const tensors = adaptedTensors(model.config, Float64Array.from(base), lora, Float64Array.from(model.weights()));
  return crossEntropyReference(model.config, tensors, lora.alpha / lora.rank, samples);
}

describe('an adapter', () => {
  describe.each(['relaxed', 'plain'] as const)('with the %s kernels', (variant) => {
    it.each(Object.entries(SHAPES))(
      'has the reference’s log-probabilities and gradient, matrix by matrix (%s)',
      async (_, config) => {
        const base = strongWeights(config, 5);
        const dir = await writeModel(config, base);
        for (const lora of [LORA, FEW]) {
          const model = await openAdapted(dir, { lora, variant });
          const samples = mixedSamples(config);
          const wanted = expected(model, base, lora, samples);
          const found = await model.forward(samples);
          found.forEach((logprobs, i) => {
            expect(relativeError(logprobs, wanted.logprobs[i]!)).toBeLessThan(1e-5);
          });
          expect((await model.forwardBackward(samples, crossEntropy())).logprobs).toEqual(found);
          const gradient = model.gradient();
          const { tensors, length } = planLora(config, lora);
          expect([gradient.length, model.weights().length]).toEqual([length, length]);
          for (const { name, offset, length } of tensors) {
            const part = gradient.subarray(offset, offset + length);
            expect(relativeError(part, wanted.gradient.get(bareName(name))!), name).toBeLessThan(1e-5);
          }
          await model.close();
        }
      },
    );
  });

  it.each(Object.entries(SHAPES))(
    'computes what all samples begin with once, with the log-probabilities and gradient of each alone (%s)',
    async (_, config) => {
      const dir = await writeModel(config);
      const stem = randomTokens(config, 40, 1);
      const samples = Array.from({ length: 60 }, (_unused, i) => {
        const tokens = Int32Array.of(...stem, ...randomTokens(config, 30 + (i % 20), i % 50));
        return { ...randomSample(config, tokens.length, i, { prompt: 44 + (i % 9), weight: 1 / (1 + (i % 7)) }), tokens };
      });
      const model = await openAdapted(dir, { threads: 2 });
      const together = await model.forward(samples);
      expect((await model.forwardBackward(samples, crossEntropy())).logprobs).toEqual(together);
      const gradient = model.gradient();
      await model.dropGradient();
      for (const [i, sample] of samples.entries()) {
        expect((await model.forwardBackward([sample], crossEntropy())).logprobs[0]).toEqual(together[i]);
      }
      expect(relativeError(gradient, model.gradient())).toBeLessThan(1e-5);

      const other = await openAdapted(dir, { threads: 3 });
      await other.forwardBackward(samples, crossEntropy());
      expect(other.gradient()).toEqual(gradient);
    },
  );

  it('starts as the base itself: A is drawn by the seed’s bounds, B is zero', async () => {
    const dir = await writeModel(REGULAR);
    await using base = await EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    await using model = await EmbeddedModel.open({ dir, threads: 1, lora: LORA });
    const asked = request(randomTokens(REGULAR, 20, 1), { maxTokens: 40 });
    expect(await model.sample(asked)).toEqual(await base.sample(asked));
    for (const { name, shape, offset, length } of planLora(REGULAR, LORA).tensors) {
      const part = model.weights().subarray(offset, offset + length);
      const largest = part.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const bound = name.endsWith('lora_A.weight') ? 1 / Math.sqrt(shape[1]!) : 0;
      expect(largest, name).toBeLessThanOrEqual(bound);
      expect(largest, name).toBeGreaterThanOrEqual(bound * 0.8);
    }
    await using again = await EmbeddedModel.open({ dir, threads: 1, lora: LORA });
    expect(again.weights()).toEqual(model.weights());
  });

  it('is all that is trained, by the reference’s AdamW; the base file’s weights stay', async () => {
    const dir = await writeModel(REGULAR);
    const model = await openAdapted(dir);
    const weights = Float64Array.from(model.weights());
    const optimizer = new ReferenceAdamW(weights.length);
    for (let step = 0; step < 4; step++) {
      await model.forwardBackward([randomSample(REGULAR, 20 + step, step)], crossEntropy());
      const norm = optimizer.step(weights, model.gradient(), ADAM);
      expect(relativeError([(await model.optimStep(ADAM)).gradNorm], [norm])).toBeLessThan(1e-5);
    }
    expect(relativeError(model.weights(), weights)).toBeLessThan(1e-6);
    // The base is as before: an adapter without effect gives its log-probabilities.
    const samples = mixedSamples(REGULAR);
    const reference = new ReferenceModel(REGULAR, Float64Array.from(strongWeights(REGULAR, 3)));
    model.weights().fill(0);
    const found = await model.forward(samples);
    samples.forEach(({ tokens, mask, temperature }, i) => {
      const wanted = reference.logprobs(tokens, temperature).filter((_, t) => mask[t] === 1);
      expect(relativeError(found[i]!, wanted)).toBeLessThan(1e-5);
    });
  });

  it.each([
    [{ ...LORA, rank: 0 }, /rank/],
    [{ ...LORA, rank: 1.5 }, /rank/],
    [{ ...LORA, alpha: 0 }, /alpha/],
    [{ ...LORA, alpha: Number.NaN }, /alpha/],
    [{ ...LORA, targets: [] }, /q_proj/],
    [{ ...LORA, targets: ['lm_head' as 'q_proj'] }, /lm_head/],
  ])('is refused with settings that cannot be: %j', async (lora, message) => {
    const dir = await writeModel(REGULAR);
    await expect(EmbeddedModel.open({ dir, threads: 1, lora })).rejects.toThrow(message);
  });
});

/** With prompts of their own and shared ones, cold and warm. */
function askedOf(config: typeof REGULAR): SampleRequest[] {
  const shared = randomTokens(config, 40, 1);
  return Array.from({ length: 40 }, (_, i) => {
    const own = randomTokens(config, 1 + (i % 9), i);
    const promptIds = i % 3 === 0 ? own : Int32Array.of(...shared.subarray(0, 20 + (i % 20)), ...own);
    return request(promptIds, { seed: i, temperature: i % 2 ? 1 : 0.7, maxTokens: 3 + (i % 30), affinity: `g${i % 6}` });
  });
}

describe('sampling with a trained adapter', () => {
  it.each(Object.entries(SHAPES))(
    'gives the trainer’s log-probabilities bit for bit, alone and in batches (%s)',
    async (_, config) => {
      const dir = await writeModel(config);
      await using model = await EmbeddedModel.open({ dir, threads: 1, lora: LORA });
      await steps(model, 3);
      const asked = askedOf(config);
      const untrained = await model.sample(asked[1]!);
      await model.publish(1);
      const alone: SampleResult[] = [];
      for (const one of asked) {
        // Publishing drops every cache: nothing is reused.
        await model.publish(1);
        alone.push(await model.sample(one));
      }
      expect(alone[1]!.logprobs).not.toEqual(untrained.logprobs);
      expect(await Promise.all(asked.map((one) => model.sample(one)))).toEqual(alone);
      const samples = asked.map((one, i) => scored(one, alone[i]!));
      const together = await model.forward(samples);
      expect(together).toEqual(alone.map(({ logprobs }) => logprobs));
      for (const [i, sample] of samples.slice(0, 5).entries()) expect((await model.forward([sample]))[0]).toEqual(together[i]);
      expect((await model.forwardBackward(samples, crossEntropy())).logprobs).toEqual(together);
    },
  );

  it('and training it give the same bytes on 1, 2 and 3 threads, shared prefixes included', async () => {
    const config = SHAPES['Qwen3, untied, heads wider than the hidden size']!;
    const dir = await writeModel(config);
    const stem = randomTokens(config, 30, 1);
    const samples = Array.from({ length: 120 }, (_, i) => {
      const sample = randomSample(config, 40 + ((i * 37) % 50), i, { prompt: 5 });
      if (i % 3 === 0) sample.tokens.set(stem);
      return sample;
    });
    const run = async (threads: number) => {
      await using model = await EmbeddedModel.open({ dir, threads, lora: LORA });
      const results = [];
      for (let step = 0; step < 3; step++) {
        results.push(await model.forwardBackward(samples, ppo({ clipLow: 0.2, clipHigh: 0.28 })), await model.optimStep(ADAM));
      }
      await model.publish(1);
      const sampled = await Promise.all(askedOf(config).map((one) => model.sample(one)));
      return { results, sampled, logprobs: await model.forward(samples), weights: model.weights().slice() };
    };
    const one = await run(1);
    expect(await run(2)).toEqual(one);
    expect(await run(3)).toEqual(one);
  });

  it('serves the adapter that was published while the next one is trained', async () => {
    const model = await openAdapted(await writeModel(REGULAR), { threads: 2 });
    const asked = request(Int32Array.of(1, 2, 3), { maxTokens: 30 });
    const before = await model.sample(asked);
    await steps(model, 2);
    expect(await model.sample(asked)).toEqual(before);
    await model.publish(2);
    expect((await model.sample(asked)).logprobs).not.toEqual(before.logprobs);
  });
});

describe('the reference of an adapted model', () => {
  it('is the base without the adapter, whatever was trained', async () => {
    const dir = await writeModel(REGULAR);
    const samples = mixedSamples(REGULAR);
    await using base = await EmbeddedModel.open({ dir, threads: 1, lora: LORA });
    const wanted = await base.forward(samples);
    await expect(base.forward(samples, 'reference')).rejects.toMatchObject({ code: 'TRAINER_FAILED' });
    await base.freezeReference();
    await steps(base, 3);
    expect(await base.forward(samples, 'reference')).toEqual(wanted);
    expect(await base.forward(samples)).not.toEqual(wanted);
  });

  it('is the adapter that the run began with, where it began with one', async () => {
    const { model: first, dir } = await savedAdapter(await writeModel(REGULAR));
    const samples = mixedSamples(REGULAR);
    const wanted = await first.forward(samples);
    await using model = await EmbeddedModel.open({ dir, threads: 1 });
    await model.freezeReference();
    await steps(model, 2);
    expect(await model.forward(samples, 'reference')).toEqual(wanted);
    expect(await model.forward(samples)).not.toEqual(wanted);
  });
});

describe('a checkpoint of an adapter', () => {
  it('is a PEFT folder with every module named', async () => {
    const base = await writeModel(REGULAR);
    const model = await openAdapted(base, { lora: FEW });
    await steps(model, 1);
    const dir = temporaryFolder();
    await model.save(dir);
    expect((await readdir(dir)).toSorted()).toEqual([
      'adapter_config.json',
      'adapter_model.safetensors',
      'config.json',
      'optimizer.safetensors',
    ]);
    const config = JSON.parse(await readFile(join(dir, 'adapter_config.json'), 'utf8')) as Record<string, unknown>;
    expect(config).toMatchObject({
      ...{ peft_type: 'LORA', task_type: 'CAUSAL_LM', bias: 'none', r: 8, lora_alpha: 5, lora_dropout: 0 },
      ...{ fan_in_fan_out: false, inference_mode: true, base_model_name_or_path: base },
    });
    expect((config['target_modules'] as string[]).toSorted()).toEqual([...FEW.targets].toSorted());
    const { tensors, metadata } = await readSafetensors(join(dir, 'adapter_model.safetensors'));
    expect(metadata).toMatchObject({
      format: 'pt',
      kernels: model.variant,
      base: expect.stringMatching(/^[0-9a-f]{16,}/) as string,
    });
    const layout = planLora(REGULAR, FEW).tensors;
    expect([...tensors.keys()].toSorted()).toEqual(layout.map(({ name }) => name).toSorted());
    for (const { name, shape, offset, length } of layout) {
      expect(tensors.get(name)).toMatchObject({ shape, data: model.weights().slice(offset, offset + length) });
    }
  });

  it.each(Object.entries(SHAPES))(
    'brings back adapter and optimizer byte by byte: the next steps are the same (%s)',
    async (_, config) => {
      const model = await openAdapted(await writeModel(config));
      await steps(model, 2);
      const dir = temporaryFolder();
      await model.save(dir);
      const saved = model.weights().slice();
      await steps(model, 2);

      await using again = await EmbeddedModel.open({ dir, threads: 1 });
      expect(again.config).toEqual(config);
      expect(again.weights()).toEqual(saved);
      await again.load(dir);
      await steps(again, 2);
      expect(again.weights()).toEqual(model.weights());
      await model.load(dir);
      await steps(model, 2);
      expect(model.weights()).toEqual(again.weights());
      await Promise.all([model.publish(5), again.publish(5)]);
      const asked = request(randomTokens(config, 30, 1), { maxTokens: 30 });
      expect(await again.sample(asked)).toEqual(await model.sample(asked));
    },
  );

  it('without optimizer state is one to sample from', async () => {
    const model = await openAdapted(await writeModel(REGULAR));
    const dir = temporaryFolder();
    await model.save(dir, { optimizer: false });
    expect(await readdir(dir)).not.toContain('optimizer.safetensors');
    await using again = await EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    const asked = request(Int32Array.of(1, 2, 3), { maxTokens: 30 });
    expect((await again.sample(asked)).logprobs).toEqual((await model.sample(asked)).logprobs);
  });

  it('may be left for the base itself, over which an adapter then starts afresh', async () => {
    const dir = await writeModel(REGULAR);
    await using model = await EmbeddedModel.open({ dir, threads: 1, lora: LORA, seed: 9 });
    const start = model.weights().slice();
    await steps(model, 1);
    const once = model.weights().slice();
    await steps(model, 1);
    await model.load(dir);
    expect(model.weights()).toEqual(start);
    await steps(model, 1);
    expect(model.weights()).toEqual(once);
  });

  it('is refused when its base changed, is gone, or is another model', async () => {
    const base = await writeModel(REGULAR);
    const { dir } = await savedAdapter(base);
    const other = await writeModel(REGULAR, strongWeights(REGULAR, 4));
    await cp(join(other, 'model.safetensors'), join(base, 'model.safetensors'));
    await expect(EmbeddedModel.open({ dir, threads: 1 })).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
    await rm(join(base, 'model.safetensors'));
    await expect(EmbeddedModel.open({ dir, threads: 1 })).rejects.toThrow(base);
  });

  it('is refused by a model of another rank or shape, which stays as it was', async () => {
    const base = await writeModel(REGULAR);
    const { dir } = await savedAdapter(base);
    const few = await openAdapted(base, { lora: FEW });
    const kept = few.weights().slice();
    await expect(few.load(dir)).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
    expect(few.weights()).toEqual(kept);
    await using all = await EmbeddedModel.open({ dir: base, threads: 1 });
    await expect(all.load(dir)).rejects.toThrow();
  });

  it.each([
    ['another kind of adapter', { peft_type: 'IA3' }, /IA3/],
    ['rank-stabilised scaling', { use_rslora: true }, /use_rslora/],
    ['decomposed weights', { use_dora: true }, /use_dora/],
    ['biases', { bias: 'all' }, /bias/],
    ['modules trained as a whole', { modules_to_save: ['lm_head'] }, /modules_to_save/],
    ['a rank of its own for some modules', { rank_pattern: { q_proj: 2 } }, /rank_pattern/],
    ['an alpha of its own for some modules', { alpha_pattern: { q_proj: 2 } }, /alpha_pattern/],
    ['transposed weights', { fan_in_fan_out: true }, /fan_in_fan_out/],
    ['a module that cannot be adapted', { target_modules: ['q_proj', 'lm_head'] }, /lm_head/],
    ['a beginning that it leaves alone', { alora_invocation_tokens: [5] }, /alora_invocation_tokens/],
    ['only some layers', { layers_to_transform: [0] }, /layers_to_transform/],
  ])('is refused by name when it has %s', async (_, changes, message) => {
    const { dir } = await savedAdapter(await writeModel(REGULAR));
    const path = join(dir, 'adapter_config.json');
    const config = JSON.parse(await readFile(path, 'utf8')) as object;
    await writeFile(path, JSON.stringify({ ...config, ...changes }));
    await expect(EmbeddedModel.open({ dir, threads: 1 })).rejects.toThrow(message);
  });
});

describe('a model opened for sampling', () => {
  it('samples as one for training does, and says of each training call what to do', async () => {
    const dir = await writeModel(REGULAR);
    await using model = await EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    await using trainable = await EmbeddedModel.open({ dir, threads: 1 });
    const asked = askedOf(REGULAR);
    const wanted = await Promise.all(asked.map((one) => trainable.sample(one)));
    expect(await Promise.all(asked.map((one) => model.sample(one)))).toEqual(wanted);
    const samples = mixedSamples(REGULAR);
    const calls = {
      forward: () => model.forward(samples),
      forwardBackward: () => model.forwardBackward(samples, crossEntropy()),
      optimStep: () => model.optimStep(ADAM),
      freezeReference: () => model.freezeReference(),
      dropGradient: () => model.dropGradient(),
      save: async () => model.save(temporaryFolder()),
    };
    for (const [name, call] of Object.entries(calls)) {
      await expect(call(), name).rejects.toThrow(refusal('TRAINER_FAILED', /sampling/));
    }
    expect(await model.sample(asked[0]!)).toEqual(wanted[0]);
  });

  it('shows no other memory as its trained weights or gradient', async () => {
    const base = await writeModel(REGULAR);
    await using bare = await EmbeddedModel.open({ dir: base, threads: 1, use: 'sampling' });
    expect(bare.weights()).toHaveLength(0);
    const { model: trained, dir } = await savedAdapter(base);
    await using adapted = await EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    expect(adapted.weights()).toEqual(trained.weights());
    expect(adapted.gradient().every((g) => g === 0)).toBe(true);
  });
});
