/**
 * The key/value cache over long sequences: pages filled, shared, branched off and given back must never change a result.
 */

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { SampleRequest, SampleResult } from '../../src/core/policy.ts';
import type { LlamaConfig } from '../../src/nn/config.ts';
import { EmbeddedModel } from '../../src/nn/embedded-model.ts';
import { openAdapted, temporaryFolder, writeModel } from '../fixtures/nn/adapters.ts';
import { openModel, REGULAR, randomSample, randomTokens, relativeError, request, SHAPES, scored } from '../fixtures/nn/models.ts';
import { ReferenceModel } from '../fixtures/nn/reference.ts';

const LONG: LlamaConfig = { ...REGULAR, contextLength: 700 };
/** Around the multiples of everything a page could hold. */
const EDGES = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 384, 511, 512, 513];

/** Each computed with an empty cache. */
async function cold(model: EmbeddedModel, asked: readonly SampleRequest[]): Promise<SampleResult[]> {
  const results: SampleResult[] = [];
  for (const one of asked) {
    await model.publish(1);
    results.push(await model.sample(one));
  }
  return results;
}

describe('a sequence over many pages', () => {
  it.each(Object.entries(SHAPES))(
    'has the trainer’s log-probabilities bit for bit, and the reference’s (%s)',
    async (_, shape) => {
      const config = { ...shape, contextLength: 700 };
      const model = await openModel(config);
      const asked = [300, 600].map((length) =>
        request(randomTokens(config, length, length), { maxTokens: 90, temperature: 0.9 }),
      );
      const results = await Promise.all(asked.map((one) => model.sample(one)));
      const samples = results.map((result, i) => scored(asked[i]!, result));
      expect(await model.forward(samples)).toEqual(results.map(({ logprobs }) => logprobs));
      const reference = new ReferenceModel(config, Float64Array.from(model.weights()));
      const wanted = reference.logprobs(samples[0]!.tokens, 0.9).subarray(300);
      expect(relativeError(results[0]!.logprobs, wanted)).toBeLessThan(1e-5);
    },
  );

  it('ends with the context, wherever its last page does', async () => {
    for (const contextLength of [300, 320, 333]) {
      const model = await openModel({ ...REGULAR, contextLength });
      const asked = request(randomTokens(REGULAR, 290, 1), { maxTokens: 500 });
      const result = await model.sample(asked);
      expect([result.ids.length, result.stopReason]).toEqual([contextLength - 290, 'length']);
      expect(await model.forward([scored(asked, result)])).toEqual([result.logprobs]);
    }
  });
});

describe('a shared prefix', () => {
  /** Prompts that leave one stem at every edge, and go on in their own way. */
  const stem = randomTokens(LONG, 600, 1);
  const branches = EDGES.flatMap((edge) =>
    [0, 1].map((k) => {
      const own = randomTokens(LONG, 1 + ((edge + 7 * k) % 30), edge + k);
      return request(Int32Array.of(...stem.subarray(0, edge), ...own), { seed: edge + k, maxTokens: 5 + ((edge * 3) % 40) });
    }),
  );

  it.each([1, 2, 3])(
    'gives the same whether computed, reused or copied, one after another and at once (%d threads)',
    async (threads) => {
      const model = await openModel(LONG, { threads });
      const wanted = await cold(model, branches);
      await model.publish(1);
      for (const [i, one] of branches.entries()) expect(await model.sample(one)).toEqual(wanted[i]);
      for (const [i, one] of branches.toReversed().entries()) expect(await model.sample(one)).toEqual(wanted.at(-1 - i));
      await model.publish(1);
      expect(await Promise.all(branches.map((one) => model.sample(one)))).toEqual(wanted);
      expect(await Promise.all(branches.toReversed().map((one) => model.sample(one)))).toEqual(wanted.toReversed());
    },
  );

  it('stays whole while who computed it decodes on, or is cancelled', async () => {
    const model = await openModel(LONG);
    const source = request(stem.slice(0, 250), { maxTokens: 300, seed: 9 });
    const wanted = await cold(model, [source, ...branches]);
    await model.publish(1);
    const asked: Promise<SampleResult>[] = [];
    const whole = await model.sample(source, undefined, () => {
      const next = branches[asked.length];
      if (next) asked.push(model.sample(next));
    });
    expect([whole, ...(await Promise.all(asked))]).toEqual(wanted);

    await model.publish(1);
    const stop = new AbortController();
    let heard = 0;
    const cancelled = model.sample(source, stop.signal, () => {
      if (++heard === 40) stop.abort();
    });
    const others = branches.map((one) => model.sample(one));
    await expect(cancelled).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await Promise.all(others)).toEqual(wanted.slice(1));
    expect(await model.sample(source)).toEqual(whole);
  });

  it('gives the same under an adapter', async () => {
    const model = await openAdapted(await writeModel(LONG));
    const few = branches.filter((_, i) => i % 3 === 0);
    const wanted = await cold(model, few);
    expect(await Promise.all(few.map((one) => model.sample(one)))).toEqual(wanted);
    const samples = few.map((one, i) => scored(one, wanted[i]!));
    expect(await model.forward(samples)).toEqual(wanted.map(({ logprobs }) => logprobs));
  });
});

describe('more sequences than the cache holds', () => {
  it('wait for pages, and each ends as it would alone', async () => {
    const config = { ...REGULAR, contextLength: 4096 };
    const model = await openModel(config);
    const asked = Array.from({ length: 150 }, (_, i) =>
      request(randomTokens(config, 20 + ((i * 53) % 400), i), { seed: i, maxTokens: 20 + ((i * 17) % 60) }),
    );
    const all = await Promise.all(asked.map((one) => model.sample(one)));
    for (const i of [0, 33, 77, 149]) {
      await model.publish(1);
      expect(await model.sample(asked[i]!)).toEqual(all[i]);
    }
  });
});

describe('a bounded context', () => {
  it('limits prompts, answers and samples, but not what a checkpoint says of the model', async () => {
    const dir = await writeModel(LONG);
    await using model = await EmbeddedModel.open({ dir, threads: 1, context: 40 });
    expect(model.contextLength).toBe(40);
    const { ids, stopReason } = await model.sample(request(randomTokens(LONG, 30, 1), { maxTokens: 50 }));
    expect([ids.length, stopReason]).toEqual([10, 'length']);
    await expect(model.sample(request(randomTokens(LONG, 40, 1)))).rejects.toMatchObject({
      code: 'CONTEXT_OVERFLOW',
      message: 'the prompt has 40 tokens, the context is 40',
    });
    expect(await model.forward([randomSample(LONG, 40, 1)])).toHaveLength(1);
    await expect(model.forward([randomSample(LONG, 41, 1)])).rejects.toMatchObject({ code: 'SAMPLE_REFUSED' });
    await using whole = await EmbeddedModel.open({ dir, threads: 1 });
    expect(await model.forward([randomSample(LONG, 40, 1)])).toEqual(await whole.forward([randomSample(LONG, 40, 1)]));
    const saved = await temporaryFolder();
    await model.save(saved);
    const json = JSON.parse(await readFile(join(saved, 'config.json'), 'utf8')) as Record<string, unknown>;
    expect(json['max_position_embeddings']).toBe(700);
  });

  it.each([0, -1, 1.5, Number.NaN])('of %d is refused', async (context) => {
    const dir = await writeModel(LONG);
    await expect(EmbeddedModel.open({ dir, threads: 1, context })).rejects.toThrow(/context/);
  });
});
