/**
 * What is said between a client and a server of the Tinker API, apart from how it is written: `json.ts` and `protobuf.ts` give each
 * of these both forms. Names are ours; the wire's own are in the codecs alone.
 *
 * Only text is spoken here: a datum or prompt with an image or sound in it is refused by whoever decodes it.
 */

/** Numbers with a name. int64 on the wire; ids and counts all fit in 32 bits, and what does not is refused. */
export type Tensor =
  | { readonly dtype: 'float32'; readonly data: Float32Array; readonly shape?: readonly number[] }
  | { readonly dtype: 'int64'; readonly data: Int32Array; readonly shape?: readonly number[] };

/**
 * One training row. `tokens` are all but the last token of a sequence and `inputs.target_tokens` all but the first, so that position i
 * of every input belongs to the token that follows tokens[i].
 */
export interface Datum {
  readonly tokens: Int32Array;
  /** By the wire's names: target_tokens, weights, logprobs, advantages. */
  readonly inputs: Readonly<Record<string, Tensor>>;
}

export interface PassRequest {
  readonly modelId: string;
  /** 1, 2, 3 … for each model: order, and what tells a repetition from a new request. */
  readonly seqId: number | undefined;
  readonly data: readonly Datum[];
  readonly loss: string;
  readonly lossSettings: Readonly<Record<string, number>>;
  /** Without a gradient. */
  readonly forwardOnly: boolean;
}

export interface PassResult {
  readonly outputType: string;
  /** One for each datum; `logprobs` of every position among them. */
  readonly outputs: readonly Readonly<Record<string, Tensor>>[];
  /** By the wire's names, such as `loss:sum`: name and how it is put together over chunks. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** What is sampled from. */
export type SampleSource =
  | { readonly kind: 'session'; readonly samplingSessionId: string; readonly seqId: number | string }
  | { readonly kind: 'base'; readonly baseModel: string }
  | { readonly kind: 'path'; readonly path: string };

export interface SampleCall {
  readonly source: SampleSource;
  readonly prompt: Int32Array;
  readonly count: number;
  readonly maxTokens: number | undefined;
  readonly seed: number | undefined;
  readonly temperature: number;
  /** −1: no truncation. */
  readonly topK: number;
  readonly topP: number;
  /** Ids or texts, never both. */
  readonly stop: readonly number[] | readonly string[];
  readonly wantsPromptLogprobs: boolean;
}

export interface SampledSequence {
  readonly stopReason: 'stop' | 'length';
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array | undefined;
}

export interface SampleReply {
  readonly sequences: readonly SampledSequence[];
  /** NaN where there is none: nothing predicts the first token. */
  readonly promptLogprobs?: Float32Array | undefined;
}

export interface AdamParams {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weightDecay: number;
  /** 0: no clipping. */
  readonly gradClipNorm: number;
}

/** Whose fault a failed request was, as the wire says it. */
export type FailureCategory = 'user' | 'server' | 'unknown';

export const PROTOBUF = 'application/x-protobuf';
