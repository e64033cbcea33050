/** The contracts of sampling and training: `Engine`, `Trainer`, and the losses between them. Knows tokens; no text, agents or rewards. */
import { messageOf, TrainyardError } from './errors.ts';
import type { SampleConstraint } from './json-machine.ts';
import type { ByName, Sample, SamplingSettings, StopReason } from './types.ts';

export interface SampleRequest {
  /** Read-only; may be a view of a larger buffer that prompts share. */
  readonly promptIds: Int32Array;
  readonly sampling: SamplingSettings;
  readonly stopIds: readonly number[];
  /** A safe integer. The same request, seed and weights give the same tokens. */
  readonly seed: number;
  /** Requests with the same hint share a prompt prefix, so an engine may place them together. Never changes the result. */
  readonly affinity?: string;
  /** Only for engines with `constrains`. */
  readonly constraint?: SampleConstraint;
}

export interface SampleResult {
  /** Sampled ids, ending with the stop id if `stopReason` is `stop`. */
  readonly ids: Int32Array;
  /** Of the policy's own distribution, which knows no constraint. */
  readonly logprobs: Float32Array;
  readonly stopReason: StopReason;
  /** The one version that sampled all of these tokens. */
  readonly policyVersion: number;
}

/** May return how many of these tokens to keep; sampling then ends there, as if by a stop id. */
export type OnTokens = (ids: Int32Array, logprobs: Float32Array) => { readonly keep: number } | undefined;

/** For people: a model that is computed in this process, and the memory that is planned for it. */
export interface ModelPlan {
  readonly parameters: number;
  readonly trained: number;
  readonly loraRank?: number;
  readonly context: number;
  /** Reserved at most; only what is used is taken from the machine. */
  readonly bytes: number;
  readonly text: string;
}

export interface Engine {
  readonly vocabSize: number;
  /** Maximum of prompt and sampled tokens together. */
  readonly contextLength: number;
  readonly policyVersion: number;
  /** Present if the engine follows a request's constraint. */
  readonly constrains?: true;
  /**
   * Throws CONTEXT_OVERFLOW if the prompt leaves no room for a token. `onTokens` receives the tokens in small chunks during sampling, all
   * before the promise resolves; concatenated, they equal the result. None arrive after a cancellation.
   */
  sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult>;
}

/** The trained tokens of one sample, in order. All arrays have the same length. */
export interface LossInput {
  /** Under the weights being trained, at the sampling temperature. */
  readonly logprobs: Float32Array;
  /** As recorded during sampling. */
  readonly sampled: Float32Array;
  /** For cross_entropy, the token weights. */
  readonly advantages: Float32Array;
  readonly reference: Float32Array | undefined;
  /** Under the proximal policy of decoupled_ppo. Default: `logprobs`, the policy at the start of the step. */
  readonly proximal?: Float32Array;
}

export interface LossOutput {
  /** Summed over tokens. */
  readonly loss: number;
  /** d loss / d logprobs, per token. */
  readonly gradient: Float32Array;
  /** Sums over tokens, for reports. */
  readonly metrics?: ByName<number>;
}

/** A pure function of one sample's log-probabilities. A batch's loss is the weighted sum over its samples. */
export interface Loss {
  readonly name: string;
  readonly settings: ByName<number | string>;
  evaluate(input: LossInput): LossOutput;
}

export interface AdamSettings {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** Clips gradients to this global norm; 0 disables clipping. */
  readonly maxGradNorm: number;
}

export interface ForwardBackwardResult {
  readonly loss: number;
  readonly trainedTokens: number;
  /** Sums over trained tokens. */
  readonly metrics: ByName<number>;
  /** For each sample's masked tokens, under the weights that the gradient was computed at. */
  readonly logprobs: readonly Float32Array[];
}

/**
 * Tinker's verbs; knows nothing about agents. Verbs take effect in call order, whether or not earlier ones have resolved. If a remote
 * server has lost the weights, a verb throws POLICY_LOST and has no effect; `load` starts again from a saved state.
 */
