/**
 * The contracts of what samples and what learns: an `Engine`, a `Trainer`, and the losses between them. Tokens in, tokens out; nothing here
 * knows text, agents or rewards.
 */
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

/** Tokens in, tokens out. Knows nothing about text. */
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
  /** Of each sample's masked tokens, under the weights that the gradient was taken at. */
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
