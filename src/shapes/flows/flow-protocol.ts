/**
 * The agent-flow protocol as data: routes, refusals, names and request bodies. `npm run build:docs` prints it into docs/reference/routes.md. Bodies
 * are strict: unknown names are refused, because a reward or a limit under a misspelt name would be lost silently. Messages and tools are
 * checked by the dialect that reads them.
 */
import { z } from 'zod';
import type { Json, Purpose, StaleRule } from '../../core/types.ts';
import { invalid, parsed, samplingFields, tokenLimit } from '../../gateway/dialects/dialect.ts';
import type { Capability } from '../../gateway/wire-protocol.ts';
import { refusals } from '../../http/refusal.ts';

export const FLOW_CAPABILITIES: readonly Capability[] = ['flow', 'admin'];
/** A base URL. The model's own routes are served below it too. */
export const BASE = '{trajectory}/{prompt}/v1';

export interface FlowRoute {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly does: 'generate' | 'submit' | 'reward' | 'init' | 'register' | 'complete' | 'steps' | 'fetch' | 'pool';
  readonly may?: readonly Capability[];
}

export const FLOW_ROUTES: readonly FlowRoute[] = [
  { method: 'POST', path: 'generate', does: 'generate' },
  { method: 'POST', path: 'submit_steps', does: 'submit' },
  { method: 'POST', path: 'compute_reward', does: 'reward' },
  { method: 'POST', path: 'init_trajectory', does: 'init' },
  { method: 'POST', path: `${BASE}/register_trajectory`, does: 'register' },
  { method: 'POST', path: `${BASE}/complete_trajectory`, does: 'complete' },
  { method: 'GET', path: `${BASE}/steps`, does: 'steps' },
  { method: 'POST', path: 'fetch_batch', does: 'fetch', may: ['admin'] },
  { method: 'GET', path: 'pool', does: 'pool', may: ['admin'] },
];

export const FLOW_REFUSALS = {
  /** The step contradicts its trajectory. */
  step_conflict: 409,
  /** The gateway did not generate this step. */
  unknown_generation: 409,
  trajectory_complete: 409,
  /** The trajectory was registered or completed differently. */
  trajectory_conflict: 409,
  /** The group was already handed out or dropped. */
  group_closed: 409,
  /** A batch with this id was handed out from the other channel. */
  batch_conflict: 409,
  lengths_differ: 422,
  grader_failed: 500,
  no_grader: 503,
  /** The limit of waiting groups is reached, and all of them are complete. */
  pool_full: 503,
  store_failed: 503,
  store_full: 507,
} as const;

export const flowRefusal = refusals(FLOW_REFUSALS);

const UID = /^(?!\.{1,2}$)[\w.:~-]{1,128}$/;
/** Reserved: file names on Windows, prototype properties, or the gateway's own route. */
const TAKEN = /^(?:con|prn|aux|nul|com\d|lpt\d|__proto__|constructor|prototype|r)(?:\..*)?$/i;
const isUid = (text: string) => UID.test(text) && !TAKEN.test(text);
const EXPECTED_UID = 'expected 1 to 128 letters, digits and . : ~ - _ that are no reserved name';

const uid = z.string().refine(isUid, { error: EXPECTED_UID });

/** Throws if `name` is not a valid uid. `param`: the parameter to blame. */
export function checkedUid(name: string, param: string): string {
  if (isUid(name)) return name;
  throw invalid(param, EXPECTED_UID);
}

/** The protocol's name for a purpose: `val` is `eval`. */
const channel = z.enum(['train', 'val'], { error: 'expected train or val' }).nullish();

export function purposeOf(name: 'train' | 'val' | null | undefined): Purpose | undefined {
  return name == null ? undefined : name === 'val' ? 'eval' : 'train';
}

export const channelOf = (purpose: Purpose): string => (purpose === 'eval' ? 'val' : 'train');

const channelQuery = z.strictObject({ channel });

/** Reads the channel from a query such as `?channel=val`. Throws if the query holds anything else. */
export function channelIn(query: string): Purpose | undefined {
  const given = new URLSearchParams(query);
  const fields = [...given.keys()].map((name) => [name, given.getAll(name).join(', ')] as const);
  return purposeOf(parsed(channelQuery, Object.fromEntries(fields)).channel);
}

