/**
 * The nouns of Trainyard, in the order a task meets them: task → rollout → turn → trajectory → reward → sample. All plain readonly data.
 * From `Turn` on, tokens are typed arrays, never text: text is for people and graders, tokens are for training. Times are milliseconds
 * since the epoch.
 */

/** Values by their names. */
export type ByName<T> = Readonly<Record<string, T>>;

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** A chat message in the shape of the OpenAI Chat Completions API. */
export interface Message {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string | null;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
  /** The policy's reasoning, if its chat template separates it from the content. */
  readonly reasoning?: string;
}

export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  /** `arguments` is the exact text that the policy sampled, never re-serialised. */
  readonly function: { readonly name: string; readonly arguments: string };
}

export interface Tool {
  readonly type: 'function';
  readonly function: { readonly name: string; readonly description?: string; readonly parameters?: Json };
}

/** A message of a task's prompt, assignable to the OpenAI client's parameters. */
export type PromptMessage =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user'; readonly content: string }
  | { readonly role: 'assistant'; readonly content: string };

/** The part of a task that a workflow may see. */
export interface TaskView {
  readonly id: string;
  readonly prompt: readonly PromptMessage[];
  readonly metadata?: Json;
}

/** One dataset row. Only the grader sees `answer`. */
export interface Task extends TaskView {
  readonly answer?: Json;
}

/** `topP` 1 and `topK` 0 mean no truncation; `temperature` 0 means greedy. */
export interface SamplingSettings {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly maxTokens: number;
}

/** What can end a rollout early. All but `deadline` are the agent's own doing and are graded. */
export const LIMIT_NAMES = ['turns', 'tokens', 'context', 'bytes', 'deadline'] as const;
export type LimitName = (typeof LIMIT_NAMES)[number];

/** Per rollout: model calls, sampled tokens, wall-clock time. */
export interface Limits {
  readonly turns: number;
  readonly tokens: number;
  readonly deadlineMs: number;
}

/** `stop`: a stop token was sampled and is the last id. `length`: the token budget or the context ran out first. */
export type StopReason = 'stop' | 'length';

/** Why a turn's prompt does not simply extend the latest turn of its conversation. */
export const FORK_CAUSES = [
  'asked_again',
  'changed_tools',
  'compaction',
  'dropped_reasoning',
  'dropped_tool_call',
  'edited_message',
  'new_conversation',
  'rewound',
  'role_change',
  'side_call',
  'template_rewrites_history',
] as const;
export type ForkCause = (typeof FORK_CAUSES)[number];

/**
 * `from`: the turn that this one would have continued, or that a side call accompanies. `message`: index in the request of the first message
 * that differs, if any. `also`: what else changed.
 */
export interface Fork {
  readonly cause: ForkCause;
  readonly also?: readonly ForkCause[];
  readonly from: number;
  readonly message?: number;
}

export const DIALECT_NAMES = ['chat', 'responses', 'messages'] as const;
export type DialectName = (typeof DIALECT_NAMES)[number];

