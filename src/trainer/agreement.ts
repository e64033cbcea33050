/**
 * Whether what was sampled is what is trained: the engine's log-probabilities beside the trainer's own, of the same tokens under the same
 * weights. Compared are the tokens that were sampled from the very version in training, so only rounding may tell the two apart.
 *
 * How much rounding there is differs from server to server (bf16 has noise), so it is measured on the first step. Beyond that bound the
 * engine reports false log-probabilities, or samples from other weights than those that are trained.
 */
import { masked } from '../core/evaluate-loss.ts';
import type { Sample } from '../core/types.ts';

/** Differences of log-probabilities, over `tokens` of them. */
export interface Agreement {
  readonly tokens: number;
  /** Of their absolute values. */
  readonly meanDifference: number;
  readonly largestDifference: number;
  /** Mean with signs: rounding goes both ways, a false log-probability one way. */
  readonly bias: number;
}

/** More than any rounding: no server that computes the same model differs by a tenth from itself. */
const MOST_AT_FIRST = 0.1;
/** Noise varies from step to step. */
const TIMES_NOISE = 4;
/** Below it nothing is distorted that matters. */
const HARMLESS = 0.005;
/** Of the mean difference: beyond this nearly all tokens differ in the same direction. */
const MOST_BIAS = 0.5;
/** Fewer say nothing about a mean: they are looked at together with those of the next steps. */
const LEAST_TOKENS = 32;

/** `logprobs`: the trainer's, of each sample's masked tokens. `version`: the one in training. Undefined where it sampled none of them. */
export function agreementOf(
  samples: readonly Sample[],
  logprobs: readonly Float32Array[],
  version: number,
): Agreement | undefined {
  let [tokens, sum, signed, largest] = [0, 0, 0, 0];
  for (const [place, sample] of samples.entries()) {
    const [sampled, versions] = [masked(sample, sample.logprobs), masked(sample, sample.versions)];
    for (const [i, own] of logprobs[place]!.entries()) {
      if (versions[i] !== version) continue;
      const difference = sampled[i]! - own;
      tokens++;
      sum += Math.abs(difference);
      signed += difference;
      largest = Math.max(largest, Math.abs(difference));
    }
  }
  if (tokens === 0) return undefined;
  return { tokens, meanDifference: sum / tokens, largestDifference: largest, bias: signed / tokens };
}

/** What a run may differ by. */
export class AgreementBound {
  #noise: number | undefined;
  #waiting: Agreement | undefined;

  /** `noise`: mean difference of the run's first step, where that was taken before. */
  constructor(noise?: number) {
    this.#noise = noise;
  }

  /** Undefined where it is within the bound; else what was expected. The first agreement is what later ones are measured by. */
  exceededBy(agreement: Agreement): string | undefined {
    const together = this.#waiting === undefined ? agreement : joined(this.#waiting, agreement);
    this.#waiting = together.tokens < LEAST_TOKENS ? together : undefined;
    if (this.#waiting !== undefined) return undefined;
    const { meanDifference, bias } = together;
    const most = this.#noise === undefined ? MOST_AT_FIRST : Math.max(HARMLESS, TIMES_NOISE * this.#noise);
    if (meanDifference > most) return `at most ${most.toPrecision(2)}`;
    if (meanDifference > HARMLESS && Math.abs(bias) > MOST_BIAS * meanDifference) return 'rounding, which goes both ways';
    this.#noise ??= meanDifference;
    return undefined;
  }
}

function joined(a: Agreement, b: Agreement): Agreement {
  const tokens = a.tokens + b.tokens;
  const mean = (of: 'meanDifference' | 'bias'): number => (a.tokens * a[of] + b.tokens * b[of]) / tokens;
  const largestDifference = Math.max(a.largestDifference, b.largestDifference);
  return { tokens, meanDifference: mean('meanDifference'), largestDifference, bias: mean('bias') };
}
