/**
 * The bodies that go over the wire, read and written: the request for a rollout, the choice of rollouts to cancel, the two callbacks.
 * Everything that is wrong with a body is told at once.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { asJson } from '../core/json.ts';
import type { Json, PromptMessage } from '../core/types.ts';
import type { CancelSelector, Completion, GradedSample, Grading, RolloutRequest } from './execution.ts';
import { jsonOnly } from './json-only.ts';
import { type Fault, RequestFaults } from './refusals.ts';

/** Where a rollout's callbacks go, and with which key. */
export interface Callbacks {
  readonly completionUrl: string;
  readonly graderUrl: string | null;
  readonly apiKey: string | null;
}

export interface ReadRequest {
  readonly request: RolloutRequest;
  readonly callbacks: Callbacks;
  /** The caller gave no id. */
  readonly isNamedHere: boolean;
}

const LONGEST_ID = 256;
const MOST_JSON = 16 * 1024 * 1024;
const seconds = z.number({ error: 'expected a finite number of seconds or null' }).nullish();
const key = z
  .string()
  .min(1, 'expected a key or null, found an empty text')
  .regex(/^[\x21-\x7e]*$/, 'a key is printable ASCII')
  .nullish();

/** It becomes a folder, a header and a part of a path. */
const rolloutId = z
  .string()
  .min(1, 'expected a name, found an empty text')
  .max(LONGEST_ID, `longer than ${LONGEST_ID} characters`)
  .regex(/^[\x21-\x7e]*$/, 'expected printable ASCII without spaces')
  .refine((id) => !/[/\\]/.test(id) && id !== '.' && id !== '..', 'expected a single part of a path, without / or \\');

const rollout = z.object({
  initial_messages: z.array(z.looseObject({ role: z.string() })).min(1, 'expected at least one message'),
  label: z.json().nullish(),
  metadata: z.json().nullish(),
  rollout_id: rolloutId.nullish(),
  chat_completions_url: z.string(),
  controller_api_key: key,
  llm_api_key: key,
  completion_callback_url: z.string(),
  grader_callback_url: z.string().nullish(),
  agent_timeout_sec: seconds,
  grader_timeout_sec: seconds,
});

/** Throws RequestFaults. */
export function readRollout(body: unknown): ReadRequest {
  const read = parsed(rollout, body);
  const controllerKey = read.controller_api_key ?? null;
  return {
    isNamedHere: (read.rollout_id ?? null) === null,
    request: {
      rolloutId: read.rollout_id ?? randomUUID(),
      initialMessages: read.initial_messages as unknown as readonly PromptMessage[],
      label: (read.label ?? null) as Json | null,
      metadata: (read.metadata ?? null) as Json | null,
      chatCompletionsUrl: read.chat_completions_url,
      llmApiKey: read.llm_api_key ?? controllerKey,
      grading: (read.grader_callback_url ?? null) !== null,
      agentTimeoutSec: read.agent_timeout_sec ?? null,
      graderTimeoutSec: read.grader_timeout_sec ?? null,
    },
    callbacks: {
      completionUrl: read.completion_callback_url,
      graderUrl: read.grader_callback_url ?? null,
      apiKey: controllerKey,
    },
  };
}

const selection = z.object({
  ids: z.array(z.string()).nullish(),
  prefix: z.string().min(1, 'an empty prefix is everything: say all instead').nullish(),
  all: z.boolean().nullish(),
});

/** Throws RequestFaults. */
export function readSelector(body: unknown): CancelSelector {
  const { ids, prefix, all } = parsed(selection, body);
  const given: CancelSelector[] = [];
  if (ids != null) given.push({ ids });
  if (prefix != null) given.push({ prefix });
  if (all === true) given.push({ all });
  const [selector, ...others] = given;
  if (selector !== undefined && others.length === 0) return selector;
  throw new RequestFaults([{ field: 'ids', message: 'pass exactly one selector: ids, prefix, or all' }]);
}

export function completionBody(id: string, completion: Completion): object {
  return { ...endOf(id, completion), extra_fields: null };
}

/** `sample` is for controllers that know one conversation per rollout. */
export function gradingBody(id: string, { samples, ...end }: Grading, warn: (text: string) => void): object {
  const isPaid = end.status === 'success';
  const entries = Object.entries(samples).map(([name, sample]) => [name, sampleBody(name, sample, isPaid, warn)] as const);
  const [only] = entries;
  return { ...endOf(id, end), samples: Object.fromEntries(entries), sample: entries.length === 1 ? only![1] : null };
}

function endOf(rolloutId: string, { status, errMessage, errCategory }: Completion): object {
  return { status, rollout_id: rolloutId, err_message: errMessage, err_category: errCategory };
}

function sampleBody(name: string, sample: GradedSample, isPaid: boolean, warn: (text: string) => void): object {
  const messages = asJson(sample.messages, MOST_JSON);
  if (messages === undefined) warn(`sample ${name} without its messages: not JSON, or longer than ${MOST_JSON} characters`);
  const reward = isPaid && !sample.removed && Number.isFinite(sample.reward) ? sample.reward : null;
  return {
    messages: messages ?? [],
    label: asJson(sample.label, MOST_JSON) ?? null,
    reward,
    remove_sample: sample.removed,
    metrics: jsonOnly(sample.metrics ?? {}, `metrics of sample ${name}`, warn),
    extra_fields: jsonOnly(sample.extraFields ?? {}, `extra fields of sample ${name}`, warn),
  };
}

function parsed<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const faults = result.error.issues.map(({ path, message }): Fault => ({ field: path.join('.') || 'body', message }));
  throw new RequestFaults(faults);
}
