import { describe, expect, it } from 'vitest';
import type { SampleRequest, SampleResult } from '../../src/core/policy.ts';
import type { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { crossEntropy } from '../../src/training/losses.ts';
import { ADAM, openModel, REGULAR, randomSample, randomTokens, request, SHAPES, scored } from '../fixtures/nn/models.ts';
import { ReferenceModel } from '../fixtures/nn/reference.ts';

describe('sampling', () => {
  describe.each(['relaxed', 'plain'] as const)('with the %s kernels', (variant) => {
    it.each(Object.entries(SHAPES))(
      'gives the trainer’s log-probabilities bit for bit, and the reference’s within rounding (%s)',
      async (_, config) => {
        const model = await openModel(config, { variant });
        const reference = new ReferenceModel(config, Float64Array.from(model.weights()));
        for (const temperature of [1, 0.7]) {
          for (const length of [1, 2, 33, config.contextLength - 5]) {
            const promptIds = randomTokens(config, length, length);
            const asked = request(promptIds, { temperature, maxTokens: 40 });
            const result = await model.sample(asked);
            const sample = scored(asked, result);
            const [trained] = await model.forward([sample]);
            const exact = reference.logprobs(sample.tokens, temperature).subarray(length);
            expect(trained).toEqual(result.logprobs);
            result.logprobs.forEach((logprob, i) => {
              expect(Math.abs(logprob - exact[i]!)).toBeLessThan(1e-5);
            });
          }
        }
      },
    );
  });

  it('does not depend on batch size, slots, prefix reuse or threads', async () => {
    const shared = randomTokens(REGULAR, 40, 1);
    const requests = Array.from({ length: 64 }, (_, i): SampleRequest => {
      const own = randomTokens(REGULAR, 1 + (i % 9), i);
      const promptIds = i % 3 === 0 ? own : Int32Array.of(...shared.subarray(0, 20 + (i % 20)), ...own);
      const truncation = i % 4 === 0 ? { topK: 5, topP: 0.9 } : {};
      return request(promptIds, {
        seed: i,
        temperature: i % 5 === 0 ? 0 : 0.9,
        maxTokens: 3 + (i % 11),
        affinity: `g${i % 6}`,
        ...truncation,
      });
    });
    const inBatches = async (model: EmbeddedModel, size: number) => {
      const results: SampleResult[] = [];
      for (let i = 0; i < requests.length; i += size) {
        results.push(...(await Promise.all(requests.slice(i, i + size).map((r) => model.sample(r)))));
      }
      return results;
    };
    const alone: SampleResult[] = [];
    const model = await openModel();
    for (const one of requests) {
      // Publishing drops every cache: nothing is reused.
      await model.publish(1);
      alone.push(await model.sample(one));
    }
    const two = await openModel(REGULAR, { threads: 2 });
    for (const size of [1, 7, 64]) {
      expect(await inBatches(model, size)).toEqual(alone);
      await two.publish(1);
      expect(await inBatches(two, size)).toEqual(alone);
    }
  });

  it('continues a conversation over its cache as if it were computed anew', async () => {
    const model = await openModel();
    let tokens = randomTokens(REGULAR, 10, 4);
    for (let turn = 0; turn < 4; turn++) {
      const asked = request(tokens, { seed: turn, maxTokens: 6, affinity: 'talk' });
      const warm = await model.sample(asked);
      await model.sample(request(randomTokens(REGULAR, 30, turn + 50)));
      const cold = await openModel();
      expect(await cold.sample(asked)).toEqual(warm);
      tokens = Int32Array.of(...tokens, ...warm.ids, ...randomTokens(REGULAR, 7, turn + 90));
    }
  });

  it('draws tokens as often as their probabilities say', async () => {
    const model = await openModel();
    const promptIds = randomTokens(REGULAR, 6, 9);
    const draws = 4000;
    const drawn = await Promise.all(
      Array.from({ length: draws }, (_, seed) => model.sample(request(promptIds, { seed, maxTokens: 1 }))),
    );
    const reference = new ReferenceModel(REGULAR, Float64Array.from(model.weights()));
    let chiSquare = 0;
    for (let token = 0; token < REGULAR.vocabSize; token++) {
      const wanted = draws * Math.exp(reference.logprobs(Int32Array.of(...promptIds, token), 1).at(-1)!);
      const found = drawn.filter(({ ids }) => ids[0] === token).length;
      chiSquare += (found - wanted) ** 2 / wanted;
    }
    // 47 degrees of freedom: 93 is exceeded once in 10,000 times; seeds are fixed.
    expect(chiSquare).toBeLessThan(93);
  });

  it('takes the most likely token at temperature 0, with its log-probability at temperature 1', async () => {
    const model = await openModel();
    const promptIds = randomTokens(REGULAR, 6, 9);
    const first = await model.sample(request(promptIds, { temperature: 0, seed: 1, topK: 3, topP: 0.5 }));
    expect(await model.sample(request(promptIds, { temperature: 0, seed: 2 }))).toEqual(first);
    const [trained] = await model.forward([scored(request(promptIds), first)]);
    first.logprobs.forEach((logprob, i) => {
      expect(logprob).toBeCloseTo(trained![i]!, 5);
    });
    const sampled = await Promise.all(
      Array.from({ length: 50 }, (_, seed) => model.sample(request(promptIds, { seed, maxTokens: 1 }))),
    );
    for (const { logprobs } of sampled) expect(logprobs[0]).toBeLessThanOrEqual(first.logprobs[0]! + 1e-6);
  });

  it('ends with the stop token, which is part of the result', async () => {
    const model = await openModel();
    const promptIds = randomTokens(REGULAR, 6, 9);
    const free = await model.sample(request(promptIds, { maxTokens: 20 }));
    const stop = free.ids[7]!;
    const stopped = await model.sample(request(promptIds, { maxTokens: 20, stopIds: [stop] }));
    const end = free.ids.indexOf(stop) + 1;
    expect(stopped).toEqual({ ...free, ids: free.ids.slice(0, end), logprobs: free.logprobs.slice(0, end), stopReason: 'stop' });
    expect(free.stopReason).toBe('length');
  });

  it.each([
    ['an empty prompt', request(new Int32Array(0))],
    ['an id outside the vocabulary', request(Int32Array.of(48))],
    ['a negative id', request(Int32Array.of(-1))],
    ['a negative temperature', request(Int32Array.of(1), { temperature: -1 })],
    ['a temperature that is not a number', request(Int32Array.of(1), { temperature: Number.NaN })],
    ['a temperature too small for float32', request(Int32Array.of(1), { temperature: 1e-9 })],
    ['top-p 0', request(Int32Array.of(1), { topP: 0 })],
    ['no tokens at all', request(Int32Array.of(1), { maxTokens: 0 })],
    ['a fractional seed', request(Int32Array.of(1), { seed: 0.5 })],
  ])('refuses %s', async (_, asked) => {
    const model = await openModel();
    await expect(model.sample(asked)).rejects.toMatchObject({ code: 'REQUEST_INVALID' });
  });

  it('fails when a log-probability is not finite, streams nothing of it, and goes on under better weights', async () => {
    const model = await openModel();
    const [good, sample] = [model.weights().slice(), randomSample(REGULAR, 40, 1)];
    const asked = [{}, { temperature: 0 }, { topK: 5 }].map((settings) => request(Int32Array.of(1, 2), settings));
    const before = await Promise.all(asked.map((one) => model.sample(one)));
    await model.forwardBackward([sample], crossEntropy());
    await model.optimStep({ ...ADAM, learningRate: 1e12, weightDecay: 0 });
    expect(model.weights().every(Number.isFinite)).toBe(true);
    await model.publish(2);
    const streamed: Int32Array[] = [];
    for (const one of asked) {
      await expect(model.sample(one, undefined, (ids) => void streamed.push(ids) as undefined)).rejects.toMatchObject({
        code: 'ENGINE_FAILED',
        message: 'version 2 gave a token the log-probability NaN, expected a finite number',
        hint: expect.stringContaining('lower the learning rate') as string,
      });
    }
    expect(streamed).toEqual([]);
    model.weights().set(good);
    await model.publish(1);
    expect(await Promise.all(asked.map((one) => model.sample(one)))).toEqual(before);
  });

  it('gives both halves of a 53-bit seed a say', async () => {
    const model = await openModel();
    const ids = async (seed: number) => (await model.sample(request(Int32Array.of(1), { seed, maxTokens: 30 }))).ids;
    expect(await ids(5)).not.toEqual(await ids(5 + 2 ** 40));
    expect(await ids(5)).not.toEqual(await ids(6));
    expect(await ids(-5)).not.toEqual(await ids(5));
  });
});

describe('cancelling', () => {
  it('rejects at once, leaves the others alone and frees the slots', async () => {
    const config = { ...REGULAR, contextLength: 2048 };
    const model = await openModel(config);
    const stop = new AbortController();
    const long = (seed: number, signal?: AbortSignal) =>
      model.sample(request(Int32Array.of(1, 2), { seed, maxTokens: 300 }), signal);
    // With its first token: some of the 400 run by then, and some wait for a slot.
    const kept = model.sample(
      request(Int32Array.of(1, 2), { seed: 1000, maxTokens: 300 }),
      undefined,
      () => void stop.abort() as undefined,
    );
    const cancelled = Array.from({ length: 400 }, (_, i) => long(i, stop.signal).catch((error: unknown) => error));
    for (const error of await Promise.all(cancelled)) expect(error).toMatchObject({ code: 'CANCELLED' });
    const after = await Promise.all(Array.from({ length: 200 }, (_, i) => long(i)));
    expect(after).toHaveLength(200);
    expect(await kept).toEqual(await long(1000));
    await expect(long(1, AbortSignal.abort())).rejects.toMatchObject({ code: 'CANCELLED' });
  });
});

describe('publishing', () => {
  it('lets running requests finish under the old weights and starts the waiting ones under the new', async () => {
    const model = await openModel(REGULAR, { threads: 2 });
    const asked = Array.from({ length: 40 }, (_, i) => request(Int32Array.of(i), { seed: i, maxTokens: 60 }));
    const before = await Promise.all(asked.map((one) => model.sample(one)));
    await model.forwardBackward([randomSample(REGULAR, 40, 1)], crossEntropy());
    await model.optimStep({ ...ADAM, learningRate: 0.1 });
    expect(await Promise.all(asked.map((one) => model.sample(one)))).toEqual(before);

    const running = asked.map((one) => model.sample(one));
    const published = model.publish(2);
    const waiting = asked.map((one) => model.sample(one));
    await published;
    expect(model.policyVersion).toBe(2);
    const after = await Promise.all(asked.map((one) => model.sample(one)));
    expect(after).not.toEqual(before.map((result) => ({ ...result, policyVersion: 2 })));
    // Each result is of one version as a whole, whichever side of the publication it fell on.
    for (const [i, result] of (await Promise.all([...running, ...waiting])).entries()) {
      const expected = result.policyVersion === 1 ? before : after;
      expect(result).toEqual(expected[i % asked.length]);
    }
  });
});
