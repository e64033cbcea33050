import { once } from 'node:events';
import type { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { crossEntropy } from '../../src/training/losses.ts';
import { mixedSamples, REGULAR, request } from '../fixtures/nn/models.ts';

async function openWithWorkers(): Promise<{ model: EmbeddedModel; workers: Worker[] }> {
  const workers: Worker[] = [];
  const collect = (worker: Worker) => workers.push(worker);
  process.on('worker', collect);
  const model = await EmbeddedModel.create({ config: { ...REGULAR, contextLength: 4096 }, seed: 1, threads: 2 });
  process.off('worker', collect);
  return { model, workers };
}

describe('worker threads', () => {
  it('fail all calls in flight, and all later ones, when one of them dies', async () => {
    const { model, workers } = await openWithWorkers();
    await using _ = model;
    const sampling = Array.from({ length: 10 }, (_, seed) => model.sample(request(Int32Array.of(1), { seed, maxTokens: 4000 })));
    const sampled = Promise.allSettled(sampling);
    const publishing = model.publish(1).catch((error: unknown) => error);
    await workers[1]!.terminate();
    for (const result of await sampled) expect(result).toMatchObject({ status: 'rejected', reason: { code: 'ENGINE_FAILED' } });
    expect(await publishing).toMatchObject({ code: 'ENGINE_FAILED' });
    await expect(model.sample(request(Int32Array.of(1)))).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
    await expect(model.forwardBackward(mixedSamples(REGULAR), crossEntropy())).rejects.toMatchObject({ code: 'TRAINER_FAILED' });
  });

  it('end with close(), which rejects what is in flight and may be called twice', async () => {
    const { model, workers } = await openWithWorkers();
    const exits = workers.map((worker) => once(worker, 'exit'));
    const sampling = model.sample(request(Int32Array.of(1), { maxTokens: 4000 }));
    const rejected = expect(sampling).rejects.toMatchObject({ code: 'ENGINE_FAILED', message: 'the model was closed' });
    await model.close();
    await model.close();
    await rejected;
    expect(await Promise.all(exits)).toHaveLength(2);
  });

  it('are refused in numbers that make no sense', async () => {
    await expect(EmbeddedModel.create({ config: REGULAR, seed: 1, threads: 0 })).rejects.toMatchObject({ code: 'USAGE' });
  });
});
