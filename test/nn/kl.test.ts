/** The KL penalty on its whole way: frozen reference weights → log-probabilities → samples → loss → gradient. */
import { describe, expect, it } from 'vitest';
import { EmbeddedModel } from '../../src/nn/embedded-model.ts';
import { attachReference, type Batch } from '../../src/trainer/batch.ts';
import { ppo, withKl } from '../../src/trainer/losses.ts';
import { mixedSamples, REGULAR, strongWeights } from '../fixtures/nn/models.ts';

const ADAM = { learningRate: 0.01, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 };
const onlyKl = withKl(ppo({ clipLow: 0.2, clipHigh: 0.28 }), 1);

/** Without advantages, so that the KL penalty is all there is. */
function batchWithoutAdvantages(): Batch {
  const samples = mixedSamples(REGULAR).map(({ reference: _, ...sample }) => {
    return { ...sample, advantages: sample.advantages.map(() => 0) };
  });
  return { samples, rolloutIds: samples.map(({ rolloutId }) => rolloutId), trainedTokens: 0 };
}

describe('a KL penalty to the frozen reference', () => {
  it('is zero before the first update, positive after one that moved away, and pulls back', async () => {
    await using model = await EmbeddedModel.create({ config: REGULAR, seed: 3, threads: 1 });
    model.weights().set(strongWeights(REGULAR, 3));
    await model.freezeReference();
    const kl = async () => {
      const batch = batchWithoutAdvantages();
      const { samples } = attachReference(batch, await model.forward(batch.samples, 'reference'));
      const { metrics, loss } = await model.forwardBackward(samples, onlyKl);
      return { sum: metrics.kl ?? Number.NaN, loss };
    };

    expect(await kl()).toEqual({ sum: 0, loss: 0 });
    expect(await model.optimStep(ADAM)).toEqual({ gradNorm: 0 });

    await model.forwardBackward(mixedSamples(REGULAR), ppo({ clipLow: 10, clipHigh: 10 }));
    await model.optimStep(ADAM);
    const moved = await kl();
    expect(moved.sum).toBeGreaterThan(0.1);
    for (let update = 0; update < 20; update++) {
      await model.optimStep({ ...ADAM, learningRate: 0.002 });
      await kl();
    }
    expect((await kl()).sum).toBeLessThan(moved.sum / 2);
  });
});
