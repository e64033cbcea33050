/**
 * The losses of a policy gradient: cross_entropy, importance_sampling, ppo, cispo and dro, named as in the Tinker API, gspo and
 * decoupled_ppo. Each is a pure function from one sample's log-probabilities to a sum over its tokens and its derivative by each of them,
 * computed in float64. Notation: lp is the log-probability under the weights in training, s the one recorded at sampling, A the advantage,
 * r = exp(lp − s) the ratio. Callers average and weight; penalties.ts adds to any of them; dpo.ts compares pairs of rollouts.
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
type TokenFunction = (sums: Sums, lp: number, s: number, A: number, i: number) => number;

/** Ratios are clipped to [1 − clipLow, 1 + clipHigh]. */
export interface ClipSettings {
  readonly clipLow: number;
  readonly clipHigh: number;
}

export interface DualClipSettings extends ClipSettings {
  /** Above 1. A token with A < 0 costs at most −dualClip · A, however likely it has become (https://arxiv.org/abs/1912.09729). */
  readonly dualClip?: number | undefined;
}

/** How the weight of a token that other weights sampled is kept in bounds. */
export interface ImportanceSettings {
  /** One weight for each token (default), or for the whole sample the geometric mean of its tokens' weights. */
  readonly isLevel?: 'token' | 'sequence' | undefined;
  /** A weight out of bounds becomes the bound (default), or 0. */
  readonly isAction?: 'truncate' | 'mask' | undefined;
  /** Upper bound; a weight equal to it is within. Default 5. */
  readonly isCap?: number | undefined;
  /** Lower bound. Default: none. */
  readonly isFloor?: number | undefined;
}

export const DEFAULT_CAP = 5;

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

/**
 * −Σ min(r·A, clip(r)·A): no gradient for a token whose ratio has left the interval in the direction of its advantage
 * (https://arxiv.org/abs/1707.06347). With `dualClip` c, for A < 0: −Σ max(min(r·A, clip(r)·A), c·A).
 */
export function ppo({ clipLow, clipHigh, dualClip }: DualClipSettings): Loss {
  const bounds = { clipLow, clipHigh, ...(dualClip !== undefined && { dualClip }) };
  return tokenwise('ppo', bounds, CLIPPED, (sums, lp, s, A) => surrogate(sums, offPolicy(sums, lp, s), A, bounds, 1));
}

/**
 * −Σ min(ρ·A, clip(ρ)·A), where ρ has the value exp(mean of lp − s over the sample), one ratio for all its tokens, and the derivative of
 * a token's own ratio: GSPO-token of https://arxiv.org/abs/2507.18071. A sample is clipped as a whole where its advantages have one sign.
 */
export function gspo({ clipLow, clipHigh }: ClipSettings): Loss {
  const bounds = { clipLow, clipHigh };
  return samplewise('gspo', bounds, CLIPPED, ({ logprobs, sampled }) => {
    const ratio = Math.exp(meanOf(logprobs.length, (i) => logprobs[i]! - sampled[i]!));
    return (sums, lp, s, A) => {
      offPolicy(sums, lp, s);
      return surrogate(sums, ratio, A, bounds, 1);
    };
  });
}

/**
 * −Σ w·min(ρ·A, clip(ρ)·A), with ρ = exp(lp − p) and w = exp(p − s), where p is the log-probability under a proximal policy: the step is
 * clipped around p, and w, a constant kept in bounds, corrects for sampling under other weights than p, be they older ones or those of an
 * engine that rounds differently (https://arxiv.org/abs/2505.24298; truncated importance sampling). Without `proximal`, p is the policy at
 * the start of the step. A run takes one step on each batch, so p = lp: ρ is 1 and its derivative 1, and nothing has to be computed for
 * it. Where p − s is not a finite number, w is 1. A masked token counts in every divisor as before.
 */
