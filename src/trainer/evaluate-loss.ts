/**
 * A batch's loss from the log-probabilities of its samples, by the loss's own definition: the number that is reported, whoever
 * computed the gradient, and the derivatives where nobody else can.
 */
import type { ForwardBackwardResult, Loss, LossOutput } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Sample } from '../core/types.ts';
import { lossInput } from './datum.ts';
import { mapInSlices } from './in-slices.ts';

const LOSS_TOLERANCE = 0.01;

export interface EvaluatedLoss {
  readonly result: ForwardBackwardResult;
  /** d loss / d log-probability of each sample's masked tokens, before the sample's weight. */
  readonly gradients: readonly Float32Array[];
  /** Sum of the samples' terms without their signs: what rounding is measured against. */
  readonly magnitude: number;
}

/** Throws TRAINER_FAILED where the loss throws or is not finite. */
export async function evaluateLoss(
  loss: Loss,
  samples: readonly Sample[],
  logprobs: readonly Float32Array[],
): Promise<EvaluatedLoss> {
  const outputs = await mapInSlices(samples, (sample, i) => evaluate(loss, sample, logprobs[i]!, i));
  const metrics: Record<string, number> = {};
  let [sum, magnitude, trainedTokens] = [0, 0, 0];
  outputs.forEach((output, i) => {
    const term = output.loss * samples[i]!.weight;
    sum += term;
    magnitude += Math.abs(term);
    trainedTokens += logprobs[i]!.length;
    for (const [name, value] of Object.entries(output.metrics ?? {})) metrics[name] = (metrics[name] ?? 0) + value;
  });
  const gradients = outputs.map(({ gradient }) => gradient);
  return { result: { loss: sum, trainedTokens, metrics, logprobs }, gradients, magnitude };
}

/** Our and a server's loss may differ by rounding, not by definition. Throws TRAINER_FAILED. */
export function checkLossSum({ result, magnitude }: EvaluatedLoss, lossSum: number | undefined, name: string): void {
  if (lossSum === undefined || Math.abs(lossSum - result.loss) <= LOSS_TOLERANCE * magnitude + 1e-6) return;
  throw new TrainyardError('TRAINER_FAILED', `the server's ${name} is ${lossSum} for a batch whose ${name} is ${result.loss}`, {
    hint: 'what this server calls by that name is another loss; choose another one with --loss',
  });
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