/** One model call: the engine's exact ids and log-probabilities, and the messages as text. */
export interface Turn {
  /** Order of completion within the rollout, from 0. */
  readonly index: number;
  /** The turn whose prompt and sampled ids this prompt starts with; absent if the prompt was rendered from scratch. */
  readonly after?: number;
  readonly fork?: Fork;
  readonly thread: string;
  readonly role: string;
  readonly trainable: boolean;
  /** A model of which only messages are known: a default model, or a policy behind an API. Such a turn has no ids and is not trained. */
  readonly model?: string;
  /** Tokens as that model counted them. Absent if it did not. */
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number };
  /** Present if no client received the response, or asked for it again, before the rollout ended. Such a turn is not trained. */
  readonly undelivered?: true;
  readonly promptIds: Int32Array;
  readonly sampledIds: Int32Array;
  /** Natural log-probability of each sampled id under `sampling.effective`; same length as `sampledIds`. */
  readonly logprobs: Float32Array;
  readonly policyVersion: number;
  readonly stopReason: StopReason;
  /** Present if sampling was constrained: to JSON of `format`, or to a call whose arguments fit the schema of `tool`, or of any tool. */
  readonly constrained?: {
    readonly format?: Json;
    readonly tool?: string;
  };
  readonly sampling: {
    readonly requested: Partial<SamplingSettings>;
    readonly effective: SamplingSettings;
    readonly seed: number;
  };
  readonly request: {
    readonly dialect?: DialectName;
    readonly messages: readonly Message[];
    readonly tools: readonly Tool[];
    /** Parameters from the client that have no effect here. */
    readonly ignored?: readonly string[];
  };
  readonly response: Message;
  /** How the response violates the format that the client asked for. The client received the text as sampled. */
  readonly formatError?: string;
  readonly startedAt: number;
  readonly endedAt: number;
}

/** A model call that ended without a response. What it sampled is not a turn and is never trained. */
export interface UnansweredCall {
  readonly thread: string;
  readonly role: string;
  readonly promptTokens: number;
  readonly sampledTokens: number;
  /** How many turns the rollout had recorded when this call ended. */
  readonly turnsBefore: number;
  /** The error that the client received, and the limit that refused the call, if any. Absent if the client cancelled. */
  readonly failure?: { readonly code: string; readonly message: string; readonly limit?: LimitName };
  readonly startedAt: number;
  readonly endedAt: number;
}

/** How a rollout ended. A failure is a value, never a missing row. */
export type Outcome =
  | { readonly kind: 'completed' }
  | { readonly kind: 'truncated'; readonly limit: LimitName }
  | { readonly kind: 'rejected'; readonly reason: string }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

export interface Reward {
  /** Finite. */
  readonly value: number;
  /** Default: true if `value` is at least 1. */
  readonly success?: boolean;
  /** The components of the value, by name. */
  readonly parts?: ByName<number>;
  /** Other measurements, for people; not part of the value. */
  readonly metrics?: ByName<number>;
  /**
   * Rewards that replace `value` for part of the rollout: by turn index, thread or role. The most specific one applies to a turn. Each is
   * compared with its counterparts in the other rollouts of the group.
   */
  readonly byTurn?: ByName<number>;
  readonly byThread?: ByName<number>;
  readonly byRole?: ByName<number>;
  /** Threads that are not trained, whatever they earned. */
  readonly untrained?: readonly string[];
  /** Present if `byTurn` includes discounted rewards of later turns. Records how, so that the discount is applied only once. */
  readonly credit?: { readonly turnDiscount: number; readonly per: 'turn' | 'row' };
  /** Present if the workflow gave the reward instead of the grader. */
  readonly source?: 'workflow';
}

export interface LogLine {
  readonly at: number;
  readonly text: string;
  /** Who printed it. Absent if the workflow logged it with `ctx.log`. */
  readonly from?: 'workflow' | 'grader';
}

/** The result of grading. A failed grader gave no reward, which is never the same as reward 0. */
export type Grade =
  | { readonly kind: 'graded'; readonly reward: Reward }
  | { readonly kind: 'ungraded'; readonly why: string }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

export type Purpose = 'train' | 'eval';

/** Identifies one rollout. Identity is data, never a position in an array. */
export interface RolloutIdentity {
  readonly rolloutId: string;
  readonly groupId: string;
  readonly taskId: string;
  readonly purpose: Purpose;
}

/** The stored record of one rollout. */
export interface Trajectory extends RolloutIdentity {
  readonly outcome: Outcome;
  readonly grade: Grade;
  readonly turns: readonly Turn[];
  readonly unanswered?: readonly UnansweredCall[];
  readonly output?: Json;
  /** Returned values that influenced the grade, if a grader had the last word. `untrained`: turns that were trainable until then. */
  readonly returned?: {
    readonly reward?: Reward;
    readonly success?: boolean;
    readonly credit?: NonNullable<Reward['credit']>;
    readonly untrained?: readonly number[];
  };
  readonly metadata?: ByName<Json>;
  readonly metrics?: ByName<number>;
  readonly logs?: readonly LogLine[];
  readonly startedAt: number;
  readonly endedAt: number;
}

