/**
 * Samples as the Tinker API takes them, and back: a datum's arrays are shifted, so that position i belongs to the token that follows
 * input i. Position i of a datum is position i + 1 of its sample.
 *
 * Also here: which losses a server computes by name, and what a loss is by our own definition.
 *
 * There is no mask on the wire: where nothing is trained, weight, advantage and log-probability are 0. A sample's own weight is
 * folded into advantages and weights, since the wire has no place for it.
 */

import { mapYielding } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import { evaluateLoss, type ForwardBackwardResult, type Loss, masked, sumOfLosses } from '../../core/policy.ts';
import type { Sample } from '../../core/types.ts';
import type { Datum, Tensor } from '../wire/tinker-messages.ts';

/** Rounding can lift the log-probability of a certain token a little above 0. */
const ABOVE_ZERO = 1e-3;

/** For a pass that only looks: weight 1 where something was sampled. */
export function scoringDatum(sample: Sample): Datum {
  return shifted(sample, { weights: Float32Array.from(sample.mask) });
}

/** For cross_entropy, which has a gradient of −weight at each token. `weights` belong to the masked tokens, in order. */
export function weightedDatum(sample: Sample, weights: Float32Array): Datum {
  const { mask } = sample;
  const spread = new Float32Array(mask.length);
  let next = 0;
  for (let i = 0; i < mask.length; i++) if (mask[i] === 1) spread[i] = weights[next++]!;
  return shifted(sample, { weights: spread });
}

/** For the losses that compare with the policy that sampled. */
export function policyDatum(sample: Sample): Datum {
  const { mask, weight } = sample;
  const logprobs = new Float32Array(mask.length);
  const advantages = new Float32Array(mask.length);
  for (let i = 0; i < mask.length; i++) {
    if (mask[i] !== 1) continue;
    logprobs[i] = sample.logprobs[i]!;
    advantages[i] = sample.advantages[i]! * weight;
  }
  return shifted(sample, { logprobs, advantages });
}

/** Nothing is sent of a sample without trained tokens: it has no gradient and no log-probability that anybody asks for. */
export function isTrained({ mask }: Sample): boolean {
  return mask.includes(1);
}

/** Log-probabilities of the masked tokens, from those of every position that a server gave. Throws where they are of no use. */
export function scoredTokens(sample: Sample, output: Readonly<Record<string, Tensor>> | undefined): Float32Array {
  const rollout = `rollout ${JSON.stringify(sample.rolloutId)}`;
  const garbled = (found: string): TrainyardError =>
    new TrainyardError('POLICY_GARBLED', `the server gave ${found}`, { hint: `${rollout}; check the server’s version` });
  const logprobs = output?.['logprobs']?.data;
  const expected = sample.tokens.length - 1;
  if (logprobs?.length !== expected) {
    throw garbled(`${logprobs?.length ?? 'no'} log-probabilities, expected ${expected}`);
  }
  const found = masked(sample, logprobs, 1);
  const positive = found.find((value) => value > ABOVE_ZERO && value < Infinity);
  if (positive !== undefined) throw garbled(`the log-probability ${positive}, expected at most 0`);
  const bad = found.find((value) => !Number.isFinite(value));
  if (bad === undefined) return found;
  throw new TrainyardError('TRAINER_FAILED', `the server scored a token of ${rollout} with ${bad}`, {
    hint: 'the weights at the server are no longer usable; go on from an earlier checkpoint, with a smaller learning rate',
  });
}

function shifted({ tokens }: Sample, inputs: Readonly<Record<string, Float32Array>>): Datum {
  const floats = Object.entries(inputs).map(([name, data]) => [name, { dtype: 'float32', data: data.subarray(1) }] as const);
  return {
    tokens: tokens.subarray(0, -1),
    inputs: { target_tokens: { dtype: 'int64', data: tokens.subarray(1) }, ...Object.fromEntries(floats) },
  };
}

/** A loss that a Tinker server computes by name. */
export interface NamedLoss {
  readonly name: string;
  readonly settings: Readonly<Record<string, number>>;
  readonly datum: (sample: Sample) => Datum;
}

