/**
 * Whether what was sampled is what is trained: the engine's log-probabilities beside the trainer's own, of the same tokens under the same
 * weights. Compared are the tokens that were sampled from the very version in training, so only rounding may tell the two apart.
 *
 * How much rounding there is differs from server to server (bf16 has noise), so it is measured on the first step. Beyond that bound the
 * engine reports false log-probabilities, or samples from other weights than those that are trained.
 */
import { masked } from '../core/policy.ts';
import type { BatchManifest, Sample } from '../core/types.ts';

/** Differences of log-probabilities, over `tokens` of them. */
export interface Agreement {
  readonly tokens: number;
  /** Of their absolute values. */
  readonly meanDifference: number;
  readonly largestDifference: number;
  /** Mean with signs: rounding goes both ways, a false log-probability one way. */
  readonly bias: number;
  readonly meanSquare: number;
}

/** More than any rounding: no server that computes the same model differs by a tenth from itself. */
const MOST_AT_FIRST = 0.1;
/** Noise varies from step to step. */
const TIMES_NOISE = 4;
/** Below it nothing is distorted that matters. */
const HARMLESS = 0.005;
/** Of the mean difference: beyond this nearly all tokens differ in the same direction. */
const MOST_BIAS = 0.5;
/** Standard errors by which a mean has to be beyond its bound: a few tokens of a sharp policy make most of the noise. */
const CERTAIN = 3;
/** Fewer say nothing about a mean: they are looked at together with those of the next step. */
const LEAST_TOKENS = 32;

/** `logprobs`: the trainer's, of each sample's masked tokens. `version`: the one in training. Undefined where it sampled none of them. */
export function agreementOf(
  samples: readonly Sample[],
  logprobs: readonly Float32Array[],
  version: number,
): Agreement | undefined {
  let [tokens, sum, signed, squares, largest] = [0, 0, 0, 0, 0];
  for (const [place, sample] of samples.entries()) {
    const [sampled, versions] = [masked(sample, sample.logprobs), masked(sample, sample.versions)];
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
  const [meanDifference, bias, meanSquare] = [sum / tokens, signed / tokens, squares / tokens];
  return { tokens, meanDifference, largestDifference: largest, bias, meanSquare };
}

/** What a run may differ by. */
export class AgreementBound {
  #noise: number | undefined;
  #waiting: Agreement | undefined;

  /** `taken`: the steps taken before, by which the noise is known. */
  constructor(taken: readonly Pick<BatchManifest, 'metrics'>[] = []) {
    for (const { metrics } of taken) {
      const { comparedTokens: tokens, meanDifference, largestDifference = 0, meanSquareDifference: meanSquare = 0 } = metrics;
      if (tokens === undefined || meanDifference === undefined || this.#noise !== undefined) continue;
      this.exceededBy({ tokens, meanDifference, largestDifference, bias: 0, meanSquare });
    }
  }

  /** Undefined where it is within the bound; else what was expected. The first agreement is what later ones are measured by. */
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
    // Neither sure nor harmless: more tokens will tell.
    if (isFar || isOneWay) this.#waiting = together;
    else this.#noise ??= meanDifference;
    return undefined;
  }
}

function joined(a: Agreement, b: Agreement): Agreement {
  const tokens = a.tokens + b.tokens;
  const mean = (of: 'meanDifference' | 'bias' | 'meanSquare'): number => (a.tokens * a[of] + b.tokens * b[of]) / tokens;
  const [meanDifference, bias, meanSquare] = [mean('meanDifference'), mean('bias'), mean('meanSquare')];
  return { tokens, meanDifference, largestDifference: Math.max(a.largestDifference, b.largestDifference), bias, meanSquare };
}
