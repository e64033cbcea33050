/**
 * Checks that training sees the policy that was sampled: compares the engine's log-probabilities with the trainer's for tokens sampled from
 * the very version in training, so that only rounding may differ. Rounding varies between servers (bf16 is noisy), so the first step
 * measures it. Beyond that bound, the engine reports false log-probabilities or samples from other weights.
 */
import { masked } from '../core/policy.ts';
import type { BatchManifest, Sample } from '../core/types.ts';

export interface Agreement {
  readonly tokens: number;
  /** Mean of the absolute differences. */
  readonly meanDifference: number;
  readonly largestDifference: number;
  /** Mean of the signed differences: rounding goes both ways, a false log-probability one way. */
  readonly bias: number;
  readonly meanSquare: number;
}

/** Bound on the first step. No server that computes the same model differs this much by rounding. */
const MOST_AT_FIRST = 0.1;
const TIMES_NOISE = 4;
/** Smaller mean differences do not matter. */
const HARMLESS = 0.005;
/** As a share of the mean difference; beyond it, nearly all tokens differ in the same direction. */
const MOST_BIAS = 0.5;
/** Standard errors by which a mean must exceed its bound, because a few tokens of a sharp policy make most of the noise. */
const CERTAIN = 3;
/** Fewer tokens say nothing about a mean, so they are pooled with the next step's. */
const LEAST_TOKENS = 32;

/** `logprobs`: the trainer's, for the masked tokens. `version`: the one in training. Undefined if no token was sampled from it. */
export function agreementOf(
  samples: readonly Sample[],
  logprobs: readonly Float32Array[],
  version: number,
): Agreement | undefined {
  let tokens = 0;
  let sum = 0;
  let signed = 0;
  let squares = 0;
  let largest = 0;
  for (const [place, sample] of samples.entries()) {
    const sampled = masked(sample, sample.logprobs);
    const versions = masked(sample, sample.versions);
    for (const [i, own] of logprobs[place]!.entries()) {
      if (versions[i] !== version) continue;
      const difference = sampled[i]! - own;
      tokens++;
      sum += Math.abs(difference);
      signed += difference;
      squares += difference ** 2;
      largest = Math.max(largest, Math.abs(difference));
    }
  }
  if (tokens === 0) return undefined;
  const meanDifference = sum / tokens;
  const bias = signed / tokens;
  const meanSquare = squares / tokens;
  return { tokens, meanDifference, largestDifference: largest, bias, meanSquare };
}

/** Judges each step's agreement by the noise of the first one. */
export class AgreementBound {
  #noise: number | undefined;
  #waiting: Agreement | undefined;

  /** `taken`: the run's earlier steps, whose noise sets the bound. */
  constructor(taken: readonly Pick<BatchManifest, 'metrics'>[] = []) {
    for (const { metrics } of taken) {
      const { comparedTokens: tokens, meanDifference, largestDifference = 0, meanSquareDifference: meanSquare = 0 } = metrics;
      if (tokens === undefined || meanDifference === undefined || this.#noise !== undefined) continue;
      this.exceededBy({ tokens, meanDifference, largestDifference, bias: 0, meanSquare });
    }
  }

  /** Undefined if within the bound; otherwise what was expected. The first agreement within the bound sets the noise for later ones. */
  exceededBy(agreement: Agreement): string | undefined {
    const together = this.#waiting === undefined ? agreement : joined(this.#waiting, agreement);
    this.#waiting = together.tokens < LEAST_TOKENS ? together : undefined;
    if (this.#waiting !== undefined) return undefined;
    const { tokens, meanDifference, bias, meanSquare } = together;
    const error = (mean: number): number => CERTAIN * Math.sqrt(Math.max(0, meanSquare - mean ** 2) / tokens);
    const most = this.#noise === undefined ? MOST_AT_FIRST : Math.max(HARMLESS, TIMES_NOISE * this.#noise);
    const isFar = meanDifference > most;
    const isOneWay = meanDifference > HARMLESS && Math.abs(bias) > MOST_BIAS * meanDifference;
    if (isFar && meanDifference - error(meanDifference) > most) return `at most ${most.toPrecision(2)}`;
    if (isOneWay && Math.abs(bias) > error(bias)) return 'rounding, which goes both ways';
    // Suspicious but not significant: wait for more tokens.
    if (isFar || isOneWay) this.#waiting = together;
    else this.#noise ??= meanDifference;
    return undefined;
  }
}

function joined(a: Agreement, b: Agreement): Agreement {
  const tokens = a.tokens + b.tokens;
  const mean = (of: 'meanDifference' | 'bias' | 'meanSquare'): number => (a.tokens * a[of] + b.tokens * b[of]) / tokens;
  const meanDifference = mean('meanDifference');
  const bias = mean('bias');
  const meanSquare = mean('meanSquare');
  return { tokens, meanDifference, largestDifference: Math.max(a.largestDifference, b.largestDifference), bias, meanSquare };
}