/** A stored rollout without its messages and tokens: what lists, filters and counts need. */
export interface RolloutSummary extends RolloutIdentity {
  /** Append order. */
  readonly seq: number;
  readonly outcome: Trajectory['outcome']['kind'];
  /** Which limit cut it short; null if none did. */
  readonly limit: LimitName | null;
  /** Null if it was not graded. */
  readonly reward: number | null;
  readonly success: boolean;
  readonly parts?: ByName<number>;
  readonly metrics?: ByName<number>;
  readonly turns: number;
  /** Sampled, of all roles. */
  readonly tokens: number;
  /** Names of the tools that it called, each once. */
  readonly tools: readonly string[];
  readonly forks: Readonly<Partial<Record<ForkCause, number>>>;
  /** Model calls without a response: given up by the client, and failed. */
  readonly abandoned: number;
  readonly failedCalls: number;
  /** Lowest and highest policy version that sampled a trainable turn; null if none did. */
  readonly versions: readonly [least: number, most: number] | null;
  readonly seconds: number;
}

/**
 * One training row. All arrays have the length of `tokens`; position i describes token i itself, not its successor. `mask` is 1 exactly
 * where the policy sampled the token by itself; logprobs, advantages and versions are 0 elsewhere.
 */
export interface Sample {
  readonly tokens: Int32Array;
  readonly mask: Uint8Array;
  readonly logprobs: Float32Array;
  readonly advantages: Float32Array;
  readonly versions: Int32Array;
  /** Log-probabilities under the frozen reference policy, for losses that need them. */
  readonly reference?: Float32Array;
  /** Temperature the tokens were sampled at; the trainer scores at the same one. */
  readonly temperature: number;
  readonly weight: number;
  readonly rolloutId: string;
  readonly groupId: string;
}

/** A rollout, or one turn of it by index, that is left out of training. */
export interface Exclusion {
  readonly rolloutId: string;
  readonly turn?: number;
}

/** Whether something is excluded from training. Append-only: the latest mark for a rollout or turn applies; `excluded: false` revokes. */
export interface Mark extends Exclusion {
  readonly excluded: boolean;
  readonly reason: string;
  readonly at: number;
}

/** What happens to turns sampled more than `most` versions before the one in training: left out, down-weighted, or kept as they are. */
export interface StaleRule {
  /** The version in training. */
  readonly policyVersion: number;
  readonly most: number;
  readonly rule: 'drop' | 'weigh' | 'keep';
}

/** Which rollouts produced which policy version. Committed together with the version, after the checkpoint is on disk. */
export interface BatchManifest {
  readonly step: number;
  /** The version this step produced. */
  readonly policyVersion: number;
  readonly rolloutIds: readonly string[];
  /** What marks excluded from the groups when the batch was made. Default: nothing. */
  readonly excluded?: readonly Exclusion[];
  /** The id that an external trainer uses for the batch; such a step has no checkpoint here. */
  readonly batchId?: string;
  /** The staleness rule of the batch; reproducing it requires the same. Default: nothing could be stale. */
  readonly stale?: StaleRule;
  /** Checkpoint folder, relative to the run directory; null if this step wrote none. */
  readonly checkpoint: string | null;
  /** Digests of the trained samples and of the checkpoint's files, to verify the step later. */
  readonly digests?: { readonly samples: string; readonly weights?: string };
  /** State of group numbering when the batch was taken, from which a run resumes. */
  readonly groups: { readonly next: number; readonly pending: readonly number[] };
  readonly metrics: ByName<number>;
  readonly createdAt: number;
}
