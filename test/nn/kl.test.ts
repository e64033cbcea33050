/** The KL penalty on its whole way: frozen reference weights → log-probabilities → samples → loss → gradient. */
import { describe, expect, it } from 'vitest';
import { attachReference, type Batch } from '../../src/training/batch.ts';
import { ppo } from '../../src/training/losses.ts';
import { withKl } from '../../src/training/penalties.ts';
import { ADAM as DECAYING, mixedSamples, openModel, REGULAR } from '../fixtures/nn/models.ts';

const ADAM = { ...DECAYING, weightDecay: 0, maxGradNorm: 0 };
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
    const model = await openModel();
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
