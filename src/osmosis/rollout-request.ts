/** The bodies that callers send, read: a request for a rollout, and the choice of rollouts to cancel. All faults of a body are told at once. */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import type { Json, PromptMessage } from '../core/types.ts';
import type { Callbacks } from './callbacks.ts';
import type { CancelSelector, RolloutRequest } from './execution.ts';

/** One thing that is wrong with a body. */
export interface Fault {
  readonly field: string;
  readonly message: string;
}

export class RequestFaults extends TrainyardError {
  readonly faults: readonly Fault[];

  constructor(faults: readonly Fault[]) {
    super('REQUEST_INVALID', faults.map(({ field, message }) => `${field}: ${message}`).join('; '));
    this.faults = faults;
  }
}

export interface ReadRequest {
  readonly request: RolloutRequest;
  readonly callbacks: Callbacks;
  /** The caller gave no id. */
  readonly isNamedHere: boolean;
}

const LONGEST_ID = 256;
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
  const apiKey = read.controller_api_key ?? null;
  const graderUrl = read.grader_callback_url ?? null;
  return {
    isNamedHere: (read.rollout_id ?? null) === null,
    request: {
      rolloutId: read.rollout_id ?? randomUUID(),
      initialMessages: read.initial_messages as unknown as readonly PromptMessage[],
      label: (read.label ?? null) as Json | null,
      metadata: (read.metadata ?? null) as Json | null,
      chatCompletionsUrl: read.chat_completions_url,
      llmApiKey: read.llm_api_key ?? apiKey,
      grading: graderUrl !== null,
      agentTimeoutSec: read.agent_timeout_sec ?? null,
      graderTimeoutSec: read.grader_timeout_sec ?? null,
    },
    callbacks: { completionUrl: read.completion_callback_url, graderUrl, apiKey },
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

function parsed<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const faults = result.error.issues.map(({ path, message }): Fault => ({ field: path.join('.') || 'body', message }));
  throw new RequestFaults(faults);
}
