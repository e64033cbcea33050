/**
 * The small requests and replies of the Tinker API, all of them JSON: what each holds, by the wire's own names.
 *
 * Keys that are not listed are ignored, on both sides: servers and clients of other versions add their own. What may be left out
 * may also be null. The big bodies (passes and samples) are not here: `json.ts` and `protobuf.ts` have them.
 */
import { z } from 'zod';
import type { AdamParams } from './types.ts';
import { shown, WireError } from './wire-error.ts';

const natural = z.int().min(0);
const id = z.string().min(1);
const metadata = z.record(z.string(), z.unknown()).nullish();

/** `value` as `schema` has it, or a WireError that names the first place where it is not. */
export function readAs<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value, { reportInput: true });
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const where = (issue?.path ?? []).map(String).join('.');
  throw new WireError(where, expectedBy(issue?.message ?? 'another body'), shown(issue?.input));
}

/** `Invalid input: expected number, received string` says more than a WireError needs: it says what was found itself. */
function expectedBy(message: string): string {
  return /expected (.*?)(?:, received .*)?$/s.exec(message)?.[1] ?? message;
}

// Getting to know each other.

/** What a server leaves out has the default that clients of the hosted service have. */
export const clientConfigReply = z.object({
  pjwt_auth_enabled: z.boolean().default(false),
  parallel_fwdbwd_chunks: z.boolean().default(true),
  /** Whether request bodies may be compressed with zstd. */
  proto_compress_fwdbwd: z.boolean().default(false),
  /** Datums in one request. */
  fwdbwd_max_chunk_len: z.int().min(1).default(1024),
  /** Bytes of one request's body, before compression. */
  fwdbwd_max_chunk_bytes_count: z.int().min(1).default(5_000_000),
  sample_max_concurrent_requests: z.int().min(1).default(2000),
});
export type ClientConfigReply = z.infer<typeof clientConfigReply>;

export const capabilitiesReply = z.object({
  supported_models: z.array(
    z.object({
      model_name: z.string().nullish(),
      max_context_length: z.int().nullish(),
      trainable: z.boolean().nullish(),
      sampleable: z.boolean().nullish(),
      /** Ours alone: of its tokenizer.json. */
      tokenizer_sha256: z.string().nullish(),
    }),
  ),
});

// Sessions.

export const createSessionRequest = z.object({
  tags: z.array(z.string()).default([]),
  user_metadata: metadata,
  sdk_version: z.string().nullish(),
  project_id: z.string().nullish(),
  display_name: z.string().nullish(),
  type: z.literal('create_session').nullish(),
});

export const createSessionReply = z.object({
  session_id: id,
  info_message: z.string().nullish(),
  warning_message: z.string().nullish(),
  error_message: z.string().nullish(),
  type: z.literal('create_session').nullish(),
});

export const sessionHeartbeatRequest = z.object({ session_id: id, type: z.literal('session_heartbeat').nullish() });

// Models.

export const loraConfig = z.object({
  rank: z.int().min(1),
  seed: z.int().nullish(),
  train_unembed: z.boolean().nullish(),
  train_mlp: z.boolean().nullish(),
  train_attn: z.boolean().nullish(),
});

/** Only the family's name is looked at; another than adamw is for the server to refuse. */
const optimizerConfig = z.object({ type: z.string() }).nullish();

export const createModelRequest = z.object({
  session_id: id,
  model_seq_id: natural.nullish(),
  base_model: z.string(),
  user_metadata: metadata,
  lora_config: loraConfig.nullish(),
  optimizer_config: optimizerConfig,
  type: z.literal('create_model').nullish(),
});

/** Both what the request is answered with at once (then `request_id` is there) and what its future holds. */
export const createModelReply = z.object({
  model_id: id,
  request_id: id.nullish(),
  base_model: z.string().nullish(),
  lora_config: loraConfig.nullish(),
  status: z.string().nullish(),
  type: z.literal('create_model').nullish(),
});

export const getInfoRequest = z.object({ model_id: id, type: z.literal('get_info').nullish() });

export const unloadModelRequest = z.object({ model_id: id, type: z.literal('unload_model').nullish() });

export const adamParams = z.object({
  learning_rate: z.number().default(1e-4),
  beta1: z.number().default(0.9),
  beta2: z.number().default(0.95),
  eps: z.number().default(1e-12),
  weight_decay: z.number().default(0),
  grad_clip_norm: z.number().default(0),
});
export type WireAdamParams = z.infer<typeof adamParams>;

export function adamParamsToWire(params: AdamParams): WireAdamParams {
  return {
    learning_rate: params.learningRate,
    beta1: params.beta1,
    beta2: params.beta2,
    eps: params.eps,
    weight_decay: params.weightDecay,
    grad_clip_norm: params.gradClipNorm,
  };
}

export function adamParamsFromWire(wire: WireAdamParams): AdamParams {
  return {
    learningRate: wire.learning_rate,
    beta1: wire.beta1,
    beta2: wire.beta2,
    eps: wire.eps,
    weightDecay: wire.weight_decay,
    gradClipNorm: wire.grad_clip_norm,
  };
}

