/**
 * What runs rollouts for a rollout server, and the words they have in common: what is asked, how it went, where it stands. Knows nothing
 * of HTTP or of how a workflow is written.
 */
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