/**
 * Undefined where the loss has to be computed here. A loss is known by its name and exactly its settings: a KL penalty on top keeps the
 * name, so the settings decide. It must also be linear in the advantages, or a sample's weight could not be folded into them; `dro` is not.
 */
export function namedLoss({ name, settings }: Loss, samples: readonly Sample[]): NamedLoss | undefined {
  const given = Object.keys(settings).sort().join();
  if (name === 'cross_entropy' && given === '') return { name, settings: {}, datum: crossEntropyDatum };
  // Below 0, the smaller of two terms is the larger one of their weighted ones.
  if (samples.some(({ weight }) => weight < 0)) return undefined;
  if (name === 'importance_sampling' && given === '') return { name, settings: {}, datum: policyDatum };
  if ((name === 'ppo' || name === 'cispo') && given === 'clipHigh,clipLow') {
    const { clipLow, clipHigh } = settings as { readonly clipLow: number; readonly clipHigh: number };
    return { name, settings: { clip_low_threshold: 1 - clipLow, clip_high_threshold: 1 + clipHigh }, datum: policyDatum };
  }
  return undefined;
}

function crossEntropyDatum(sample: Sample): Datum {
  return weightedDatum(
    sample,
    masked(sample, sample.advantages).map((value) => value * sample.weight),
  );
}

// A batch's loss by its own definition: the number that is reported, whoever computed the gradient, and the derivatives where nobody else can.

const LOSS_TOLERANCE = 0.01;

export interface EvaluatedLoss {
  readonly result: ForwardBackwardResult;
  /** d loss / d log-probability of each sample's masked tokens, before the sample's weight. */
  readonly gradients: readonly Float32Array[];
  /** Sum of the samples' terms without their signs: what rounding is measured against. */
  readonly magnitude: number;
}

/** Throws TRAINER_FAILED where the loss throws or is not finite. */
export async function evaluateBatch(
  loss: Loss,
  samples: readonly Sample[],
  logprobs: readonly Float32Array[],
): Promise<EvaluatedLoss> {
  const outputs = await mapYielding(samples, (sample, i) => evaluateLoss(loss, sample, logprobs[i]!, i));
  return {
    result: { ...sumOfLosses(samples, outputs), logprobs },
    gradients: outputs.map(({ gradient }) => gradient),
    magnitude: outputs.reduce((sum, output, i) => sum + Math.abs(output.loss * samples[i]!.weight), 0),
  };
}

/** Our and a server's loss may differ by rounding, not by definition. Throws TRAINER_FAILED. */
export function checkLossSum({ result, magnitude }: EvaluatedLoss, lossSum: number | undefined, name: string): void {
  if (lossSum === undefined || Math.abs(lossSum - result.loss) <= LOSS_TOLERANCE * magnitude + 1e-6) return;
  throw new TrainyardError('TRAINER_FAILED', `the server's ${name} is ${lossSum} for a batch whose ${name} is ${result.loss}`, {
    hint: 'what this server calls by that name is another loss; train with another one',
  });
}

/** `lossSum` is a server's cross_entropy of a pass that weighs every one of these tokens 1. Throws TRAINER_FAILED where it is no plain sum. */
export function checkPlainSum(logprobs: readonly Float32Array[], lossSum: number | undefined, name: string): void {
  const expected = -logprobs.reduce((sum, own) => own.reduce((part, value) => part + value, sum), 0);
  if (lossSum !== undefined && Math.abs(lossSum - expected) <= LOSS_TOLERANCE * Math.abs(expected) + 1e-6) return;
  const found = lossSum === undefined ? 'does not report loss:sum' : `reports loss:sum ${lossSum} where the sum is ${expected}`;
  throw new TrainyardError(
    'TRAINER_FAILED',
    `${name} with these settings has to go through a weighted cross_entropy, and this server ${found}: it may not simply add up`,
    { hint: 'use a loss that the server has by name: without --kl' },
  );
}
