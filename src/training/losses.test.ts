import { describe, expect, it } from 'vitest';
import type { Loss, LossInput } from '../core/policy.ts';
import { KL_ESTIMATORS } from '../settings/settings.ts';
import { cispo, crossEntropy, decoupledPpo, dro, gspo, importanceSampling, ppo } from './losses.ts';
import { withEntropy, withKl } from './penalties.ts';

const of = (...values: readonly number[]) => Float32Array.from(values);

/** Ratios inside, below and above the clipping interval, with advantages of both signs, away from the kinks. */
const input = {
  logprobs: of(-1, -0.5, -2.5, -0.4, -3, -1.25, -1.25),
  sampled: of(-1.1, -1.5, -1.5, -1.6, -1.5, -1.25, -1.2),
  advantages: of(1, 0.5, -0.75, -1.5, 2, 0, -1),
  reference: of(-1.3, -0.25, -2.5, -2, -1, -1, -1.5),
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
    ppo({ ...clip, dualClip: 2 }),
    dro({ beta: 0.3 }),
    withKl(crossEntropy(), 0.1, 'k2'),
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
      ppo(clip).evaluate({ logprobs: of(lp), sampled: of(-1), advantages: of(advantage), reference: undefined });
    expect(one(-0.5, 1).gradient[0]).toBe(0);
    expect(one(-1.5, -1).gradient[0]).toBe(0);
    expect(one(-0.5, -1).gradient[0]).toBeGreaterThan(0);
    expect(one(-1.5, 1).gradient[0]).toBeLessThan(0);
    expect(one(-0.5, 1).metrics).toMatchObject({ clipped: 1 });
  });

  it('all policy losses have the policy gradient where nothing has moved yet', () => {
    const still: LossInput = { ...input, sampled: input.logprobs };
    for (const loss of [importanceSampling(), ppo(clip), cispo(clip), dro({ beta: 0.3 }), gspo(clip), decoupledPpo(clip)]) {
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
    for (const loss of [ppo(clip), gspo(clip), decoupledPpo({ ...clip, isLevel: 'sequence', isAction: 'mask' })]) {
      expect(loss.evaluate({ logprobs: none, sampled: none, advantages: none, reference: none }).loss).toBeCloseTo(0, 12);
    }
  });

  it('ppo with a dual clip of 3 charges a bad token three times its advantage at most, and lets go of it there', () => {
    const bad = { logprobs: of(-1), advantages: of(-2), reference: undefined };
    const at = (ratio: number) => ppo({ ...clip, dualClip: 3 }).evaluate({ ...bad, sampled: of(-1 - Math.log(ratio)) });
    expect(at(2.9).loss).toBeCloseTo(5.8, 5);
    expect(at(2.9).gradient[0]).toBeCloseTo(5.8, 5);
    expect(at(50)).toMatchObject({ loss: 6, gradient: of(0), metrics: { clipped: 1 } });
  });

  it('gspo gives all tokens of a sample the geometric mean of their ratios', () => {
    const two = { logprobs: of(-1, -1), sampled: of(-1.5, -0.75), reference: undefined };
    const { loss, gradient } = gspo(clip).evaluate({ ...two, advantages: of(1, -2) });
    const ratio = Math.exp((0.5 - 0.25) / 2);
    expect(loss).toBeCloseTo(ratio, 5);
    expect([...gradient].map((one) => one / ratio)).toEqual([expect.closeTo(-1, 5), expect.closeTo(2, 5)]);
    // Beyond 1.28 as a whole, so also a token whose own ratio is 1 has no gradient.
    const far = { ...two, sampled: of(-3, -1), advantages: of(1, 1) };
    expect([...gspo(clip).evaluate(far).gradient]).toEqual([0, 0]);
  });

  it.each([
    ['k1', [-0.5, 1], [-0.5, 1]],
    ['k2', [0.125, 0.5], [-0.5, 1]],
    ['k3', [Math.exp(0.5) - 1.5, Math.exp(-1)], [1 - Math.exp(0.5), 1 - Math.exp(-1)]],
  ] as const)(
    'a KL penalty by %s has these values and derivatives where lp − ref is −½ and 1',
    (estimator, values, derivatives) => {
      const lp = of(-2, -1);
      const none = { logprobs: lp, sampled: lp, advantages: new Float32Array(2), reference: of(-1.5, -2) };
      const { loss, gradient } = withKl(crossEntropy(), 2, estimator).evaluate(none);
      expect(loss).toBeCloseTo(2 * (values[0] + values[1]), 5);
      derivatives.forEach((derivative, i) => {
        expect(gradient[i]).toBeCloseTo(2 * derivative, 5);
      });
    },
  );
});

/** Over a vocabulary of three, everything that could have been sampled: the mean of a derivative × ∇lp, by the logits. */
function meanGradient(loss: Loss, policy: readonly number[], reference: readonly number[]): number[] {
  const logprobs = Float32Array.from(policy, Math.log);
  const sampled = {
    logprobs,
    sampled: logprobs,
    advantages: new Float32Array(3),
    reference: Float32Array.from(reference, Math.log),
  };
  const { gradient } = loss.evaluate(sampled);
  return policy.map((p, j) => policy.reduce((sum, q, i) => sum + q * gradient[i]! * ((i === j ? 1 : 0) - p), 0));
}

