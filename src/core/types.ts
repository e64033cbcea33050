/**
 * The nouns of Trainyard, in the order one task meets them: task → rollout → turn → trajectory → reward → sample.
 *
 * Everything here is plain readonly data. From `Turn` inward tokens are typed arrays, never text: text is for people and graders, tokens are
 * for training. Times are milliseconds since the epoch.
 */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** One chat message, in the shape the OpenAI Chat Completions API gave the world. */
export interface Message {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string | null;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
  /** What the policy thought before it spoke, where its chat template keeps that apart from the content. */
  readonly reasoning?: string;
}

export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  /** `arguments` is the text the policy sampled, never a re-serialisation of it. */
  readonly function: { readonly name: string; readonly arguments: string };
}

export interface Tool {
  readonly type: 'function';
  readonly function: { readonly name: string; readonly description?: string; readonly parameters?: Json };
}

/** A message of a task's prompt. Its type fits the OpenAI client's parameters as it is. */
export type PromptMessage =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user'; readonly content: string }
  | { readonly role: 'assistant'; readonly content: string };

/** What a workflow may see of a task. */
export interface TaskView {
  readonly id: string;
  readonly prompt: readonly PromptMessage[];
  readonly metadata?: Json;
}

/** One dataset row. `answer` goes to the grader and nowhere else. */
export interface Task extends TaskView {
  readonly answer?: Json;
}

/** How tokens are drawn. `topP` 1 and `topK` 0 mean "no truncation"; `temperature` 0 means the most likely token. */
export interface SamplingSettings {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly maxTokens: number;
}

/** What can end a rollout early. All but `deadline` are the agent's own doing and are graded. */
export const LIMIT_NAMES = ['turns', 'tokens', 'context', 'bytes', 'deadline'] as const;
export type LimitName = (typeof LIMIT_NAMES)[number];

/** Per rollout: model calls, sampled tokens, wall clock. */
export interface Limits {
  readonly turns: number;
  readonly tokens: number;
  readonly deadlineMs: number;
}

/** `stop`: a stop token was sampled (and is the last id). `length`: the token budget or the context ran out first. */
export type StopReason = 'stop' | 'length';

/** Why the prompt of a turn is not the latest turn of its thread, extended. */
export const FORK_CAUSES = [
  'asked_again',
  'changed_tools',
  'compaction',
  'dropped_reasoning',
  'dropped_tool_call',
  'edited_message',
  'rewound',
  'role_change',
  'side_call',
  'template_rewrites_history',
] as const;
export type ForkCause = (typeof FORK_CAUSES)[number];

/** `from`: the turn that this one would have continued. `message`: place, in the request, of the first one that differs, if one does. */
export interface Fork {
  readonly cause: ForkCause;
  readonly from: number;
  readonly message?: number;
}

export const DIALECT_NAMES = ['chat', 'responses', 'messages'] as const;
export type DialectName = (typeof DIALECT_NAMES)[number];

/** One model call: the engine's exact ids and log-probabilities, and what was said in words. */
export interface Turn {
  /** Order of completion within the rollout, from 0. */
  readonly index: number;
  /** The turn whose ids, prompt and sampled, this one's prompt begins with; absent where the prompt was rendered afresh. */
  readonly after?: number;
  /** Present where the conversation did not simply go on. */
  readonly fork?: Fork;
  readonly thread: string;
  readonly role: string;
  readonly trainable: boolean;
  /** Who answered, where it was not the policy: then there are no ids, and nothing is trained. */
  readonly model?: string;
  /** Present where nobody got the answer, nor asked for it again before the rollout ended. Such a turn is not trained. */
  readonly undelivered?: true;
  readonly promptIds: Int32Array;
  readonly sampledIds: Int32Array;
  /** Natural log-probability of each sampled id under `sampling.effective`; same length as `sampledIds`. */
  readonly logprobs: Float32Array;
  readonly policyVersion: number;
  readonly stopReason: StopReason;
  readonly sampling: {
    readonly requested: Partial<SamplingSettings>;
    readonly effective: SamplingSettings;
    readonly seed: number;
  };
  readonly request: {
    readonly dialect?: DialectName;
    readonly messages: readonly Message[];
    readonly tools: readonly Tool[];
    /** Parameters that the client gave and that have no effect here. */
    readonly ignored?: readonly string[];
  };
  readonly response: Message;
  /** What is wrong with the response where the client asked for a format; it got the text as it was sampled. */
  readonly formatError?: string;
  readonly startedAt: number;
  readonly endedAt: number;
}

