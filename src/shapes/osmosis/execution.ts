/**
 * The contract between a rollout server and the backend that runs its rollouts; and the parsing of request bodies, all faults at once.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import type { Json, Message, PromptMessage } from '../../core/types.ts';

export type RolloutState = 'queued' | 'running' | 'grading' | 'success' | 'failure' | 'cancelled' | 'unknown';
export type ErrorCategory = 'timeout' | 'validation_error' | 'http_error' | 'agent_error';

export interface RolloutRequest {
  readonly rolloutId: string;
  readonly initialMessages: readonly PromptMessage[];
  /** The reference answer. Only the grader sees it, never the workflow. */
  readonly label: Json | null;
  readonly metadata: Json | null;
  /** Base URL of the policy; clients append `/chat/completions`. */
  readonly chatCompletionsUrl: string;
  readonly llmApiKey: string | null;
  /** Whether the controller wants a grade. */
  readonly grading: boolean;
  /** Seconds, including time in the queue; null: the backend's own limit. */
  readonly agentTimeoutSec: number | null;
  /** Seconds for the grader, including its own queue; null: the backend's own limit. */
  readonly graderTimeoutSec: number | null;
}

export interface Completion {
  readonly status: 'success' | 'failure';
  readonly errMessage: string | null;
  readonly errCategory: ErrorCategory | null;
}

export interface GradedSample {
  readonly messages: readonly Message[];
  readonly label: Json | null;
  /** Null if the sample earned no reward, which is not the same as 0. */
  readonly reward: number | null;
  readonly removed: boolean;
  readonly metrics: Readonly<Record<string, unknown>>;
  readonly extraFields: Readonly<Record<string, unknown>>;
}

export interface Grading extends Completion {
  readonly samples: Readonly<Record<string, GradedSample>>;
}

export interface ExecutionHooks {
  /** The backend calls this once, when the workflow has ended, and awaits it before grading. */
  completed(completion: Completion): Promise<void>;
  /** The backend calls this once, after `completed`. */
  graded(grading: Grading): Promise<void>;
  /** Reaches the policy, and only permitted addresses. */
  readonly fetch: typeof globalThis.fetch;
  /** Reports something the operator should know and that does not end the rollout. */
  warn(text: string): void;
}

export interface RolloutStatus {
  readonly status: RolloutState;
  readonly reward: number | null;
  readonly errMessage: string | null;
}

export type CancelSelector = { readonly ids: readonly string[] } | { readonly prefix: string } | { readonly all: true };

export type Disposition = 'cancelled_queued' | 'cancelled_running' | 'not_found';

export interface ExecutionBackend extends AsyncDisposable {
  /** Throws everything that can be found wrong before the first rollout. The server calls it before listening. Idempotent. */
  start(): Promise<void>;
  hasCapacity(): boolean;
  /** Registers the rollout synchronously; resolves when it is over. The rollout's own failures go to the hooks and are not thrown. */
  execute(request: RolloutRequest, hooks: ExecutionHooks): Promise<void>;
  status(rolloutId: string): RolloutStatus;
  cancel(selector: CancelSelector): Readonly<Record<string, Disposition>>;
  health(): Readonly<Record<string, Json>>;
}

export interface Callbacks {
  readonly completionUrl: string;
  readonly graderUrl: string | null;
  readonly apiKey: string | null;
}

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
  /** Whether the server chose the id because the caller gave none. */
  readonly isNamedHere: boolean;
}

const LONGEST_ID = 256;
const seconds = z.number({ error: 'expected a finite number of seconds or null' }).nullish();
const key = z
  .string()
  .min(1, 'expected a key or null, found an empty text')
  .regex(/^[\x21-\x7e]*$/, 'a key is printable ASCII')
  .nullish();

/** Becomes a folder name, a header value and a path segment. */
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
