/**
 * The losses, named as in the Tinker API: cross_entropy, importance_sampling, ppo, cispo, dro; and a KL penalty on top of any of them. Each
 * is a pure function from one sample's log-probabilities to a sum over its tokens and its derivative by each of them, computed in float64.
 * Notation: lp is the log-probability under the weights in training, s the one recorded at sampling, A the advantage, r = exp(lp − s) the
 * ratio. Callers average and weight.
 */
import type { Loss, LossInput, LossOutput } from '../core/policy.ts';

/** Sums over tokens, under the names of the reported metrics. */
interface Sums {
  loss: number;
  ratio: number;
  offPolicyKl: number;
  clipped: number;
}

/** Adds one token to the sums and returns d loss / d lp. Called millions of times, so it must not allocate. */
type TokenFunction = (sums: Sums, lp: number, s: number, A: number) => number;

/** Ratios are clipped to [1 − clipLow, 1 + clipHigh]. */
export interface ClipSettings {
  readonly clipLow: number;
  readonly clipHigh: number;
}

/** −Σ A·lp: the advantages are the tokens' weights. */
export function crossEntropy(): Loss {
  return tokenwise('cross_entropy', {}, [], (sums, lp, _s, A) => {
    sums.loss -= A * lp;
    return -A;
  });
}

/** −Σ r·A: the policy gradient, corrected for sampling under other weights. */
export function importanceSampling(): Loss {
  return tokenwise('importance_sampling', {}, OFF_POLICY, (sums, lp, s, A) => {
    const ratio = offPolicy(sums, lp, s);
    sums.loss -= ratio * A;
    return -ratio * A;
  });
}

/** −Σ min(r·A, clip(r)·A): no gradient for a token whose ratio has left the interval in the direction of its advantage. */
export function ppo({ clipLow, clipHigh }: ClipSettings): Loss {
  return tokenwise('ppo', { clipLow, clipHigh }, CLIPPED, (sums, lp, s, A) => {
    const ratio = offPolicy(sums, lp, s);
    const limited = clip(ratio, clipLow, clipHigh);
    if (limited * A < ratio * A) {
      sums.clipped++;
      sums.loss -= limited * A;
      return 0;
    }
    sums.loss -= ratio * A;
    return -ratio * A;
  });
}

/** −Σ stopgrad(clip(r))·A·lp: the ratio is only a weight, so every token keeps a gradient. */
export function cispo({ clipLow, clipHigh }: ClipSettings): Loss {
  return tokenwise('cispo', { clipLow, clipHigh }, CLIPPED, (sums, lp, s, A) => {
    const ratio = offPolicy(sums, lp, s);
    const weight = clip(ratio, clipLow, clipHigh);
    if (weight !== ratio) sums.clipped++;
    sums.loss -= weight * A * lp;
    return -weight * A;
  });
}

/** −Σ (A·lp − ½·beta·(lp − s)²): a quadratic pull back to the sampling policy. */
export function dro({ beta }: { readonly beta: number }): Loss {
  return tokenwise('dro', { beta }, OFF_POLICY, (sums, lp, s, A) => {
    const distance = lp - s;
    offPolicy(sums, lp, s);
    sums.loss -= A * lp - 0.5 * beta * distance * distance;
    return -(A - beta * distance);
  });
}

/**
 * Adds coefficient · Σ KL(policy ‖ reference), estimated per token by k3 = e^(ref − lp) − (ref − lp) − 1: never negative, and unbiased if
 * the tokens were sampled from the policy. Throws a TypeError if the sample has no reference log-probabilities.
 */
export function withKl(loss: Loss, coefficient: number): Loss {
  return {
    name: loss.name,
    settings: { ...loss.settings, kl: coefficient },
    evaluate(input) {
      const { reference } = input;
      if (reference === undefined) throw new TypeError('a KL penalty needs the reference policy’s log-probabilities');
      const base = loss.evaluate(input);
      const gradient = Float32Array.from(base.gradient);
      let kl = 0;
      input.logprobs.forEach((lp, i) => {
        const difference = reference[i]! - lp;
        kl += Math.expm1(difference) - difference;
        gradient[i] = base.gradient[i]! - coefficient * Math.expm1(difference);
      });
      return { loss: base.loss + coefficient * kl, gradient, metrics: { ...base.metrics, kl } };
    },
  };
}

const OFF_POLICY = ['ratio', 'offPolicyKl'] as const;
const CLIPPED = [...OFF_POLICY, 'clipped'] as const;

/** Returns the ratio; adds it and k1, an estimate of KL(sampling policy ‖ policy), to the sums. */
function offPolicy(sums: Sums, lp: number, s: number): number {
  const ratio = Math.exp(lp - s);
  sums.ratio += ratio;
  sums.offPolicyKl += s - lp;
  return ratio;
}

function clip(ratio: number, clipLow: number, clipHigh: number): number {
  return Math.min(Math.max(ratio, 1 - clipLow), 1 + clipHigh);
}

function tokenwise(
  name: string,
  settings: Readonly<Record<string, number>>,
  reported: readonly (keyof Sums)[],
  token: TokenFunction,
): Loss {
  return {
    name,
    settings,
    evaluate({ logprobs, sampled, advantages }: LossInput): LossOutput {
      const gradient = new Float32Array(logprobs.length);
      const sums: Sums = { loss: 0, ratio: 0, offPolicyKl: 0, clipped: 0 };
      for (let i = 0; i < gradient.length; i++) gradient[i] = token(sums, logprobs[i]!, sampled[i]!, advantages[i]!);
      return { loss: sums.loss, gradient, metrics: Object.fromEntries(reported.map((metric) => [metric, sums[metric]])) };
    },
  };
}