/** A model call that ended without an answer. What was sampled of it is not a turn and is never trained. */
export interface UnansweredCall {
  readonly thread: string;
  readonly role: string;
  readonly promptTokens: number;
  readonly sampledTokens: number;
  /** Turns of the rollout that were recorded when it ended. */
  readonly turnsBefore: number;
  /** What its client was told, and the limit that refused it, if one did. Absent: its client gave it up. */
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
  /** Absent: a value of 1 or more is a success. */
  readonly success?: boolean;
  /** What the value is made of, by name. */
  readonly parts?: Readonly<Record<string, number>>;
  /** What else was measured, for people: not part of the value. */
  readonly metrics?: Readonly<Record<string, number>>;
  /**
   * What parts of the rollout earned, where that is not `value`: by the index of a turn, by thread, by role. Of a turn the most
   * particular one holds. Each is compared with its like in the other rollouts of the group.
   */
  readonly byTurn?: Readonly<Record<string, number>>;
  readonly byThread?: Readonly<Record<string, number>>;
  readonly byRole?: Readonly<Record<string, number>>;
  /** Threads of which nothing is trained, whatever they earned. */
  readonly untrained?: readonly string[];
  /** Present where `byTurn` holds what later turns earned too, discounted: how it was done, so that it is done once. */
  readonly credit?: { readonly turnDiscount: number; readonly per: 'turn' | 'row' };
  /** Who gave it, where it was not the grader. */
  readonly source?: 'workflow';
}

/** Something the workflow wanted kept with its rollout, for people. */
export interface LogLine {
  readonly at: number;
  readonly text: string;
}

/** What the grader made of a trajectory. A grader that failed gave no reward: that is never the same as reward 0. */
export type Grade =
  | { readonly kind: 'graded'; readonly reward: Reward }
  | { readonly kind: 'ungraded'; readonly why: string }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

export type Purpose = 'train' | 'eval';

/** Names of one rollout: which task, which group, which place in the group. Identity is data, never a position in an array. */
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
  /** What the workflow said of itself when it returned. */
  readonly output?: Json;
  /** What it returned that decided its grade, where a grader had the last word; `untrained`: turns that were trainable until then. */
  readonly returned?: {
    readonly reward?: Reward;
    readonly success?: boolean;
    readonly credit?: NonNullable<Reward['credit']>;
    readonly untrained?: readonly number[];
  };
  readonly metadata?: Readonly<Record<string, Json>>;
  readonly metrics?: Readonly<Record<string, number>>;
  readonly logs?: readonly LogLine[];
  readonly startedAt: number;
  readonly endedAt: number;
}

/**
 * One training row. All arrays have the length of `tokens`; position i holds what belongs to token i itself (not to its
 * successor). `mask` is 1 exactly where the policy sampled the token; logprobs, advantages and versions are 0 elsewhere.
 */
export interface Sample {
  readonly tokens: Int32Array;
  readonly mask: Uint8Array;
  readonly logprobs: Float32Array;
  readonly advantages: Float32Array;
  readonly versions: Int32Array;
  /** Log-probabilities of the frozen reference policy, where a loss wants them. */
  readonly reference?: Float32Array;
  /** Temperature the tokens were sampled at: the trainer scores at the same. */
  readonly temperature: number;
  /** Factor on this row's loss. */
  readonly weight: number;
  readonly rolloutId: string;
  readonly groupId: string;
}

/** What is left out of training: a rollout, or the turn of it with this index. */
export interface Exclusion {
  readonly rolloutId: string;
  readonly turn?: number;
}

/** Somebody's word on what is trained. Marks are only ever added; of those for one rollout or turn the latest holds. */
export interface Mark extends Exclusion {
  /** False takes back an earlier mark. */
  readonly excluded: boolean;
  readonly reason: string;
  readonly at: number;
}

/** Turns that are more than `most` versions behind the one in training are left out, or count less. */
export interface StaleRule {
  readonly policyVersion: number;
  readonly most: number;
  readonly rule: 'drop' | 'weigh';
}

/** Which rollouts made which policy version. Committed together with the version, after the checkpoint is on disk. */
export interface BatchManifest {
  readonly step: number;
  /** The version this step produced. */
  readonly policyVersion: number;
  readonly rolloutIds: readonly string[];
  /** What was left out of their groups by marks when the batch was made; absent: nothing. */
  readonly excluded?: readonly Exclusion[];
  /** What whoever trains somewhere else calls the batch; such a step has no checkpoint here. */
  readonly batchId?: string;
  /** What was too old for it, where whoever asked said so: the batch is the same again only by the same rule. */
  readonly stale?: StaleRule;
  /** Checkpoint folder, relative to the run directory; null where checkpoints are rarer than steps. */
  readonly checkpoint: string | null;
  /** Digests of the samples that were trained and of the checkpoint's files, by which the step can be proved later. */
  readonly digests?: { readonly samples: string; readonly weights?: string };
  /** Where the numbering of groups stood when the batch was taken, so that a run can be resumed behind it. */
  readonly groups: { readonly next: number; readonly pending: readonly number[] };
  readonly metrics: Readonly<Record<string, number>>;
  readonly createdAt: number;
}