export interface Trainer {
  /** Log-probabilities of each sample's masked tokens under the current or the frozen reference weights. */
  forward(samples: readonly Sample[], weights?: 'current' | 'reference'): Promise<Float32Array[]>;
  /** Adds the loss's gradient to the accumulated gradient. */
  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult>;
  /**
   * Applies one AdamW update with the accumulated gradient, then zeroes it. Fails if the preceding forwardBackward failed, so that no step
   * uses a partial gradient. `gradNorm` is measured before clipping; undefined if the backend does not report it.
   */
  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number | undefined }>;
  /** The engine serves the current weights as this version from now on. */
  publish(policyVersion: number): Promise<void>;
  /** Writes weights and optimizer state into an existing empty folder; with `optimizer: false`, weights to sample from. Does not fsync. */
  save(dir: string, options?: { readonly optimizer?: boolean }): Promise<void>;
  /** Starts with a fresh optimizer if none was saved, or with `optimizer: false`. Throws CHECKPOINT_MISMATCH for another model. */
  load(dir: string, options?: { readonly optimizer?: boolean }): Promise<void>;
  /** Announces that this saved folder is about to be removed and will not be loaded again. Never throws. */
  forget(dir: string): Promise<void>;
  freezeReference(): Promise<void>;
  /**
   * Called before a run spends anything on a loss. Throws USAGE, naming those of `others` that it can train, if it cannot train this one.
   * Leaves weights and gradient as they are. A trainer without it trains every loss.
   */
  checkLoss?(loss: Loss, others: readonly Loss[]): Promise<void>;
}

type ModelBounds = Pick<Engine, 'vocabSize' | 'contextLength'>;

/** Below this, scaled logits overflow float32. */
const MIN_TEMPERATURE = 1e-3;

const isTemperature = (value: number) => Number.isFinite(value) && value >= MIN_TEMPERATURE;

export const OVERFLOW_HINT =
  'shorten the conversation, instructions and tools included, give a larger --context if the model allows it, or use one with a longer context';

export function checkFits({ length }: Int32Array, contextLength: number): void {
  if (length < contextLength) return;
  const found = `the prompt has ${length} tokens, the context is ${contextLength}`;
  throw new TrainyardError('CONTEXT_OVERFLOW', found, OVERFLOW_HINT);
}

/** Throws CONTEXT_OVERFLOW if the prompt leaves no room for a token, REQUEST_INVALID for anything else that cannot be sampled. */
export function checkRequest({ promptIds, sampling, seed }: SampleRequest, { contextLength, vocabSize }: ModelBounds): void {
  if (promptIds.length === 0) throw invalid('the prompt is empty, expected at least one token');
  checkFits(promptIds, contextLength);
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

/** Throws SAMPLE_REFUSED if the sample cannot be trained as it is. */
export function checkSample(sample: Sample, index: number, bounds: ModelBounds): void {
  const refuse = (found: string) => {
    const message = `sample ${index} (rollout ${JSON.stringify(sample.rolloutId)}): ${found}`;
    throw new TrainyardError('SAMPLE_REFUSED', message, { details: { rollouts: [sample.rolloutId] } });
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

export function engineWith(engine: Engine, sample: Engine['sample']): Engine {
  const { vocabSize, contextLength, constrains } = engine;
  return {
    vocabSize,
    contextLength,
    sample,
    ...(constrains && { constrains }),
    get policyVersion() {
      return engine.policyVersion;
    },
  };
}

/** Throws TRAINER_FAILED unless loss and derivatives are finite, one per token. `logprobs`: of the masked tokens. `index`: in the batch. */
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
  throw new TrainyardError(
    'TRAINER_FAILED',
    `loss ${loss.name} gave ${found} on sample ${index}`,
    'no step was taken; log-probabilities may have moved too far from those recorded: lower the learning rate or the staleness',
  );
}

/** An output is undefined if its sample has no trained tokens. Sums in sample order, so that the result does not depend on timing. */
export function sumOfLosses(
  samples: readonly Sample[],
  outputs: readonly (LossOutput | undefined)[],
): Omit<ForwardBackwardResult, 'logprobs'> {
  const metrics: Record<string, number> = {};
  let loss = 0;
  let trainedTokens = 0;
  outputs.forEach((output, i) => {
    if (output === undefined) return;
    loss += output.loss * samples[i]!.weight;
    trainedTokens += output.gradient.length;
    for (const [name, value] of Object.entries(output.metrics ?? {})) metrics[name] = (metrics[name] ?? 0) + value;
  });
  return { loss, trainedTokens, metrics };
}

/** The values of a sample's masked tokens, in order. `values[0]` belongs to position `from` of the sample. */
export function masked({ mask }: Sample, values: ArrayLike<number>, from = 0): Float32Array<ArrayBuffer> {
  let count = 0;
  for (let i = 0; i < mask.length; i++) count += mask[i]!;
  const found = new Float32Array(count);
  let next = 0;
  for (let i = from; i < mask.length; i++) if (mask[i] === 1) found[next++] = values[i - from]!;
  return found;
}