/** The settings of another optimizer come in `optimizer_params`, without `adam_params`: such a request is not this. */
export const optimStepRequest = z.object({
  model_id: id,
  seq_id: z.int().min(1).nullish(),
  adam_params: adamParams,
  type: z.literal('optim_step').nullish(),
});

export const optimStepReply = z.object({ metrics: z.record(z.string(), z.number()).nullish() });

// Samplers.

export const createSamplingSessionRequest = z.object({
  session_id: id,
  sampling_session_seq_id: natural,
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
  type: z.literal('create_sampling_session').nullish(),
});

export const createSamplingSessionReply = z.object({
  sampling_session_id: id,
  type: z.literal('create_sampling_session').nullish(),
});

// Weights.

/** Seconds after which a checkpoint may be forgotten; absent: never. */
const ttl = z.int().min(1).nullish();
const labels = z.record(z.string(), z.string()).nullish();

/** `path` is a name here, not a tinker:// path. */
export const saveWeightsRequest = z.object({
  model_id: id,
  path: z.string().nullish(),
  seq_id: z.int().min(1).nullish(),
  ttl_seconds: ttl,
  overwrite: z.boolean().nullish(),
  user_metadata: labels,
  type: z.literal('save_weights').nullish(),
});

export const saveWeightsReply = z.object({ path: z.string(), type: z.literal('save_weights').nullish() });

/** With a name in `path`: weights that last. With `sampling_session_seq_id` instead: a sampling session at once, and no path. */
export const saveWeightsForSamplerRequest = z.object({
  model_id: id,
  path: z.string().nullish(),
  sampling_session_seq_id: natural.nullish(),
  seq_id: z.int().min(1).nullish(),
  ttl_seconds: ttl,
  user_metadata: labels,
  type: z.literal('save_weights_for_sampler').nullish(),
});

export const saveWeightsForSamplerReply = z.object({
  path: z.string().nullish(),
  sampling_session_id: id.nullish(),
  type: z.literal('save_weights_for_sampler').nullish(),
});

/** Into a model (`model_id`), or, on servers that say so in their configuration, into a new one (`session_id`, `model_seq_id`). */
export const loadWeightsRequest = z.object({
  model_id: id.nullish(),
  seq_id: z.int().min(1).nullish(),
  session_id: id.nullish(),
  model_seq_id: natural.nullish(),
  base_model: z.string().nullish(),
  path: z.string(),
  /** Whether the optimizer's state is loaded too. */
  optimizer: z.boolean().default(false),
  type: z.literal('load_weights').nullish(),
});

export const loadWeightsReply = z.object({
  path: z.string().nullish(),
  model_id: id.nullish(),
  type: z.literal('load_weights').nullish(),
});

export const weightsInfoRequest = z.object({ tinker_path: z.string() });

// Futures.

/** What every request that takes a while is answered with at once. */
export const futureReply = z.object({ request_id: id, future_id: z.string().nullish(), status: z.string().nullish() });

export const retrieveFutureRequest = z.object({ request_id: id, allow_metadata_only: z.boolean().nullish() });

export const tryAgainReply = z.object({
  type: z.literal('try_again'),
  request_id: z.string().nullish(),
  /** active, paused_capacity or paused_rate_limit; others may come. */
  queue_state: z.string().nullish(),
  queue_state_reason: z.string().nullish(),
});

/** The answer is ready and big: ask again without `allow_metadata_only`. */
export const completeMetadataReply = z.object({
  status: z.literal('complete_metadata'),
  request_id: z.string().nullish(),
  response_payload_size: natural.nullish(),
});

/** A word that is none of the three is unknown, as the hosted service's clients have it. */
export const failedReply = z.object({
  error: z.string(),
  category: z.enum(['user', 'server', 'unknown']).catch('unknown'),
});

export const cancelFutureRequest = z.object({ request_id: id });

// Lists.

export const checkpoint = z.object({
  checkpoint_id: id,
  checkpoint_type: z.enum(['training', 'sampler', 'external']),
  /** ISO 8601. */
  time: z.string(),
  tinker_path: z.string(),
  size_bytes: natural.nullish(),
  public: z.boolean().nullish(),
  user_metadata: labels,
  expires_at: z.string().nullish(),
});
export type Checkpoint = z.infer<typeof checkpoint>;

const cursor = z.object({ offset: natural, limit: natural, total_count: natural });

export const trainingRun = z.object({
  training_run_id: id,
  base_model: z.string(),
  model_owner: z.string(),
  is_lora: z.boolean(),
  corrupted: z.boolean().nullish(),
  lora_rank: z.int().nullish(),
  last_request_time: z.string(),
  last_checkpoint: checkpoint.nullish(),
  last_sampler_checkpoint: checkpoint.nullish(),
  user_metadata: labels,
});

export const trainingRunsReply = z.object({ training_runs: z.array(trainingRun), cursor });
