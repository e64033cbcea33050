/**
 * A batch's loss from the log-probabilities of its samples, by the loss's own definition: the number that is reported, whoever
 * computed the gradient, and the derivatives where nobody else can.
 */
import type { ForwardBackwardResult, Loss, LossOutput } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Sample } from '../core/types.ts';
import { lossInput } from './datum.ts';

export interface EvaluatedLoss {
  readonly result: ForwardBackwardResult;
  /** d loss / d log-probability of each sample's masked tokens, before the sample's weight. */
  readonly gradients: readonly Float32Array[];
  /** Sum of the samples' terms without their signs: what rounding is measured against. */
  readonly magnitude: number;
}

/** Throws TRAINER_FAILED where the loss throws or is not finite. */
export function evaluateLoss(loss: Loss, samples: readonly Sample[], logprobs: readonly Float32Array[]): EvaluatedLoss {
  const metrics: Record<string, number> = {};
  const gradients: Float32Array[] = [];
  let [sum, magnitude, trainedTokens] = [0, 0, 0];
  samples.forEach((sample, i) => {
    const output = evaluate(loss, sample, logprobs[i]!, i);
    gradients.push(output.gradient);
    sum += output.loss * sample.weight;
    magnitude += Math.abs(output.loss * sample.weight);
    trainedTokens += logprobs[i]!.length;
    for (const [name, value] of Object.entries(output.metrics ?? {})) metrics[name] = (metrics[name] ?? 0) + value;
  });
  return { result: { loss: sum, trainedTokens, metrics, logprobs }, gradients, magnitude };
}

function evaluate(loss: Loss, sample: Sample, logprobs: Float32Array, index: number): LossOutput {
  let output: LossOutput;
  try {
    output = loss.evaluate(lossInput(sample, logprobs));
  } catch (cause) {
    throw new TrainyardError('TRAINER_FAILED', `loss ${loss.name} threw on sample ${index}: ${messageOf(cause)}`, { cause });
  }
  const finite = Number.isFinite(output.loss) && output.gradient.every(Number.isFinite);
  if (finite && output.gradient.length === logprobs.length) return output;
  const found = finite ? `${output.gradient.length} derivatives for ${logprobs.length} tokens` : 'a value that is not finite';
  throw new TrainyardError('TRAINER_FAILED', `loss ${loss.name} gave ${found} on sample ${index}`, {
    hint: 'log-probabilities have moved too far from those recorded when sampling; lower the learning rate or the staleness',
  });
}