export function decoupledPpo({ clipLow, clipHigh, dualClip, ...importance }: DualClipSettings & ImportanceSettings): Loss {
  const bounds = { clipLow, clipHigh, ...(dualClip !== undefined && { dualClip }) };
  const { isLevel = 'token', isAction = 'truncate', isCap = DEFAULT_CAP, isFloor } = importance;
  const settings = { ...bounds, isCap, ...(isFloor !== undefined && { isFloor }), isLevel, isAction };
  return samplewise('decoupled_ppo', settings, CLIPPED, ({ logprobs, sampled, proximal }) => {
    const differenceAt = (i: number): number => finiteOr0((proximal ?? logprobs)[i]! - sampled[i]!);
    const ofSample = isLevel === 'sequence' ? meanOf(logprobs.length, differenceAt) : undefined;
    return (sums, lp, s, A, i) => {
      if (Number.isFinite(lp - s)) offPolicy(sums, lp, s);
      const weight = Math.exp(ofSample ?? differenceAt(i));
      const bounded = Math.min(Math.max(weight, isFloor ?? 0), isCap);
      const { clipped } = sums;
      const ratio = proximal === undefined ? 1 : Math.exp(finiteOr0(lp - proximal[i]!));
      const used = weight !== bounded && isAction === 'mask' ? 0 : bounded;
      const derivative = surrogate(sums, ratio, A, bounds, used);
      if (weight !== bounded) sums.clipped = clipped + 1;
      return derivative;
    };
  });
}

/** −Σ stopgrad(clip(r))·A·lp: the ratio is only a weight, so every token keeps a gradient (https://arxiv.org/abs/2506.13585). */
export function cispo({ clipLow, clipHigh }: ClipSettings): Loss {
  return tokenwise('cispo', { clipLow, clipHigh }, CLIPPED, (sums, lp, s, A) => {
    const ratio = offPolicy(sums, lp, s);
    const weight = clip(ratio, clipLow, clipHigh);
    if (weight !== ratio) sums.clipped++;
    sums.loss -= weight * A * lp;
    return -weight * A;
  });
}

/** −Σ (A·lp − ½·beta·(lp − s)²): a quadratic pull back to the sampling policy (https://arxiv.org/abs/2405.19107, as in Tinker). */
export function dro({ beta }: { readonly beta: number }): Loss {
  return tokenwise('dro', { beta }, OFF_POLICY, (sums, lp, s, A) => {
    const distance = lp - s;
    offPolicy(sums, lp, s);
    sums.loss -= A * lp - 0.5 * beta * distance * distance;
    return -(A - beta * distance);
  });
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

/** Subtracts weight · the clipped objective, and returns the derivative: that of `ratio` is the ratio itself. */
function surrogate(sums: Sums, ratio: number, A: number, bounds: DualClipSettings, weight: number): number {
  const objective = ratio * A;
  const least = A < 0 && bounds.dualClip !== undefined ? bounds.dualClip * A : -Infinity;
  const bounded = Math.max(Math.min(objective, clip(ratio, bounds.clipLow, bounds.clipHigh) * A), least);
  sums.loss -= weight * bounded;
  if (bounded === objective) return -weight * objective;
  sums.clipped++;
  return 0;
}

function clip(ratio: number, clipLow: number, clipHigh: number): number {
  return Math.min(Math.max(ratio, 1 - clipLow), 1 + clipHigh);
}

/** −∞ − −∞ says nothing about a difference. */
function finiteOr0(value: number): number {
  return Number.isFinite(value) ? value : 0;
}

/** 0 without any. */
function meanOf(count: number, valueAt: (i: number) => number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += valueAt(i);
  return sum / Math.max(count, 1);
}

function tokenwise(name: string, settings: Loss['settings'], reported: readonly (keyof Sums)[], token: TokenFunction): Loss {
  return samplewise(name, settings, reported, () => token);
}

function samplewise(
  name: string,
  settings: Loss['settings'],
  reported: readonly (keyof Sums)[],
  prepare: (input: LossInput) => TokenFunction,
): Loss {
  return {
    name,
    settings,
    evaluate(input: LossInput): LossOutput {
      const { logprobs, sampled, advantages } = input;
      const token = prepare(input);
      const gradient = new Float32Array(logprobs.length);
      const sums: Sums = { loss: 0, ratio: 0, offPolicyKl: 0, clipped: 0 };
      for (let i = 0; i < gradient.length; i++) gradient[i] = token(sums, logprobs[i]!, sampled[i]!, advantages[i]!, i);
      return { loss: sums.loss, gradient, metrics: Object.fromEntries(reported.map((metric) => [metric, sums[metric]])) };
    },
  };
}