describe('on average over what the policy samples', () => {
  const [policy, reference] = [
    [0.5, 0.3, 0.2],
    [0.2, 0.2, 0.6],
  ] as const;

  it('an entropy bonus has the gradient of the entropy', () => {
    const entropy = -policy.reduce((sum, p) => sum + p * Math.log(p), 0);
    const found = meanGradient(withEntropy(crossEntropy(), 0.5), policy, reference);
    policy.forEach((p, j) => {
      expect(found[j]).toBeCloseTo(0.5 * p * (Math.log(p) + entropy), 6);
    });
  });

  it('a KL penalty by k1 and k2 has the gradient of KL(policy ‖ reference), by k3 that of KL(reference ‖ policy)', () => {
    const kl = policy.reduce((sum, p, i) => sum + p * Math.log(p / reference[i]!), 0);
    const own = policy.map((p, j) => p * (Math.log(p / reference[j]!) - kl));
    const turned = policy.map((p, j) => p - reference[j]!);
    for (const estimator of KL_ESTIMATORS) {
      const found = meanGradient(withKl(crossEntropy(), 1, estimator), policy, reference);
      const expected = estimator === 'k3' ? turned : own;
      expect(found).toEqual(expected.map((one) => expect.closeTo(one, 6)));
    }
  });
});

describe('an importance weight of decoupled_ppo', () => {
  const ln = Math.log;
  /** Tokens whose proximal policy is so many times as likely to sample them as the one that did. */
  const weighed = (
    weights: readonly number[],
    settings: Parameters<typeof decoupledPpo>[0],
    advantages = weights.map(() => -1),
  ) => {
    const logprobs = Float32Array.from(weights, () => -8);
    const sampled = Float32Array.from(weights, (weight) => -8 - ln(weight));
    return decoupledPpo(settings).evaluate({
      logprobs,
      sampled,
      advantages: Float32Array.from(advantages),
      reference: undefined,
    });
  };
  const used = (...args: Parameters<typeof weighed>) => [...weighed(...args).gradient].map((one) => Number(one.toFixed(4)));

  it('equal to a bound is kept; beyond it becomes the bound, or with mask 0', () => {
    // e^0 and e^1 are exact enough in float32 to stand for the bounds themselves.
    const exact = (settings: object): number[] => {
      const sampled = of(-9, -8.5, -7, -6, -8);
      const rest = { logprobs: new Float32Array(5).fill(-8), advantages: new Float32Array(5).fill(-1), reference: undefined };
      const bounds = { isCap: Math.E, isFloor: Math.exp(-1), ...settings };
      return [...decoupledPpo({ ...clip, ...bounds }).evaluate({ ...rest, sampled }).gradient].map((one) =>
        Number(one.toFixed(4)),
      );
    };
    expect(exact({})).toEqual([Number(Math.E.toFixed(4)), 1.6487, 0.3679, 0.3679, 1]);
    expect(exact({ isAction: 'mask' })).toEqual([Number(Math.E.toFixed(4)), 1.6487, 0.3679, 0, 1]);
  });

  it('is at most 5 unless told otherwise, and has no lower bound', () => {
    expect(used([4, 5.5, 0.001], clip)).toEqual([4, 5, 0.001]);
  });

  it('of a whole sample is the geometric mean of its tokens’, for the decision and as the weight', () => {
    const sequence = { ...clip, isLevel: 'sequence', isCap: 3 } as const;
    // The arithmetic mean of 8 and ½ would be beyond 3.
    expect(used([8, 0.5], sequence)).toEqual([2, 2]);
    expect(used([8, 4], sequence)).toEqual([3, 3]);
    expect(used([8, 4], { ...sequence, isAction: 'mask' })).toEqual([0, 0]);
  });

  it('that is masked changes nothing for the other tokens: the divisor stays that of all', () => {
    const mask = { ...clip, isAction: 'mask', isCap: 2 } as const;
    const { gradient, loss, metrics } = weighed([1, 8, 1], mask, [1, 1, -2]);
    expect([...gradient].map(Math.abs)).toEqual([1, 0, 2]);
    expect(loss).toBeCloseTo(1, 6);
    expect(metrics).toMatchObject({ clipped: 1 });
  });

  it('is 1 where −∞ is compared with −∞, also within a sample’s mean', () => {
    const none = of(-Infinity, -1);
    const input = { logprobs: none, sampled: none, advantages: of(1, 1), reference: undefined };
    for (const isLevel of ['token', 'sequence'] as const) {
      const { loss, gradient, metrics } = decoupledPpo({ ...clip, isLevel }).evaluate(input);
      expect([loss, ...gradient]).toEqual([-2, -1, -1]);
      expect(Object.values(metrics ?? {}).every(Number.isFinite)).toBe(true);
    }
  });

  it('multiplies a step that is clipped around the proximal policy, not around the one that sampled', () => {
    const one = { logprobs: of(-1), proximal: of(-1.1), sampled: of(-2), advantages: of(1), reference: undefined };
    expect(decoupledPpo(clip).evaluate(one).gradient[0]).toBeCloseTo(-Math.exp(0.1) * Math.exp(0.9), 4);
    expect(ppo(clip).evaluate(one).gradient[0]).toBe(0);
    const moved = { ...one, proximal: of(-1.5) };
    expect(decoupledPpo(clip).evaluate(moved)).toMatchObject({
      loss: expect.closeTo(-1.28 * Math.exp(0.5), 4),
      metrics: { clipped: 1 },
    });
    expect(decoupledPpo(clip).evaluate(moved).gradient[0]).toBeCloseTo(0, 12);
  });
});
