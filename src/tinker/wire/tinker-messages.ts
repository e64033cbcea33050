/**
 * The messages of the Tinker API. The large ones (passes and samples) apart from how they are written: `tinker-json.ts` and `protobuf.ts`
 * give them both forms, and only text is supported. The small requests and replies, which are always JSON, by the wire's own names.
 *
 * Only keys that somebody reads are listed. Others are ignored on both sides: servers and clients of other versions add their own. What may
 * be left out may also be null. Also here: the paths of saved weights.
 */
import { z } from 'zod';
import type { AdamSettings } from '../../core/policy.ts';
import { shown, WireError } from './codec.ts';

/** Numbers with a name. The wire has int64; ids and counts fit in 32 bits, and decoders refuse what does not. */
export type Tensor =
  | { readonly dtype: 'float32'; readonly data: Float32Array; readonly shape?: readonly number[] }
  | { readonly dtype: 'int64'; readonly data: Int32Array; readonly shape?: readonly number[] };

export type Tensors = Readonly<Record<string, Tensor>>;

/**
 * One training row. `tokens` are all but the last token of a sequence and `inputs.target_tokens` all but the first, so that position i
 * of every input belongs to the token that follows tokens[i].
 */
export interface Datum {
  readonly tokens: Int32Array;
  /** By the wire's names: target_tokens, weights, logprobs, advantages. */
  readonly inputs: Tensors;
}

export interface PassRequest {
  readonly modelId: string;
  /** 1, 2, 3 … for each model: the order of requests, and what tells a repetition from a new one. */
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
  readonly outputs: readonly Tensors[];
  /** By the wire's names, such as `loss:sum`: the name, and how values of several chunks are combined. */
  readonly metrics: Readonly<Record<string, number>>;
}

export interface SampledSequence {
  readonly stopReason: 'stop' | 'length';
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array | undefined;
}

export interface SampleReply {
  readonly sequences: readonly SampledSequence[];
  /** NaN for the first token, which nothing predicts. */
  readonly promptLogprobs?: Float32Array | undefined;
}

export const PROTOBUF = 'application/x-protobuf';

const natural = z.int().min(0);
const seqId = z.int().min(1).nullish();
const id = z.string().min(1);
/** What a user hung on a checkpoint. */
const labels = z.record(z.string(), z.string()).nullish();

// Getting to know each other, and sessions.

/** What a server leaves out has the default that clients of the hosted service have. */
export const clientConfigReply = z.object({
  /** Datums in one request. */
  fwdbwd_max_chunk_len: z.int().min(1).default(1024),
  /** Bytes of one request's body. */
  fwdbwd_max_chunk_bytes_count: z.int().min(1).default(5_000_000),
  sample_max_concurrent_requests: z.int().min(1).default(2000),
});
export type ClientConfigReply = z.infer<typeof clientConfigReply>;

export const capabilitiesReply = z.object({
  supported_models: z.array(
    z.object({
      model_name: z.string().nullish(),
      max_context_length: z.int().nullish(),
      /** Ours alone: of its tokenizer.json. */
      tokenizer_sha256: z.string().nullish(),
    }),
  ),
});

export const createSessionRequest = z.object({});
export const createSessionReply = z.object({ session_id: id });
export const sessionHeartbeatRequest = z.object({ session_id: id });

// Models.

export const createModelRequest = z.object({
  session_id: id,
  model_seq_id: natural.nullish(),
  base_model: z.string(),
  user_metadata: z.record(z.string(), z.unknown()).nullish(),
  lora_config: z
    .object({ rank: z.int().min(1), seed: z.int().nullish() })
    .loose()
    .nullish(),
  /** Only the family's name is looked at. */
  optimizer_config: z.object({ type: z.string() }).nullish(),
});

export const createModelReply = z.object({ model_id: id });

/** Of `get_info` and `unload_model`. */
export const modelRequest = z.object({ model_id: id });

const adamParams = z
  .object({
    learning_rate: z.number().default(1e-4),
    beta1: z.number().default(0.9),
    beta2: z.number().default(0.95),
    eps: z.number().default(1e-12),
    weight_decay: z.number().default(0),
    /** 0: no clipping. */
    grad_clip_norm: z.number().default(0),
  })
  .transform(
    (wire): AdamSettings => ({
      learningRate: wire.learning_rate,
      beta1: wire.beta1,
      beta2: wire.beta2,
      epsilon: wire.eps,
      weightDecay: wire.weight_decay,
      maxGradNorm: wire.grad_clip_norm,
    }),
  );

