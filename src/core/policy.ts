/**
 * The contracts of what samples and what learns: an `Engine`, a `Trainer`, and the losses between them. Tokens in, tokens out; nothing here
 * knows text, agents or rewards.
 */
import { messageOf, TrainyardError } from './errors.ts';
import type { Sample, SamplingSettings, StopReason } from './types.ts';

export interface SampleRequest {
  /** Not to be changed; may be a part of a larger buffer that prompts share. */
  readonly promptIds: Int32Array;
  readonly sampling: SamplingSettings;
  readonly stopIds: readonly number[];
  /** A safe integer. Same request and seed, same weights → same tokens. */
  readonly seed: number;
  /** Requests with the same hint share prompts; an engine may use it to place them together. Never changes the result. */
  readonly affinity?: string;
}

export interface SampleResult {
  /** Sampled ids; the stop id is the last one when `stopReason` is `stop`. */
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly stopReason: StopReason;
  /** The one version all these tokens were sampled from. */
  readonly policyVersion: number;
}

/** May say how many of these tokens to keep: then sampling ends with them, as by a stop id. */
export type OnTokens = (ids: Int32Array, logprobs: Float32Array) => { readonly keep: number } | undefined;

export interface Engine {
  readonly vocabSize: number;
  /** Prompt and sampled tokens together. */
  readonly contextLength: number;
  readonly policyVersion: number;
  /**
   * Throws CONTEXT_OVERFLOW when the prompt leaves no room for a token. `onTokens` gets the tokens while they are sampled, a few
   * at a time, all of them before the promise resolves: put together they are the result's. None come after a cancellation.
   */
  sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult>;
}

/** One sample's trained tokens, in order; all arrays have the same length. */
export interface LossInput {
  /** Log-probabilities under the weights being trained, at the sampled temperature. */
  readonly logprobs: Float32Array;
  /** Log-probabilities recorded when the tokens were sampled. */
  readonly sampled: Float32Array;
  /** Advantages; for cross_entropy the token weights. */
  readonly advantages: Float32Array;
  readonly reference: Float32Array | undefined;
}

export interface LossOutput {
  /** Summed over tokens. */
  readonly loss: number;
  /** d loss / d logprobs, token by token. */
  readonly gradient: Float32Array;
  /** Sums over tokens, for reports. */
  readonly metrics?: Readonly<Record<string, number>>;
}

/** A pure function of one sample's log-probabilities; a batch's loss is the weighted sum over its samples. */
export interface Loss {
  readonly name: string;
  readonly settings: Readonly<Record<string, number>>;
  evaluate(input: LossInput): LossOutput;
}

export interface AdamSettings {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** Gradients are scaled down to this global norm; 0 = no clipping. */
  readonly maxGradNorm: number;
}

export interface ForwardBackwardResult {
  readonly loss: number;
  readonly trainedTokens: number;
  /** Sums over trained tokens. */
  readonly metrics: Readonly<Record<string, number>>;
  /** Of each sample's masked tokens, at the weights of the gradient. */
  readonly logprobs: readonly Float32Array[];
}

/**
 * Tinker's verbs. Knows nothing about agents.
 *
 * Verbs take effect in the order they were called, whether or not an earlier one has resolved. When the weights are somewhere else and
 * were lost there, a verb throws POLICY_LOST and has had no effect; `load` begins anew from what was saved.
 */
export interface Trainer {
  /** Log-probabilities of each sample's masked tokens under the current or the frozen reference weights. */
  forward(samples: readonly Sample[], weights?: 'current' | 'reference'): Promise<Float32Array[]>;
  /** Adds the loss's gradient to the accumulated one. */
  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult>;
  /**
   * One AdamW update with the accumulated gradient, which is then zero. Fails if the forwardBackward before it failed: no step is taken
   * on part of a gradient. The norm is that before clipping, where it is told.
   */
  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number | undefined }>;
  /** The engine serves the current weights as this version from now on. */
  publish(policyVersion: number): Promise<void>;
  /** Writes weights and optimizer state into an existing empty folder. Does not fsync. */
  save(dir: string): Promise<void>;
  /** Reads what `save` wrote; a folder without optimizer state, or `optimizer: false`, starts it fresh. Throws CHECKPOINT_MISMATCH for another model. */
  load(dir: string, options?: { readonly optimizer?: boolean }): Promise<void>;
  /** What was saved in this folder is about to be removed and will not be loaded again. Never throws. */
  forget(dir: string): Promise<void>;
  /** Keeps the current weights as the reference for `forward(…, 'reference')`. */
  freezeReference(): Promise<void>;
}

// ── checks of what engines and trainers are asked ─────────────────────────────────────────────────────────────────────────

type ModelBounds = Pick<Engine, 'vocabSize' | 'contextLength'>;

/** Below it, scaled logits leave the range of float32. */
const MIN_TEMPERATURE = 1e-3;

const isTemperature = (value: number): boolean => Number.isFinite(value) && value >= MIN_TEMPERATURE;

/** Throws CONTEXT_OVERFLOW when the prompt leaves no room for a token, REQUEST_INVALID for anything else that cannot be sampled. */
export function checkRequest({ promptIds, sampling, seed }: SampleRequest, { contextLength, vocabSize }: ModelBounds): void {
  if (promptIds.length === 0) throw invalid('the prompt is empty, expected at least one token');
  const hint = 'shorten the conversation or use a model with a longer context';
  if (promptIds.length >= contextLength)
    throw new TrainyardError('CONTEXT_OVERFLOW', `the prompt has ${promptIds.length} tokens, the context is ${contextLength}`, {
      hint,
    });
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
  const { vocabSize, contextLength } = engine;
  return {
    ...{ vocabSize, contextLength, sample },
    get policyVersion() {
      return engine.policyVersion;
    },
  };
}

// ── a loss on the samples of a batch ──────────────────────────────────────────────────────────────────────────────────────

/**
 * The loss of one sample: one finite derivative for each trained token, else TRAINER_FAILED. `logprobs` are those of the sample's masked
 * tokens, in order. `index`: its place in the batch.
 */
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
