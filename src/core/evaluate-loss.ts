/**
 * A loss on the samples of a batch, with what must hold of it: one finite derivative for each trained token. The same wherever the
 * log-probabilities come from.
 */
import { messageOf, TrainyardError } from './errors.ts';
import type { ForwardBackwardResult, Loss, LossOutput } from './policy.ts';
import type { Sample } from './types.ts';

/** `logprobs` are those of the sample's masked tokens, in order. `index`: its place in the batch. Throws TRAINER_FAILED. */
export function evaluateLoss(loss: Loss, sample: Sample, logprobs: Float32Array, index: number): LossOutput {
  const { reference } = sample;
  let output: LossOutput;
  try {
    output = loss.evaluate({
      logprobs,
      sampled: masked(sample, sample.logprobs),
      advantages: masked(sample, sample.advantages),
      reference: reference && masked(sample, reference),
    });
  } catch (cause) {
    throw new TrainyardError('TRAINER_FAILED', `loss ${loss.name} threw on sample ${index}: ${messageOf(cause)}`, { cause });
  }
  const finite = Number.isFinite(output.loss) && output.gradient.every(Number.isFinite);
  if (finite && output.gradient.length === logprobs.length) return output;
  const found = finite ? `${output.gradient.length} derivatives for ${logprobs.length} tokens` : 'a value that is not finite';
  throw new TrainyardError('TRAINER_FAILED', `loss ${loss.name} gave ${found} on sample ${index}`, {
    hint: 'no step was taken; log-probabilities may have moved too far from those recorded: lower the learning rate or the staleness',
  });
}

/** Undefined: a sample without trained tokens. In the order of the samples, so that the sum does not depend on timing. */
export function sumOfLosses(
  samples: readonly Sample[],
  outputs: readonly (LossOutput | undefined)[],
): Omit<ForwardBackwardResult, 'logprobs'> {
  const metrics: Record<string, number> = {};
  let [loss, trainedTokens] = [0, 0];
  outputs.forEach((output, i) => {
    if (output === undefined) return;
    loss += output.loss * samples[i]!.weight;
    trainedTokens += output.gradient.length;
    for (const [name, value] of Object.entries(output.metrics ?? {})) metrics[name] = (metrics[name] ?? 0) + value;
  });
  return { loss, trainedTokens, metrics };
}

/** Of a sample's masked tokens, in order. `values` may begin at a later position of the sample. */
export function masked({ mask }: Sample, values: ArrayLike<number>, from = 0): Float32Array<ArrayBuffer> {
  let count = 0;
  for (let i = 0; i < mask.length; i++) count += mask[i]!;
  const found = new Float32Array(count);
  let next = 0;
  for (let i = from; i < mask.length; i++) if (mask[i] === 1) found[next++] = values[i - from]!;
  return found;
}
