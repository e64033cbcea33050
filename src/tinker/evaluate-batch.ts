/**
 * A batch's loss from the log-probabilities of its samples, by the loss's own definition: the number that is reported, whoever
 * computed the gradient, and the derivatives where nobody else can.
 */
import { mapYielding } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { ForwardBackwardResult, Loss } from '../core/policy.ts';
import { evaluateLoss, sumOfLosses } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';

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