const MOST_STEPS = 10_000;
/** Characters of JSON. */
const MOST_METADATA = 100_000;
/** Sums of thousands of rewards up to this size stay exact enough to compare. */
const LARGEST_REWARD = 1e9;
/** Seconds that a fetch may wait. */
const LONGEST_WAIT = 60;

const natural = z.int().min(0);
const id = z.int().min(0).max(0x7fff_ffff);
const ids = z.array(id).min(1);
const reward = z.number().min(-LARGEST_REWARD).max(LARGEST_REWARD).nullish();
/** A field that is not supported, and harmless if empty. */
const nothing = z.unknown().refine((value) => value == null || (typeof value === 'object' && Object.keys(value).length === 0), {
  error: 'not supported: policies here read text only',
});
const json = z.custom<Json>((value) => value !== undefined);
const metadata = z
  .record(z.string(), json)
  .refine((given) => JSON.stringify(given).length <= MOST_METADATA, { error: `longer than ${MOST_METADATA} characters of JSON` })
  .nullish();

const sampling = {
  ...samplingFields,
  max_tokens: tokenLimit,
  model: z.string().max(256).nullish(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(16)]).nullish(),
  repetition_penalty: z.literal(1, { error: 'expected 1: it would change what is sampled without being recorded' }).nullish(),
  logprobs: z.union([z.boolean(), z.int()]).nullish(),
};
export type SamplingFields = z.infer<z.ZodObject<typeof sampling>>;
const names = { trajectory_uid: uid.nullish(), prompt_uid: uid.nullish() };

const tokenForm = z.strictObject({
  ...names,
  prompt_ids: ids,
  sampling_params: z.strictObject(sampling).nullish(),
  image_data: nothing.optional(),
  video_data: nothing.optional(),
});
const messageForm = z.strictObject({ ...names, ...sampling, messages: z.unknown(), tools: z.unknown().optional() });

const rowFields = metadata.transform((given) => given ?? undefined).optional();
const tokenReward = z.strictObject({
  ...names,
  prompt_ids: ids,
  response_ids: ids,
  multi_modal_data: nothing.optional(),
  num_turns: natural.nullish(),
  extra_fields: rowFields,
  dataset_fields: rowFields,
});
const messageReward = z.strictObject({ ...names, messages: z.unknown(), dataset_fields: rowFields, extra_fields: rowFields });

const isInTokens = (raw: unknown) => typeof raw === 'object' && raw !== null && 'prompt_ids' in raw;

export function generateBody(raw: unknown): z.infer<typeof tokenForm> | z.infer<typeof messageForm> {
  return isInTokens(raw) ? parsed(tokenForm, raw) : parsed(messageForm, raw);
}

export function rewardBody(raw: unknown): z.infer<typeof tokenReward> | z.infer<typeof messageReward> {
  return isInTokens(raw) ? parsed(tokenReward, raw) : parsed(messageReward, raw);
}

export const step = z.strictObject({
  prompt_ids: ids.nullish(),
  response_ids: ids.nullish(),
  /** From `/generate`. Identifies the turn even without ids. */
  generation_id: z.string().max(1000).nullish(),
  reward,
  multi_modal_data: nothing.optional(),
  rollout_log_probs: z.array(z.number().max(0)).nullish(),
  routed_experts: nothing.optional(),
  trajectory_uid: uid,
  prompt_uid: uid.nullish(),
  step_index: natural.default(0),
  policy_version: natural.default(0),
  is_last: z.boolean().default(false),
  metadata,
});
export type WireStep = z.infer<typeof step>;

export const submission = z.strictObject({ steps: z.array(step).min(1).max(MOST_STEPS) });

export const batchRequest = z.strictObject({
  groups: z.int().min(1).max(10_000).default(1),
  n: z.int().min(1).max(10_000).nullish(),
  channel,
  wait_s: z.number().min(0).max(LONGEST_WAIT).default(30),
  policy_version: natural.nullish(),
  max_staleness: natural.nullish(),
  stale: z.enum(['drop', 'weigh'] satisfies readonly StaleRule['rule'][]).default('drop'),
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
  error: z.string().max(2000).nullish(),
});
