/**
 * Checks a sample request before an engine gets it: whatever passes fits the model, its vocabulary and its context.
 */

import { TrainyardError } from './errors.ts';
import type { SampleRequest } from './policy.ts';

/** What a model can take. */
export interface ModelBounds {
  readonly vocabSize: number;
  readonly contextLength: number;
}

/** Below it, scaled logits leave the range of float32. */
export const MIN_TEMPERATURE = 1e-3;

/** Whether a softmax can be computed at this temperature. */
export function isTemperature(value: number): boolean {
  return Number.isFinite(value) && value >= MIN_TEMPERATURE;
}

/** Throws CONTEXT_OVERFLOW when the prompt leaves no room for a token, REQUEST_INVALID for anything else that cannot be sampled. */
export function checkRequest({ promptIds, sampling, seed }: SampleRequest, { contextLength, vocabSize }: ModelBounds): void {
  if (promptIds.length === 0) throw invalid('the prompt is empty, expected at least one token');
  if (promptIds.length >= contextLength) {
    throw new TrainyardError('CONTEXT_OVERFLOW', `the prompt has ${promptIds.length} tokens, the context is ${contextLength}`, {
      hint: 'shorten the conversation or use a model with a longer context',
    });
  }
  const badId = promptIds.find((id) => id < 0 || id >= vocabSize);
  if (badId !== undefined) throw invalid(`prompt id ${badId} is outside the vocabulary of ${vocabSize}`);

  const { temperature, topP, topK, maxTokens } = sampling;
  if (temperature !== 0 && !isTemperature(temperature)) {
    throw invalid(`temperature is ${temperature}, expected 0 or at least ${MIN_TEMPERATURE}`);
  }
  if (!(topP > 0 && topP <= 1)) throw invalid(`topP is ${topP}, expected more than 0 and at most 1`);
  if (!(Number.isSafeInteger(topK) && topK >= 0)) throw invalid(`topK is ${topK}, expected a whole number of at least 0`);
  if (!(Number.isSafeInteger(maxTokens) && maxTokens >= 1)) throw invalid(`maxTokens is ${maxTokens}, expected at least 1`);
  if (!Number.isSafeInteger(seed)) throw invalid(`seed is ${seed}, expected a safe integer`);
}

function invalid(found: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', found);
}
