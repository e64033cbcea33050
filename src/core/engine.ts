/**
 * Between engines and trainers and their callers: checks of what they are asked, so that whatever passes fits the model, its vocabulary and
 * its context; and engines that sample in another way.
 */
import { TrainyardError } from './errors.ts';
import type { Engine, SampleRequest } from './policy.ts';
import type { Sample } from './types.ts';

/** What a model can take. */
interface ModelBounds {
  readonly vocabSize: number;
  readonly contextLength: number;
}

/** Below it, scaled logits leave the range of float32. */
const MIN_TEMPERATURE = 1e-3;

/** Whether a softmax can be computed at this temperature. */
function isTemperature(value: number): boolean {
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

/** The engine, sampling in another way. */
export function engineWith(engine: Engine, sample: Engine['sample']): Engine {
  return {
    sample,
    get vocabSize() {
      return engine.vocabSize;
    },
    get contextLength() {
      return engine.contextLength;
    },
    get policyVersion() {
      return engine.policyVersion;
    },
  };
}
