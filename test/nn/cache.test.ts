/**
 * The key/value cache over long sequences: pages filled, shared, branched off and given back must never change a result.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { SampleRequest, SampleResult } from '../../src/core/policy.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import type { LlamaConfig } from '../../src/engines/embedded/model/config.ts';
import { type Slot, SlotTable } from '../../src/engines/embedded/slots.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { openAdapted, writeModel } from '../fixtures/nn/adapters.ts';
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
    for (const contextLength of [291, 300, 320, 333]) {
      const model = await openModel({ ...REGULAR, contextLength });
      const asked = request(randomTokens(REGULAR, 290, 1), { maxTokens: 500 });
      const result = await model.sample(asked);
      expect([result.ids.length, result.stopReason]).toEqual([contextLength - 290, 'length']);
      expect(await model.forward([scored(asked, result)])).toEqual([result.logprobs]);
      const full = model.sample(request(randomTokens(REGULAR, contextLength, 1)));
      const message = `the prompt has ${contextLength} tokens, the context is ${contextLength}`;
      await expect(full).rejects.toMatchObject({ code: 'CONTEXT_OVERFLOW', message });
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
    const saved = temporaryFolder();
    await model.save(saved);
    const json = JSON.parse(await readFile(join(saved, 'config.json'), 'utf8')) as Record<string, unknown>;
    expect(json['max_position_embeddings']).toBe(700);
  });

  it.each([0, -1, 1.5, 701, Number.NaN])('of %d is refused', async (context) => {
    const dir = await writeModel(LONG);
    await expect(EmbeddedModel.open({ dir, threads: 1, context })).rejects.toThrow(/context/);
  });
});

describe('the pages of a cache', () => {
  const drawnStep = fc.oneof(
    fc.record({
      kind: fc.constant('start' as const),
      stem: fc.integer({ min: 0, max: 1 }),
      stemLength: fc.integer({ min: 0, max: 40 }),
      own: fc.array(fc.integer({ min: 100, max: 101 }), { minLength: 1, maxLength: 6 }),
      answer: fc.integer({ min: 1, max: 20 }),
    }),
    fc.record({ kind: fc.constant('advance' as const), which: fc.nat(5), count: fc.integer({ min: 1, max: 15 }) }),
    fc.record({ kind: fc.constant('end' as const), which: fc.nat(5) }),
    fc.record({ kind: fc.constant('forget' as const), which: fc.nat(5) }),
  );

  it('hold each sequence’s own tokens, whatever is shared, copied, written and given back', () => {
    fc.assert(
      fc.property(fc.array(drawnStep, { maxLength: 80 }), (drawn) => {
        const table = new SlotTable({ slots: 5, pages: 30, page: 4 });
        /** What the cache would hold: the token of each position of each page. */
        const memory = new Int32Array(30 * 4).fill(-1);
        const running: { readonly slot: Slot; readonly end: number }[] = [];
        const known = new Set<Slot>();
        const held = (slot: Slot) => slot.tokens.slice(0, slot.cached).map((_, i) => memory[slot.pages[i >> 2]! * 4 + (i & 3)]);
        for (const step of drawn) {
          if (step.kind === 'start') {
            const prompt = [...Array.from({ length: step.stemLength }, (_, i) => step.stem * 50 + (i % 50)), ...step.own];
            const end = prompt.length + step.answer;
            const placed = table.place(prompt, end);
            if (placed.kind !== 'take') continue;
            const { slot, copy } = placed;
            if (copy) memory.copyWithin(copy.to * 4, copy.from * 4, copy.from * 4 + copy.count);
            known.add(slot);
            running.push({ slot, end });
          } else if (step.kind === 'advance' && running.length > 0) {
            const { slot, end } = running[step.which % running.length]!;
            for (let i = 0; i < step.count && slot.cached < end; i++) {
              if (slot.cached === slot.tokens.length) slot.tokens.push(200 + (slot.cached % 2));
              memory[slot.pages[slot.cached >> 2]! * 4 + (slot.cached & 3)] = slot.tokens[slot.cached]!;
              slot.cached++;
            }
          } else if (step.kind === 'end' && running.length > 0) {
            table.release(running.splice(step.which % running.length, 1)[0]!.slot);
          } else if (step.kind === 'forget' && running.length === 0) {
            table.forget();
          }
          for (const slot of known) expect(held(slot)).toEqual(slot.tokens.slice(0, slot.cached));
          for (const { slot, end } of running) expect(slot.pages.length).toBeGreaterThanOrEqual(Math.ceil(end / 4));
        }
        // All pages come back: a sequence over all of them finds room.
        for (const { slot } of running) table.release(slot);
        expect(table.place([999], 30 * 4).kind).toBe('take');
      }),
      { numRuns: 500 },
    );
  });
});
