/**
 * Converts samples to the Tinker API's datums and back, decides which losses the server can compute by name, and evaluates losses locally.
 * A datum's arrays are shifted: position i belongs to the token after input i, so it is position i + 1 of the sample. The wire has no mask:
 * untrained positions have weight, advantage and log-probability 0, and some servers take the mask as the weights of every loss. A sample's
 * own weight is folded into advantages and weights.
 */
import { mapYielding } from '../../../core/async.ts';
import { TrainyardError } from '../../../core/errors.ts';
import { evaluateLoss, type ForwardBackwardResult, type Loss, masked, sumOfLosses } from '../../../core/policy.ts';
import type { ByName, Sample } from '../../../core/types.ts';
import { type ClipSettings, cispo } from '../../../training/losses.ts';
import type { Datum, Tensor } from '../wire/tinker-messages.ts';

/** Rounding can lift the log-probability of a certain token slightly above 0. */
const ABOVE_ZERO = 1e-3;

/** For a forward pass: weight 1 at sampled tokens. */
export function scoringDatum(sample: Sample): Datum {
  return shifted(sample, { weights: Float32Array.from(sample.mask) });
}

/** For cross_entropy, whose gradient at each token is −weight. `weights` holds one value per masked token, in order. */
export function weightedDatum(sample: Sample, weights: Float32Array): Datum {
  const { mask } = sample;
  const spread = new Float32Array(mask.length);
  let next = 0;
  for (let i = 0; i < mask.length; i++) if (mask[i] === 1) spread[i] = weights[next++]!;
  return shifted(sample, { weights: spread });
}

/** For losses that compare with the sampling policy. `withMask`: says as weights which positions count. */
export function policyDatum(sample: Sample, withMask: boolean): Datum {
  const { mask, weight } = sample;
  const logprobs = new Float32Array(mask.length);
  const advantages = new Float32Array(mask.length);
  for (let i = 0; i < mask.length; i++) {
    if (mask[i] !== 1) continue;
    logprobs[i] = sample.logprobs[i]!;
    advantages[i] = sample.advantages[i]! * weight;
  }
  return shifted(sample, { logprobs, advantages, ...(withMask && { weights: Float32Array.from(mask) }) });
}

/** Samples without trained tokens are not sent: they have no gradient and no log-probabilities of interest. */
export function isTrained({ mask }: Sample): boolean {
  return mask.includes(1);
}

/** Picks the masked tokens' log-probabilities from the server's output. Throws if they are missing or unusable. */
export function scoredTokens(sample: Sample, output: ByName<Tensor> | undefined): Float32Array {
  const rollout = `rollout ${JSON.stringify(sample.rolloutId)}`;
  const garbled = (found: string) =>
    new TrainyardError('POLICY_GARBLED', `the server gave ${found}`, `${rollout}; check the server’s version`);
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
  throw new TrainyardError(
    'TRAINER_FAILED',
    `the server scored a token of ${rollout} with ${bad}`,
    'the weights at the server are no longer usable; go on from an earlier checkpoint, with a smaller learning rate',
  );
}

function shifted({ tokens }: Sample, inputs: ByName<Float32Array>): Datum {
  const floats = Object.entries(inputs).map(([name, data]) => [name, { dtype: 'float32', data: data.subarray(1) }] as const);
  return {
    tokens: tokens.subarray(0, -1),
    inputs: { target_tokens: { dtype: 'int64', data: tokens.subarray(1) }, ...Object.fromEntries(floats) },
  };
}

export interface NamedLoss {
  readonly name: string;
  readonly settings: ByName<number>;
  readonly datum: (sample: Sample, withMask: boolean) => Datum;
  /** What the server's value is compared with, where only the gradient is that of the loss asked for. */
  readonly value?: Loss;
}

/**
 * Undefined if the loss must be computed locally. A loss matches by name and exact settings, because a KL penalty on top keeps the name. It
 * must also be linear in the advantages, so that a sample's weight can be folded into them; `dro` is not. decoupled_ppo has the gradient of
 * cispo with its own bounds, unless weights are masked or belong to whole samples.
 */
