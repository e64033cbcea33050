/**
 * Publishing while requests run: each result must be, to the bit, what a model gives that serves only its version, although both versions
 * share threads, slots and pages, and their prompts begin alike.
 */
import { describe, expect, it } from 'vitest';
import type { SampleResult } from '../../src/core/policy.ts';
import type { EmbeddedModel, UseOptions } from '../../src/engines/embedded/embedded-model.ts';
import { LORA, openAdapted, strongAdapter, writeModel } from '../fixtures/nn/adapters.ts';
import { openModel, REGULAR, randomTokens, request, strongWeights } from '../fixtures/nn/models.ts';

const LONG = { ...REGULAR, contextLength: 1024 };
type Threads = Pick<UseOptions, 'threads' | 'overlap'>;
const OVERLAP: Threads = { overlap: true, threads: 1 };
const PROMPT = randomTokens(LONG, 70, 1);
const long = (seed: number) => request(PROMPT, { seed, maxTokens: 900 });
const short = (seed: number) => request(PROMPT, { seed, maxTokens: 30 });

interface Kind {
  readonly open: (options: Threads) => Promise<EmbeddedModel>;
  /** What is trained, of another version. */
  readonly weights: (version: number) => Float32Array;
}

const KINDS: Readonly<Record<string, Kind>> = {
  'all parameters': { open: (options) => openModel(LONG, options), weights: (version) => strongWeights(LONG, 2 + version) },
  adapters: {
    open: async (options) => openAdapted(await writeModel(LONG), options),
    weights: (version) => strongAdapter(LONG, LORA, 2 + version),
  },
};

/** A running request, once it has drawn its first token. */
async function begun(model: EmbeddedModel, seed: number): Promise<{ readonly result: Promise<SampleResult> }> {
  const first = Promise.withResolvers<void>();
  const result = model.sample(long(seed), undefined, () => void first.resolve() as undefined);
  await first.promise;
  return { result };
}

describe.each(Object.entries(KINDS))('publishing with overlap (%s)', (_, { open, weights }) => {
  it('waits for no call; each keeps the weights it began with, and reads nothing that others computed', async () => {
    const alone = await open({ threads: 1 });
    const wanted: SampleResult[][] = [];
    for (const version of [1, 2]) {
      alone.weights().set(weights(version));
      await alone.publish(version);
      wanted.push(await Promise.all([long(1), long(2), short(3), short(4)].map((one) => alone.sample(one))));
    }
    const model = await open(OVERLAP);
    const [idle, ...running] = [await model.sample(short(3)), await begun(model, 1), await begun(model, 2)];
    expect(idle).toEqual(wanted[0]![2]);
    const order: string[] = [];
    const results = Promise.all(running.map(({ result }) => result));
    const ended = results.then(() => order.push('ended'));
    model.weights().set(weights(2));
    await model.publish(2);
    order.push('published');
    const next = await Promise.all([short(3), short(4)].map((one) => model.sample(one)));
    order.push('next');
    expect(next).toEqual(wanted[1]!.slice(2));
    expect(await results).toEqual(wanted[0]!.slice(0, 2));
    await ended;
    expect(order).toEqual(['published', 'next', 'ended']);
    // The slots of both versions are free again: of the second, for reuse.
    expect(await Promise.all([long(1), long(2), short(3), short(4)].map((one) => model.sample(one)))).toEqual(wanted[1]);
  });

  it('serves two versions at most: a third waits for the calls of the first, and the second is served meanwhile', async () => {
    const model = await open(OVERLAP);
    const order: string[] = [];
    const first = await begun(model, 1);
    const ended = first.result.then(({ policyVersion }) => order.push(`ended ${policyVersion}`));
    await model.publish(2);
    const third = model.publish(3).then(() => order.push('published 3'));
    const { policyVersion, ids } = await model.sample(short(5));
    order.push(`sampled ${policyVersion}`);
    await Promise.all([ended, third]);
    expect(order).toEqual(['sampled 2', 'ended 1', 'published 3']);
    expect(ids.length).toBeLessThanOrEqual(30);
    expect((await model.sample(short(5))).policyVersion).toBe(3);
  });
});
