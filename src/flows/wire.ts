/**
 * What the agent-flow routes are sent, as schemas. Strict: a name that is not known is refused, because a reward or a limit under a
 * misspelt name would be lost without a word. Messages and tools are left to the dialect that reads them anyway.
 */
import { z } from 'zod';
import type { Json } from '../core/types.ts';
import { samplingFields, tokenLimit } from '../gateway/dialects/dialect.ts';
import { STALE_RULES } from '../rollout/served-steps.ts';
import { channel, uid } from './uids.ts';

export const MOST_STEPS = 10_000;
/** Characters of JSON. */
export const MOST_METADATA = 100_000;
/** Sums of thousands of them stay exact enough to compare. */
const LARGEST_REWARD = 1e9;

const id = z.int().min(0).max(0x7fff_ffff);
const ids = z.array(id).min(1);
const reward = z.number().min(-LARGEST_REWARD).max(LARGEST_REWARD).nullish();
/** Not supported, and harmless where they hold nothing. */
const nothing = z.unknown().refine((value) => value == null || (typeof value === 'object' && Object.keys(value).length === 0), {
  error: 'not supported: policies here read text only',
});
const metadata = z
  .record(
    z.string(),
    z.custom<Json>((value) => value !== undefined),
  )
  .refine((given) => JSON.stringify(given).length <= MOST_METADATA, { error: `longer than ${MOST_METADATA} characters of JSON` })
  .nullish();

/** Parameters of sampling, in both forms of `/generate`. */
const sampling = {
  ...samplingFields,
  max_tokens: tokenLimit,
  model: z.string().max(256).nullish(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(16)]).nullish(),
  repetition_penalty: z.literal(1, { error: 'expected 1: it would change what is sampled without being recorded' }).nullish(),
  logprobs: z.union([z.boolean(), z.int()]).nullish(),
};
const names = { trajectory_uid: uid.nullish(), prompt_uid: uid.nullish() };

export const tokenForm = z.strictObject({
  ...names,
  prompt_ids: ids,
  sampling_params: z.strictObject(sampling).nullish(),
  image_data: nothing.optional(),
  video_data: nothing.optional(),
});

export const messageForm = z.strictObject({ ...names, ...sampling, messages: z.unknown(), tools: z.unknown().optional() });
export type SamplingParams = z.infer<z.ZodObject<typeof sampling>>;

export const step = z.strictObject({
  prompt_ids: ids.nullish(),
  response_ids: ids.nullish(),
  /** Given by `/generate`; alone it says which turn is meant. */
  generation_id: z.string().max(1000).nullish(),
  reward,
  multi_modal_data: nothing.optional(),
  rollout_log_probs: z.array(z.number().max(0)).nullish(),
  routed_experts: nothing.optional(),
  trajectory_uid: uid,
  prompt_uid: uid.nullish(),
  step_index: z.int().min(0).default(0),
  policy_version: z.int().min(0).default(0),
  is_last: z.boolean().default(false),
  metadata,
});
export type WireStep = z.infer<typeof step>;

export const submission = z.strictObject({ steps: z.array(step).min(1).max(MOST_STEPS) });

const fields = z.unknown().optional();
export const tokenReward = z.strictObject({
  ...names,
  prompt_ids: ids,
  response_ids: ids,
  multi_modal_data: nothing.optional(),
  num_turns: z.int().min(0).nullish(),
  extra_fields: fields,
  dataset_fields: fields,
});
export const messageReward = z.strictObject({ ...names, messages: z.unknown(), dataset_fields: fields, extra_fields: fields });

/** Seconds that a fetch may wait. */
const LONGEST_WAIT = 60;
export const batchRequest = z.strictObject({
  groups: z.int().min(1).max(10_000).default(1),
  n: z.int().min(1).max(10_000).nullish(),
  channel,
  wait_s: z.number().min(0).max(LONGEST_WAIT).default(30),
  policy_version: z.int().min(0).nullish(),
  max_staleness: z.int().min(0).nullish(),
  stale: z.enum(STALE_RULES).default('drop'),
  batch_id: uid.nullish(),
});

export const initialisation = z.strictObject({
  prompt_uid: uid.nullish(),
  task_id: z.string().min(1).max(200).nullish(),
  channel,
});
export const registration = z.strictObject({ channel, metadata });
export const completion = z.strictObject({
  reward,
  channel,
  /** Why the agent failed, where it did. */
  error: z.string().max(2000).nullish(),
});