export function namedLoss({ name, settings }: Loss, samples: readonly Sample[]): NamedLoss | undefined {
  const given = Object.keys(settings).sort().join();
  if (name === 'cross_entropy' && given === '') return { name, settings: {}, datum: crossEntropyDatum };
  // With a negative weight, folding it into the advantages would turn min into max.
  if (samples.some(({ weight }) => weight < 0)) return undefined;
  if (name === 'importance_sampling' && given === '') return { name, settings: {}, datum: policyDatum };
  if (['ppo', 'cispo', 'gspo'].includes(name) && given === 'clipHigh,clipLow') {
    const { clipLow, clipHigh } = settings as unknown as ClipSettings;
    return { name, settings: { clip_low_threshold: 1 - clipLow, clip_high_threshold: 1 + clipHigh }, datum: policyDatum };
  }
  return name === 'decoupled_ppo' ? asCispo(settings) : undefined;
}

function asCispo({ kl, entropy, dualClip, isLevel, isAction, isFloor = 0, isCap }: Loss['settings']): NamedLoss | undefined {
  const isPlain = (kl ?? entropy ?? dualClip) === undefined && isLevel === 'token' && isAction === 'truncate';
  if (!isPlain || typeof isFloor !== 'number' || typeof isCap !== 'number') return undefined;
  const bounds = { clip_low_threshold: isFloor, clip_high_threshold: isCap };
  return { name: 'cispo', settings: bounds, datum: policyDatum, value: cispo({ clipLow: 1 - isFloor, clipHigh: isCap - 1 }) };
}

/** A tiny sample, for asking a server what it can do. */
export function probeSample(vocabSize: number): Sample {
  const tokens = Int32Array.of(1, 2, 3, 4, 5, 6).map((id) => id % vocabSize);
  const zeros = new Float32Array(tokens.length);
  const rest = { versions: Int32Array.from(zeros), temperature: 1, weight: 1, rolloutId: 'probe', groupId: 'probe' };
  const advantages = Float32Array.of(0, 0, 1, -1, 0.5, -2);
  return { tokens, mask: Uint8Array.of(0, 0, 1, 1, 1, 1), logprobs: zeros, advantages, ...rest };
}

/** Its gradient is exactly 0. */
export function probeAtRest(sample: Sample): Sample {
  return { ...sample, advantages: new Float32Array(sample.tokens.length) };
}

/** As if other weights had sampled it, some tokens within the usual bounds of the ratio and some beyond. */
export function probeMoved(sample: Sample, logprobs: Float32Array): Sample {
  const [a = 0, b = 0, c = 0, d = 0] = logprobs;
  return { ...sample, logprobs: Float32Array.of(0, 0, a - 0.1, b - 0.7, c / 2, d / 2) };
}

function crossEntropyDatum(sample: Sample): Datum {
  return weightedDatum(
    sample,
    masked(sample, sample.advantages).map((value) => value * sample.weight),
  );
}

const LOSS_TOLERANCE = 0.01;

interface EvaluatedLoss {
  readonly result: ForwardBackwardResult;
  /** d loss / d log-probability of each sample's masked tokens, before the sample's weight. */
  readonly gradients: readonly Float32Array[];
  /** Sum of the absolute terms of the samples, as the scale for rounding errors. */
  readonly magnitude: number;
}

/** Evaluates a batch's loss by our own definition. Throws TRAINER_FAILED if the loss throws or is not finite. */
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

/** Our loss and the server's may differ by rounding only. Throws TRAINER_FAILED otherwise. */
export function checkLossSum({ result, magnitude }: EvaluatedLoss, lossSum: number | undefined, name: string): void {
  if (lossSum === undefined || Math.abs(lossSum - result.loss) <= LOSS_TOLERANCE * magnitude + 1e-6) return;
  throw new TrainyardError(
    'TRAINER_FAILED',
    `the server's ${name} is ${lossSum} for a batch whose ${name} is ${result.loss}`,
    'what this server calls by that name is another loss; train with another one',
  );
}

/** `lossSum`: the server's cross_entropy with weight 1 for each of these tokens. Throws TRAINER_FAILED if it is not their plain sum. */
export function checkPlainSum(logprobs: readonly Float32Array[], lossSum: number | undefined, name: string): void {
  const expected = -logprobs.reduce((sum, own) => own.reduce((part, value) => part + value, sum), 0);
  if (lossSum !== undefined && Math.abs(lossSum - expected) <= LOSS_TOLERANCE * Math.abs(expected) + 1e-6) return;
  const found = lossSum === undefined ? 'does not report loss:sum' : `reports loss:sum ${lossSum} where the sum is ${expected}`;
  throw new TrainyardError(
    'TRAINER_FAILED',
    `${name} with these settings has to go through a weighted cross_entropy, and this server ${found}: it may not simply add up`,
    'use a loss that the server has by name, such as --loss ppo, without --kl and --entropy',
  );
}
