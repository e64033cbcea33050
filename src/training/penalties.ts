/**
 * What may be added to any loss: a KL penalty against a reference policy, and an entropy bonus. Both are estimated from the sampled tokens'
 * log-probabilities alone, so that every backend can train them. Pure functions, computed in float64.
 */
import type { Loss } from '../core/policy.ts';
import type { KlEstimator } from '../settings/settings.ts';
import { DEFAULT_CAP } from './losses.ts';

/**
 * Adds coefficient · Σ KL(policy ‖ reference), estimated per token. k1 and k3 have the right mean if the tokens were sampled from the
 * policy; k2 and k3 are never negative. The derivative by lp is d for k2, which on average is the gradient of that KL, and 1 − e^−d for
 * k3, which on average is the gradient of KL(reference ‖ policy). For k1 it would be 1, which on average is no gradient at all, whatever
 * the reference; so k1 has its own value and k2's derivative. Throws a TypeError if the sample has no reference log-probabilities.
 */
export function withKl(loss: Loss, coefficient: number, estimator: KlEstimator = 'k3'): Loss {
  return {
    name: loss.name,
    settings: { ...loss.settings, kl: coefficient, ...(estimator !== 'k3' && { klEstimator: estimator }) },
    evaluate(input) {
      const { reference } = input;
      if (reference === undefined) throw new TypeError('a KL penalty needs the reference policy’s log-probabilities');
      const base = loss.evaluate(input);
      const gradient = Float32Array.from(base.gradient);
      let kl = 0;
      input.logprobs.forEach((lp, i) => {
        const difference = reference[i]! - lp;
        kl += klAt(difference, estimator);
        gradient[i] = base.gradient[i]! - coefficient * (estimator === 'k3' ? Math.expm1(difference) : difference);
      });
      return { loss: base.loss + coefficient * kl, gradient, metrics: { ...base.metrics, kl } };
    },
  };
}

/** `difference`: ref − lp. */
function klAt(difference: number, estimator: KlEstimator): number {
  if (estimator === 'k3') return Math.expm1(difference) - difference;
  return estimator === 'k1' ? -difference : 0.5 * difference * difference;
}

/**
 * Subtracts coefficient · Σ H, the entropy of the policy's distribution at each trained token. H is the mean of −lp, and its gradient the
 * mean of −lp·∇lp, both over tokens sampled from the policy: so a sampled token adds coefficient · w·lp to the loss, and as much to its
 * derivative, in which w·lp is a constant factor (the score function; REINFORCE with −lp as the reward). The weight w = exp(lp − s), at
 * most 5, corrects for tokens that other weights sampled. For a single token the estimate is rough; a batch averages it.
 */
export function withEntropy(loss: Loss, coefficient: number): Loss {
  return {
    name: loss.name,
    settings: { ...loss.settings, entropy: coefficient },
    evaluate(input) {
      const base = loss.evaluate(input);
      const gradient = Float32Array.from(base.gradient);
      let entropy = 0;
      input.logprobs.forEach((lp, i) => {
        const surprise = -lp * Math.min(Math.exp(lp - input.sampled[i]!), DEFAULT_CAP);
        entropy += surprise;
        gradient[i] = base.gradient[i]! - coefficient * surprise;
      });
      return { loss: base.loss - coefficient * entropy, gradient, metrics: { ...base.metrics, entropy } };
    },
  };
}