export function adamToWire(adam: AdamSettings): Readonly<Record<string, number>> {
  return {
    learning_rate: adam.learningRate,
    beta1: adam.beta1,
    beta2: adam.beta2,
    eps: adam.epsilon,
    weight_decay: adam.weightDecay,
    grad_clip_norm: adam.maxGradNorm,
  };
}

/** The settings of another optimizer come in `optimizer_params`, without `adam_params`. */
export const optimStepRequest = z.object({
  model_id: id,
  seq_id: seqId,
  adam_params: adamParams.optional(),
  optimizer_params: z.object({ type: z.string() }).nullish(),
});
export const optimStepReply = z.object({ metrics: z.record(z.string(), z.number()).nullish() });

// Sampling sessions.

export const createSamplingSessionRequest = z.object({
  session_id: id,
  sampling_session_seq_id: natural,
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
});
export const createSamplingSessionReply = z.object({ sampling_session_id: id });

// Weights.

/** `path` is a name here, not a tinker:// path. */
export const saveWeightsRequest = z.object({
  model_id: id,
  path: z.string().nullish(),
  seq_id: seqId,
  overwrite: z.boolean().nullish(),
  user_metadata: labels,
});
export const saveWeightsReply = z.object({ path: z.string() });

/** With a name in `path`: weights that last. Without: a sampling session at once, and no path. */
export const saveWeightsForSamplerRequest = saveWeightsRequest.omit({ overwrite: true });
export const saveWeightsForSamplerReply = z.object({ path: z.string().nullish(), sampling_session_id: id.nullish() });

export const loadWeightsRequest = z.object({
  model_id: id,
  seq_id: seqId,
  path: z.string(),
  /** Whether the optimizer's state is loaded too. */
  optimizer: z.boolean().default(false),
});
export const weightsInfoRequest = z.object({ tinker_path: z.string() });

export type WeightsKind = 'weights' | 'sampler_weights';

/**
 * Where saved weights lie: `tinker://<model>/weights/<name>` for a state that training goes on from,
 * `tinker://<model>/sampler_weights/<name>` for weights to sample from. Both names are plain: without dot, slash, colon or percent sign
 * no path can point outside the folder that a server keeps for it.
 */
export interface WeightsPath {
  readonly modelId: string;
  readonly kind: WeightsKind;
  readonly name: string;
}

const LONGEST_NAME = 255;
const SCHEME = 'tinker://';

export function isWeightsName(name: string): boolean {
  return name.length <= LONGEST_NAME && /^[A-Za-z0-9_-]+$/.test(name);
}

export function checkWeightsName(name: string, where: string): void {
  if (!isWeightsName(name)) throw new WireError(where, `a name of 1 to ${LONGEST_NAME} letters, digits, _ and -`, shown(name));
}

export function formatWeightsPath(path: WeightsPath): string {
  checkWeightsName(path.modelId, 'model_id');
  checkWeightsName(path.name, 'path');
  return `${SCHEME}${path.modelId}/${path.kind}/${path.name}`;
}

/** `where`: the field the text came in, for the error. */
export function parseWeightsPath(text: string, where = 'path'): WeightsPath {
  const parts = text.startsWith(SCHEME) ? text.slice(SCHEME.length).split('/') : [];
  const [modelId = '', kind, name = ''] = parts;
  if (parts.length !== 3 || (kind !== 'weights' && kind !== 'sampler_weights')) {
    throw new WireError(where, 'tinker://<model>/weights/<name> or tinker://<model>/sampler_weights/<name>', shown(text));
  }
  checkWeightsName(modelId, where);
  checkWeightsName(name, where);
  return { modelId, kind, name };
}

// Futures: a request that takes a while is answered with an id at once.

export const futureReply = z.object({ request_id: id });
/** Of `retrieve_future` and `cancel_future`. */
export const futureRequest = z.object({ request_id: id });
export const tryAgainReply = z.object({ type: z.literal('try_again') });
/** The answer is ready and big: to be asked for again, without `allow_metadata_only`. */
export const completeMetadataReply = z.object({ status: z.literal('complete_metadata') });
/** Whose fault it was; another word than these three is unknown, as the hosted service's clients have it. */
export const failedReply = z.object({
  error: z.string(),
  category: z.enum(['user', 'server', 'unknown']).catch('unknown'),
});
export type FailureCategory = z.infer<typeof failedReply>['category'];
