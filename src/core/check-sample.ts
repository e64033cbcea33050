/**
 * Checks a sample before it is trained: whatever passes fits the model, its vocabulary and its context.
 */
import { isTemperature, MIN_TEMPERATURE, type ModelBounds } from './check-request.ts';
import { TrainyardError } from './errors.ts';
import type { Sample } from './types.ts';

/** Throws SAMPLE_REFUSED for what cannot be trained as it is. */
export function checkSample(sample: Sample, index: number, bounds: ModelBounds): void {
  const refuse = (found: string) => {
    throw new TrainyardError('SAMPLE_REFUSED', `sample ${index} (rollout ${JSON.stringify(sample.rolloutId)}): ${found}`);
  };
  const length = sample.tokens.length;
  const { mask, logprobs, advantages, versions, reference } = sample;
  for (const [name, array] of Object.entries({ mask, logprobs, advantages, versions, reference })) {
    if (array !== undefined && array.length !== length)
      refuse(`${name} has ${array.length} entries, expected ${length} as tokens`);
  }
  if (length > bounds.contextLength) refuse(`it has ${length} tokens, the context is ${bounds.contextLength}`);
  if (mask[0] === 1) refuse('its first token is masked in, but nothing predicts it');
  const badMask = mask.find((m) => m > 1);
  if (badMask !== undefined) refuse(`mask holds ${badMask}, expected 0 or 1`);
  const badId = sample.tokens.find((id) => id < 0 || id >= bounds.vocabSize);
  if (badId !== undefined) refuse(`token id ${badId} is outside the vocabulary of ${bounds.vocabSize}`);
  for (const [name, array] of Object.entries({ logprobs, advantages, reference })) {
    const bad = array?.find((value) => !Number.isFinite(value));
    if (bad !== undefined) refuse(`${name} holds ${bad}, expected finite numbers`);
  }
  if (!Number.isFinite(sample.weight)) refuse(`its weight is ${sample.weight}, expected a finite number`);
  if (!isTemperature(sample.temperature)) {
    refuse(`its temperature is ${sample.temperature}, expected at least ${MIN_TEMPERATURE}`);
  }
}
