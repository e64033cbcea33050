/**
 * What a rollout server asks of whoever runs its rollouts: the request, how it went, where it stands; and how callers' bodies become
 * requests. All faults of a body are told at once.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message, PromptMessage } from '../core/types.ts';

export type RolloutState = 'queued' | 'running' | 'grading' | 'success' | 'failure' | 'cancelled' | 'unknown';
export type ErrorCategory = 'timeout' | 'validation_error' | 'http_error' | 'agent_error';

/** One rollout that somebody else's training wants: the task, where the policy is, how long it may take. */
export interface RolloutRequest {
  readonly rolloutId: string;
  readonly initialMessages: readonly PromptMessage[];
  /** The right answer: for the grader, never for the workflow. */
  readonly label: Json | null;
  readonly metadata: Json | null;
  /** Base URL of the policy; clients add `/chat/completions`. */
  readonly chatCompletionsUrl: string;
  readonly llmApiKey: string | null;
  /** Whether anybody wants to hear of a grade. */
  readonly grading: boolean;
  /** Seconds, time in the queue included; null: as long as the backend lets a rollout take. */
  readonly agentTimeoutSec: number | null;
  /** Seconds of the grader alone. */
  readonly graderTimeoutSec: number | null;
}

export interface Completion {
  readonly status: 'success' | 'failure';
  readonly errMessage: string | null;
  readonly errCategory: ErrorCategory | null;
}

/** One conversation with what it earned. */
export interface GradedSample {
  readonly messages: readonly Message[];
  readonly label: Json | null;
  /** Null where nothing was earned: never the same as 0. */
  readonly reward: number | null;
  readonly removed: boolean;
  readonly metrics: Readonly<Record<string, unknown>>;
  readonly extraFields: Readonly<Record<string, unknown>>;
}

export interface Grading extends Completion {
  readonly samples: Readonly<Record<string, GradedSample>>;
}

/** What a backend may use and must tell while it runs a rollout. */
export interface ExecutionHooks {
  /** Told once, when the workflow ended. The rollout waits for it. */
  completed(completion: Completion): Promise<void>;
  /** Told once, after `completed`. */
  graded(grading: Grading): Promise<void>;
  /** How to reach the policy. */
  readonly fetch: typeof globalThis.fetch;
  /** Something that a person should know and that ends nothing. */
  warn(text: string): void;
}

export interface RolloutStatus {
  readonly status: RolloutState;
  readonly reward: number | null;
  readonly errMessage: string | null;
}

/** Exactly one of them. */
export type CancelSelector = { readonly ids: readonly string[] } | { readonly prefix: string } | { readonly all: true };

export type Disposition = 'cancelled_queued' | 'cancelled_running' | 'not_found';

export interface ExecutionBackend extends AsyncDisposable {
  /** Everything that can be found wrong before the first rollout is. Called before the server listens; idempotent. */
  start(): Promise<void>;
  hasCapacity(): boolean;
  /** Accepts the rollout before it returns; resolves when it is over. What the rollout itself did is told to the hooks, not thrown. */
  execute(request: RolloutRequest, hooks: ExecutionHooks): Promise<void>;
  status(rolloutId: string): RolloutStatus;
  cancel(selector: CancelSelector): Readonly<Record<string, Disposition>>;
  /** As JSON. */
  health(): Readonly<Record<string, Json>>;
}

// ── bodies of callers ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Where a rollout's callbacks go, and with which key. */
export interface Callbacks {
  readonly completionUrl: string;
  readonly graderUrl: string | null;
  readonly apiKey: string | null;
}

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
  const { rollout_id: id, controller_api_key: apiKey = null, grader_callback_url: graderUrl = null } = read;
  return {
    isNamedHere: id == null,
    request: {
      rolloutId: id ?? randomUUID(),
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
