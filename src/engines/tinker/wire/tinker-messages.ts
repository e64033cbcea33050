/**
 * The messages of the Tinker API, and the paths of saved weights. Passes and samples are typed here independently of their encoding
 * (`tinker-json.ts`, `protobuf.ts`); only text is supported. The small messages are always JSON and use the wire's own names. Schemas list
 * only keys that are read; other keys are ignored on both sides, since other versions add their own. Optional keys may also be null.
 */
import { z } from 'zod';
import type { AdamSettings } from '../../../core/policy.ts';
import type { ByName } from '../../../core/types.ts';
import { shown, WireError } from './codec.ts';

/** The wire uses int64. Ids and counts fit in 32 bits, and decoders refuse larger values. */
export type Tensor =
  | { readonly dtype: 'float32'; readonly data: Float32Array; readonly shape?: readonly number[] }
  | { readonly dtype: 'int64'; readonly data: Int32Array; readonly shape?: readonly number[] };

export type Tensors = ByName<Tensor>;

/** One training row. `tokens` omits the last token, `inputs.target_tokens` the first: input i belongs to the token after tokens[i]. */
export interface Datum {
  readonly tokens: Int32Array;
  /** By wire name: target_tokens, weights, logprobs, advantages. */
  readonly inputs: Tensors;
}

export interface PassRequest {
  readonly modelId: string;
  /** 1, 2, 3 … per model: orders the requests and identifies repeats. */
  readonly seqId: number | undefined;
  readonly data: readonly Datum[];
  readonly loss: string;
  readonly lossSettings: ByName<number>;
  readonly forwardOnly: boolean;
}

export interface PassResult {
  readonly outputType: string;
  /** One per datum, including `logprobs` for every position. */
  readonly outputs: readonly Tensors[];
  /** By wire name, such as `loss:sum`: the name, and how to combine the values of several chunks. */
  readonly metrics: ByName<number>;
}

export interface SampledSequence {
  readonly stopReason: 'stop' | 'length';
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array | undefined;
}

export interface SampleReply {
  readonly sequences: readonly SampledSequence[];
  /** NaN for the first token, which has no prediction. */
  readonly promptLogprobs?: Float32Array | undefined;
}

export const PROTOBUF = 'application/x-protobuf';

const natural = z.int().min(0);
const positive = z.int().min(1);
const optionalText = z.string().nullish();
const seqId = positive.nullish();
const id = z.string().min(1);
const labels = z.record(z.string(), z.string()).nullish();

/** Most datums and bytes of protobuf in one request. The defaults are those of the hosted service's clients. */
export const PASS_LIMITS = { fwdbwd_max_chunk_len: 1024, fwdbwd_max_chunk_bytes_count: 5_000_000 } as const;
export const clientConfigReply = z.object({
  fwdbwd_max_chunk_len: positive.optional(),
  fwdbwd_max_chunk_bytes_count: positive.optional(),
  sample_max_concurrent_requests: positive.default(2000),
});
export type ClientConfigReply = z.infer<typeof clientConfigReply>;

export const capabilitiesReply = z.object({
  supported_models: z.array(
    z.object({
      model_name: optionalText,
      max_context_length: z.int().nullish(),
      /** Only Trainyard's server sends this: SHA-256 of its tokenizer.json. */
      tokenizer_sha256: optionalText,
    }),
  ),
  /** Only Trainyard's server sends this: whether weights published earlier can still be sampled from. */
  keeps_published: z.boolean().nullish(),
  /** Only a server that `trainyard skyrl` started sends this: what its programs are compiled for, and what it cannot do. */
  trainyard: z
    .object({
      sequences: positive,
      call_tokens: positive,
      max_lora_rank: positive,
      keeps_published: z.boolean(),
    })
    .nullish(),
});
export type ServerSizes = NonNullable<z.infer<typeof capabilitiesReply>['trainyard']>;

export const createSessionRequest = z.object({});
export const createSessionReply = z.object({ session_id: id });
export const sessionHeartbeatRequest = z.object({ session_id: id });

export const createModelRequest = z.object({
  session_id: id,
  model_seq_id: natural.nullish(),
  base_model: z.string(),
  user_metadata: z.record(z.string(), z.unknown()).nullish(),
  lora_config: z.object({ rank: positive, seed: z.int().nullish() }).loose().nullish(),
  /** Only the optimizer's name is checked. */
  optimizer_config: z.object({ type: z.string() }).nullish(),
});

/** Some servers repeat the base model. */
export const createModelReply = z.object({ model_id: id, base_model: optionalText });

/** For `get_info` and `unload_model`. */
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

export function adamToWire(adam: AdamSettings): ByName<number> {
  return {
    learning_rate: adam.learningRate,
    beta1: adam.beta1,
    beta2: adam.beta2,
    eps: adam.epsilon,
    weight_decay: adam.weightDecay,
    grad_clip_norm: adam.maxGradNorm,
  };
}

/** Optimizers other than AdamW send `optimizer_params` instead of `adam_params`. */
export const optimStepRequest = z.object({
  model_id: id,
  seq_id: seqId,
  adam_params: adamParams.optional(),
  optimizer_params: z.object({ type: z.string() }).nullish(),
});
export const optimStepReply = z.object({ metrics: z.record(z.string(), z.number()).nullish() });

export const createSamplingSessionRequest = z.object({
  session_id: id,
  sampling_session_seq_id: natural,
  base_model: optionalText,
  model_path: optionalText,
});
export const createSamplingSessionReply = z.object({ sampling_session_id: id });

/** `path` is a name here, not a tinker:// path. */
export const saveWeightsRequest = z.object({
  model_id: id,
  path: optionalText,
  seq_id: seqId,
  overwrite: z.boolean().nullish(),
  user_metadata: labels,
});
export const saveWeightsReply = z.object({ path: z.string() });

/** With `path`, saves durable weights under that name. Without, opens a sampling session at once and returns no path. */
export const saveWeightsForSamplerRequest = saveWeightsRequest.omit({ overwrite: true });
export const saveWeightsForSamplerReply = z.object({ path: optionalText, sampling_session_id: id.nullish() });

export const loadWeightsRequest = z.object({
  model_id: id,
  seq_id: seqId,
  path: z.string(),
  optimizer: z.boolean().default(false),
});
export const weightsInfoRequest = z.object({ tinker_path: z.string() });

export type WeightsKind = 'weights' | 'sampler_weights';

/**
 * Where saved weights are: `tinker://<model>/weights/<name>` for training state, `tinker://<model>/sampler_weights/<name>` for weights to
 * sample from. Security: names contain no dot, slash, colon or percent sign, so no path can point outside the server's folder.
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

/** `where`: the request field that held the path, for the error. */
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

export const futureReply = z.object({ request_id: id });
/** For `retrieve_future` and `cancel_future`. */
export const futureRequest = z.object({ request_id: id });
export const tryAgainReply = z.object({ type: z.literal('try_again') });
/** The result is ready but large: ask again without `allow_metadata_only`. */
export const completeMetadataReply = z.object({ status: z.literal('complete_metadata') });
/** Who caused the failure. Other values become `unknown`, as in the hosted service's clients. */
export const failedReply = z.object({
  error: z.string(),
  category: z.enum(['user', 'server', 'unknown']).catch('unknown'),
});
export type FailureCategory = z.infer<typeof failedReply>['category'];
