import { describe, expect, it } from 'vitest';
import type { Loss, LossInput } from '../core/policy.ts';
import { cispo, crossEntropy, dro, importanceSampling, ppo } from './losses.ts';
import { withKl } from './penalties.ts';

/** Ratios inside, below and above the clipping interval, with advantages of both signs, away from the kinks. */
const input = {
  logprobs: Float32Array.of(-1, -0.5, -2.5, -0.4, -3, -1.25, -1.25),
  sampled: Float32Array.of(-1.1, -1.5, -1.5, -1.6, -1.5, -1.25, -1.2),
  advantages: Float32Array.of(1, 0.5, -0.75, -1.5, 2, 0, -1),
  reference: Float32Array.of(-1.3, -0.25, -2.5, -2, -1, -1, -1.5),
};

const clip = { clipLow: 0.2, clipHigh: 0.28 };

/** Loss as a function of float64 log-probabilities: the typed array of the contract would round the small steps away. */
function lossAt(loss: Loss, logprobs: readonly number[]): number {
  return loss.evaluate({ ...input, logprobs: Float64Array.from(logprobs) as unknown as Float32Array }).loss;
}

function differences(loss: Loss): number[] {
  const at = Array.from(input.logprobs);
  const moved = (i: number, by: number) => lossAt(loss, at.with(i, at[i]! + by));
  return at.map((_, i) => (moved(i, 1e-6) - moved(i, -1e-6)) / 2e-6);
}

describe('losses', () => {
  it.each([
    crossEntropy(),
    importanceSampling(),
    ppo(clip),
    dro({ beta: 0.3 }),
    withKl(crossEntropy(), 0.1),
    withKl(ppo(clip), 0.05),
  ])('$name $settings has the derivative that central differences give', (loss) => {
    const { gradient } = loss.evaluate(input);
    differences(loss).forEach((expected, i) => {
      expect(gradient[i]).toBeCloseTo(expected, 5);
    });
  });

  it('cispo weighs each token by its clipped ratio and differentiates only the log-probability', () => {
    const { gradient, loss } = cispo(clip).evaluate(input);
    const weights = Array.from(input.logprobs, (lp, i) => Math.min(Math.max(Math.exp(lp - input.sampled[i]!), 0.8), 1.28));
    weights.forEach((weight, i) => {
      expect(gradient[i]).toBeCloseTo(-weight * input.advantages[i]!, 5);
    });
    expect(loss).toBeCloseTo(-weights.reduce((sum, w, i) => sum + w * input.advantages[i]! * input.logprobs[i]!, 0), 5);
  });

  it('ppo stops pushing a token that has moved far enough, but lets it come back', () => {
    const one = (lp: number, advantage: number) =>
      ppo(clip).evaluate({
        logprobs: Float32Array.of(lp),
        sampled: Float32Array.of(-1),
        advantages: Float32Array.of(advantage),
        reference: undefined,
      });
    expect(one(-0.5, 1).gradient[0]).toBe(0);
    expect(one(-1.5, -1).gradient[0]).toBe(0);
    expect(one(-0.5, -1).gradient[0]).toBeGreaterThan(0);
    expect(one(-1.5, 1).gradient[0]).toBeLessThan(0);
    expect(one(-0.5, 1).metrics).toMatchObject({ clipped: 1 });
  });

  it('all policy losses have the policy gradient where nothing has moved yet', () => {
    const still: LossInput = { ...input, sampled: input.logprobs };
    for (const loss of [importanceSampling(), ppo(clip), cispo(clip), dro({ beta: 0.3 })]) {
      expect(loss.evaluate(still).gradient).toEqual(input.advantages.map((a) => -a));
    }
  });

  it('a KL penalty is zero for the reference itself, positive elsewhere, and needs a reference', () => {
    const nothing = { ...input, advantages: new Float32Array(7) };
    const loss = withKl(crossEntropy(), 1);
    expect(loss.evaluate({ ...nothing, reference: input.logprobs }).loss).toBeCloseTo(0, 12);
    expect(loss.evaluate(nothing).loss).toBeGreaterThan(0);
    expect(() => loss.evaluate({ ...nothing, reference: undefined })).toThrow(/reference/);
  });

  it('a sample without trained tokens has loss zero', () => {
    const none = new Float32Array(0);
    expect(ppo(clip).evaluate({ logprobs: none, sampled: none, advantages: none, reference: none }).loss).toBe(0);
  });
});
