/**
 * Tokens while they are sampled: what the stream gives, in which order, and when it ends.
 */
import { describe, expect, it } from 'vitest';
import type { SampleRequest, SampleResult } from '../../src/core/policy.ts';
import { DecodePass, packServed } from '../../src/engines/embedded/decode-pass.ts';
import type { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { planLayout } from '../../src/engines/embedded/model/config.ts';
import { SampleLoop } from '../../src/engines/embedded/sample-loop.ts';
import { plainKernels } from '../fixtures/nn/kernels.ts';
import { openModel, REGULAR, randomTokens, request, strongWeights } from '../fixtures/nn/models.ts';

const LONG = { ...REGULAR, contextLength: 4096 };

/** The result, and what was streamed before it came. */
async function streamed(model: EmbeddedModel, asked: SampleRequest) {
  const ids: number[] = [];
  const logprobs: number[] = [];
  const result = await model.sample(asked, undefined, (newIds, newLogprobs) => {
    ids.push(...newIds);
    logprobs.push(...newLogprobs);
  });
  return { result, ids: Int32Array.from(ids), logprobs: Float32Array.from(logprobs) };
}

describe('streaming', () => {
  it('gives each call its own tokens, all before its result, and changes no result', async () => {
    const model = await openModel(REGULAR, { threads: 2 });
    const requests = Array.from({ length: 50 }, (_, i) =>
      request(randomTokens(REGULAR, 1 + (i % 20), i), { seed: i, maxTokens: 1 + (i % 30), ...(i % 3 ? {} : { topK: 4 }) }),
    );
    const plain = await Promise.all(requests.map((one) => model.sample(one)));
    const all = await Promise.all(
      requests.map((one, i) => (i % 4 === 0 ? model.sample(one).then((result) => ({ result })) : streamed(model, one))),
    );
    all.forEach((one, i) => {
      expect(one.result).toEqual(plain[i]);
      if ('ids' in one) expect(one).toMatchObject({ ids: plain[i]!.ids, logprobs: plain[i]!.logprobs });
    });
  });

  it('ends where the listener has enough: the result is what it kept, of the version that sampled it', async () => {
    const model = await openModel(LONG, { threads: 2 });
    const asked = request(Int32Array.of(1), { maxTokens: 500 });
    const whole = await model.sample(asked);
    let heard = 0;
    const cut = await model.sample(asked, undefined, (ids) => {
      heard += ids.length;
      return heard < 20 ? undefined : { keep: ids.length - (heard - 20) };
    });
    expect(cut).toEqual({ ...whole, ids: whole.ids.slice(0, 20), logprobs: whole.logprobs.slice(0, 20), stopReason: 'stop' });
    expect(heard).toBe(20);
    await model.publish(2);
    expect((await model.sample(asked)).ids).toEqual(whole.ids);
  });

  it('ends with a cancellation', async () => {
    const model = await openModel(LONG);
    const stop = new AbortController();
    let count = 0;
    const cancelled = model.sample(request(Int32Array.of(1), { maxTokens: 4000 }), stop.signal, () => {
      count++;
      if (count === 5) stop.abort();
    });
    await expect(cancelled).rejects.toMatchObject({ code: 'CANCELLED' });
    await model.sample(request(Int32Array.of(2), { maxTokens: 60 }));
    expect(count).toBe(5);
  });

  it('fails the call whose callback throws, and no other', async () => {
    const model = await openModel();
    const asked = request(Int32Array.of(1), { maxTokens: 40 });
    const wanted = await model.sample(asked);
    const failing = model.sample(asked, undefined, () => {
      throw new Error('the reader is gone');
    });
    const [failed, other] = await Promise.allSettled([failing, streamed(model, asked)]);
    expect(failed).toMatchObject({ reason: { code: 'ENGINE_FAILED', message: 'onTokens threw: the reader is gone' } });
    expect(other).toMatchObject({ status: 'fulfilled', value: { result: wanted, ids: wanted.ids } });
  });
});

describe('publishing', () => {
  it('waits for what runs and for nothing that comes meanwhile', async () => {
    const model = await openModel(LONG, { threads: 2 });
    const order: string[] = [];
    const late: Promise<SampleResult>[] = [];
    let publishing: Promise<void> | undefined;
    const running = model.sample(request(Int32Array.of(1), { maxTokens: 300 }), undefined, () => {
      publishing ??= model.publish(2).then(() => {
        order.push('published');
      });
      // One more request with every token: admitted, they would keep the publication waiting for ever.
      late.push(model.sample(request(Int32Array.of(2), { seed: late.length, maxTokens: 300 })));
    });
    expect((await running).policyVersion).toBe(1);
    order.push('finished');
    await publishing;
    expect(order).toEqual(['finished', 'published']);
    const results = await Promise.all(late);
    expect(results).toHaveLength(300);
    // The first may have reached its thread before the publication did.
    expect(results.slice(1).every(({ policyVersion }) => policyVersion === 2)).toBe(true);
  });
});

describe('a sampling loop', () => {
  /** Over a model that gives nothing finite after the token `spoiled`. */
  function passOver(spoiled?: number) {
    // Whose embedding is not its output head too.
    const LONG = { ...REGULAR, contextLength: 4096, tied: false };
    const layout = planLayout(LONG);
    const { arena, memory, kernels } = plainKernels(LONG, undefined);
    const { decode } = arena.workers[0]!;
    new Float32Array(memory.buffer, arena.parameters, layout.length).set(strongWeights(LONG, 3));
    packServed({ kernels, config: LONG, arena }, layout);
    if (spoiled !== undefined) {
      const row = arena.areas[0]!.served.embedding! + spoiled * LONG.hiddenSize * 4;
      new Float32Array(memory.buffer, row, LONG.hiddenSize).fill(Number.NaN);
    }
    const shared = { kernels, buffer: memory.buffer, config: LONG, layout, lora: undefined, arena };
    const pass = new DecodePass({ ...shared, regions: decode });
    const cache = { slots: arena.slotCount, pages: arena.pageCount, page: arena.page };
    return { pass, cache, contextLength: LONG.contextLength };
  }

  it('fails only the sequence whose log-probability is not finite, and shows nothing of it', async () => {
    const seen: (readonly [string, number])[] = [];
    await new Promise<void>((idle) => {
      const loop = new SampleLoop({
        ...passOver(1),
        done: (id) => {
          seen.push(['done', id]);
          loop.drain(idle);
        },
        failed: (id, { code }) => seen.push([code ?? '', id]),
        drew: ({ ids }) => seen.push(...ids.map((id) => ['drew', id] as const)),
      });
      loop.submit(7, request(Int32Array.of(1), { maxTokens: 1 }), true);
      loop.submit(8, request(Int32Array.of(2), { maxTokens: 1 }), true);
      loop.serve(0);
    });
    expect(seen).toEqual([
      ['ENGINE_FAILED', 7],
      ['drew', 8],
      ['done', 8],
    ]);
  });

  it('computes no further token of a cancelled sequence, beginning with the next pass', async () => {
    const options = passOver();
    const passes: (readonly number[])[] = [];
    const finished = await new Promise<number>((done, failed) => {
      const loop = new SampleLoop({
        ...options,
        done,
        failed,
        drew: ({ ids }) => {
          passes.push(ids);
          if (passes.length === 10) setTimeout(() => loop.cancel(1));
        },
      });
      loop.submit(1, request(Int32Array.of(1), { maxTokens: 4000 }), true);
      loop.submit(2, request(Int32Array.of(2), { maxTokens: 400 }), true);
      loop.serve(0);
    });
    expect(finished).toBe(2);
    const last = passes.findLastIndex((ids) => ids.includes(1));
    expect(last).toBeLessThan(300);
    expect(passes).toHaveLength(400);
    expect(passes.slice(last + 1).every((ids) => ids.join() === '2')).toBe(true);
  });
});
