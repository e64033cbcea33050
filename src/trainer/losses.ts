/**
 * The losses, under the names of the Tinker API: cross_entropy, importance_sampling, ppo, cispo, dro; and a KL penalty on top of
 * any of them.
 *
 * Each is a pure function from one sample's log-probabilities to a sum over its tokens and the derivative by each of them, in
 * float64. Notation: lp is the log-probability under the weights being trained, s the one recorded when the token was
 * sampled, A the advantage, r = exp(lp − s) the ratio. Averaging and weighting are the caller's.
 */
import type { Loss, LossInput, LossOutput } from '../core/contracts.ts';

interface TokenLoss {
  readonly loss: number;
  /** d loss / d lp */
  readonly slope: number;
  readonly metrics?: Readonly<Record<string, number>>;
}

type TokenFunction = (lp: number, s: number, A: number) => TokenLoss;

/** Ratios are clipped to [1 − clipLow, 1 + clipHigh]. */
export interface ClipSettings {
  readonly clipLow: number;
  readonly clipHigh: number;
}

/** −Σ A·lp: the advantages are the tokens' weights. */
export function crossEntropy(): Loss {
  return tokenwise('cross_entropy', {}, (lp, _s, A) => ({ loss: -A * lp, slope: -A }));
}

/** −Σ r·A: the policy gradient, corrected for having been sampled under other weights. */
export function importanceSampling(): Loss {
  return tokenwise('importance_sampling', {}, (lp, s, A) => {
    const ratio = Math.exp(lp - s);
    return { loss: -ratio * A, slope: -ratio * A, metrics: offPolicyMetrics(lp, s) };
  });
}

/** −Σ min(r·A, clip(r)·A): a token whose ratio has left the interval in the direction of its advantage is no longer pushed. */
export function ppo({ clipLow, clipHigh }: ClipSettings): Loss {
  return tokenwise('ppo', { clipLow, clipHigh }, (lp, s, A) => {
    const ratio = Math.exp(lp - s);
    const limited = clip(ratio, clipLow, clipHigh);
    const clipped = limited * A < ratio * A;
    return {
      loss: -(clipped ? limited : ratio) * A,
      slope: clipped ? 0 : -ratio * A,
      metrics: { ...offPolicyMetrics(lp, s), clipped: clipped ? 1 : 0 },
    };
  });
}

/** −Σ stopgrad(clip(r))·A·lp: the ratio only weighs a token, so every token keeps a gradient. */
export function cispo({ clipLow, clipHigh }: ClipSettings): Loss {
  return tokenwise('cispo', { clipLow, clipHigh }, (lp, s, A) => {
    const ratio = Math.exp(lp - s);
    const weight = clip(ratio, clipLow, clipHigh);
    return {
      loss: -weight * A * lp,
      slope: -weight * A,
      metrics: { ...offPolicyMetrics(lp, s), clipped: weight === ratio ? 0 : 1 },
    };
  });
}

/** −Σ (A·lp − ½·beta·(lp − s)²): a quadratic pull back to the sampling policy. */
export function dro({ beta }: { readonly beta: number }): Loss {
  return tokenwise('dro', { beta }, (lp, s, A) => {
    const distance = lp - s;
    return {
      loss: -(A * lp - 0.5 * beta * distance * distance),
      slope: -(A - beta * distance),
      metrics: offPolicyMetrics(lp, s),
    };
  });
}

/**
 * Adds coefficient · Σ KL(policy ‖ reference), estimated per token by k3 = e^(ref − lp) − (ref − lp) − 1: never negative, and
 * unbiased when the tokens were sampled from the policy. Throws if the sample carries no reference log-probabilities.
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

/** The ratio, and k1: an estimate of KL(sampling policy ‖ policy). */
function offPolicyMetrics(lp: number, s: number): Readonly<Record<string, number>> {
  return { ratio: Math.exp(lp - s), offPolicyKl: s - lp };
}

function clip(ratio: number, clipLow: number, clipHigh: number): number {
  return Math.min(Math.max(ratio, 1 - clipLow), 1 + clipHigh);
}

function tokenwise(name: string, settings: Readonly<Record<string, number>>, token: TokenFunction): Loss {
  return {
    name,
    settings,
    evaluate({ logprobs, sampled, advantages }: LossInput): LossOutput {
      const gradient = new Float32Array(logprobs.length);
      const metrics: Record<string, number> = {};
      let loss = 0;
      logprobs.forEach((lp, i) => {
        const one = token(lp, sampled[i]!, advantages[i]!);
        loss += one.loss;
        gradient[i] = one.slope;
        for (const [key, value] of Object.entries(one.metrics ?? {})) metrics[key] = (metrics[key] ?? 0) + value;
      });
      return { loss, gradient, metrics };
    },
  };
}
