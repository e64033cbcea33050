/**
 * The contracts between the parts. Siblings of one level never import each other; they meet here and are wired in `run/`.
 *
 * Rules that hold for every implementation: a promise that resolved is a promise kept (an appended trajectory is on disk, a
 * published version is served); every wait takes an AbortSignal or is bounded; nothing here logs.
 */
import type {
  AbandonedCall,
  BatchManifest,
  Grade,
  Json,
  LimitName,
  Limits,
  Message,
  PromptMessage,
  Purpose,
  RolloutIdentity,
  Sample,
  SamplingSettings,
  StopReason,
  Task,
  TaskView,
  Trajectory,
  Turn,
} from './types.ts';

/** Time, so that tests can hold it still. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
}

// ── what the developer writes ────────────────────────────────────────────────────────────────────────────────────────────

/** Marks a value as a workflow; discovery looks at nothing else. Registered, so that two copies of the package agree. */
export const workflowSymbol: unique symbol = Symbol.for('trainyard.workflow') as never;
export const graderSymbol: unique symbol = Symbol.for('trainyard.grader') as never;

export interface Role {
  /** Whether this seat's tokens are trained. Its sampling settings are then the run's, whatever the agent asks for. */
  readonly trainable: boolean;
}

/** The agent's behaviour on one task. */
export interface Workflow {
  readonly [workflowSymbol]: true;
  readonly name: string;
  /** Named model seats. A seat that is not listed is trainable. */
  readonly roles: Readonly<Record<string, Role>>;
  run(ctx: WorkflowContext): Promise<unknown>;
}

export interface WorkflowContext {
  readonly task: TaskView;
  /** The task's prompt; a copy of the rollout's own, which it may change. */
  readonly prompt: PromptMessage[];
  readonly metadata: Json | undefined;
  readonly rolloutId: string;
  readonly groupId: string;
  /** Aborts at the rollout's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** The door to the policy: everything a stock client needs. */
  model(role?: string): ModelHandle;
}

/** What an OpenAI-compatible client needs to reach the policy as one role of one rollout. */
export interface ModelHandle {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  /** The gateway called in process; gives the same trajectory as the base URL. */
  readonly fetch: typeof globalThis.fetch;
}

/** What a grader sees: the task with its answer, and what the agent said and did. */
export interface GraderInput {
  readonly task: Task;
  /** The last conversation of the rollout, the policy's final message included. */
  readonly messages: readonly Message[];
  readonly turns: readonly {
    readonly role: string;
    readonly thread: string;
    readonly response: Message;
    readonly stopReason: StopReason;
  }[];
  /** What the workflow returned, where it is JSON. */
  readonly output: Json | undefined;
  readonly truncated: LimitName | undefined;
}

/** A number, or a number with named parts. */
export type GraderResult = number | { readonly value: number; readonly parts?: Readonly<Record<string, number>> };

export interface Grader {
  readonly [graderSymbol]: true;
  readonly name: string;
  grade(input: GraderInput): GraderResult | Promise<GraderResult>;
}

/** Calls a grader within its deadline. Never throws for what the grader did: a failure is a `Grade`. */
export interface GraderRunner extends AsyncDisposable {
  /** Whether a hung grader can be killed (a child process) or only abandoned (an inline closure). */
  readonly killable: boolean;
  grade(input: GraderInput): Promise<Grade>;
}

// ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────────────

export interface SampleRequest {
  /** Not to be changed; may be a part of a larger buffer that prompts share. */
  readonly promptIds: Int32Array;
  readonly sampling: SamplingSettings;
  readonly stopIds: readonly number[];
  /** A safe integer. Same request and seed, same weights → same tokens. */
  readonly seed: number;
  /** Requests with the same hint share prompts; an engine may use it to place them together. Never changes the result. */
  readonly affinity?: string;
}

export interface SampleResult {
  /** Sampled ids; the stop id is the last one when `stopReason` is `stop`. */
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly stopReason: StopReason;
  /** The one version all these tokens were sampled from. */
  readonly policyVersion: number;
}

/** May say how many of these tokens to keep: then sampling ends with them, as by a stop id. */
export type OnTokens = (ids: Int32Array, logprobs: Float32Array) => { readonly keep: number } | undefined;

/** Tokens in, tokens out. Knows nothing about text. */
export interface Engine {
  readonly vocabSize: number;
  /** Prompt and sampled tokens together. */
  readonly contextLength: number;
  readonly policyVersion: number;
  /**
   * Throws CONTEXT_OVERFLOW when the prompt leaves no room for a token. `onTokens` gets the tokens while they are sampled, a few
   * at a time, all of them before the promise resolves: put together they are the result's. None come after a cancellation.
   */
  sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult>;
}

/** One sample's trained tokens, in order; all arrays have the same length. */
export interface LossInput {
  /** Log-probabilities under the weights being trained, at the sampled temperature. */
  readonly logprobs: Float32Array;
  /** Log-probabilities recorded when the tokens were sampled. */
  readonly sampled: Float32Array;
  /** Advantages; for cross_entropy the token weights. */
  readonly advantages: Float32Array;
  readonly reference: Float32Array | undefined;
}

export interface LossOutput {
  /** Summed over tokens. */
  readonly loss: number;
  /** d loss / d logprobs, token by token. */
  readonly gradient: Float32Array;
  /** Sums over tokens, for reports. */
  readonly metrics?: Readonly<Record<string, number>>;
}

/** A pure function of one sample's log-probabilities; a batch's loss is the weighted sum over its samples. */
export interface Loss {
  readonly name: string;
  readonly settings: Readonly<Record<string, number>>;
  evaluate(input: LossInput): LossOutput;
}

export interface AdamSettings {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** Gradients are scaled down to this global norm; 0 = no clipping. */
  readonly maxGradNorm: number;
}

export interface ForwardBackwardResult {
  readonly loss: number;
  readonly trainedTokens: number;
  /** Sums over trained tokens. */
  readonly metrics: Readonly<Record<string, number>>;
  /** Of each sample's masked tokens, under the weights that the gradient was taken at. */
  readonly logprobs: readonly Float32Array[];
}

/**
 * Tinker's verbs. Knows nothing about agents.
 *
 * Verbs take effect in the order they were called, whether or not an earlier one has resolved. When the weights are somewhere else and
 * were lost there, a verb throws POLICY_LOST and has had no effect; `load` begins anew from what was saved.
 */
export interface Trainer {
  /** Log-probabilities of each sample's masked tokens under the current or the frozen reference weights. */
  forward(samples: readonly Sample[], weights?: 'current' | 'reference'): Promise<Float32Array[]>;
  /** Adds the loss's gradient to the accumulated one. */
  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult>;
  /**
   * One AdamW update with the accumulated gradient, which is then zero. Fails if the forwardBackward before it failed: no step is taken
   * on part of a gradient. The norm is that before clipping, where it is told.
   */
  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number | undefined }>;
  /** The engine serves the current weights as this version from now on. */
  publish(policyVersion: number): Promise<void>;
  /** Writes weights and optimizer state into an existing empty folder. Does not fsync. */
  save(dir: string): Promise<void>;
  /** Reads what `save` wrote; a folder without optimizer state starts it fresh. Throws CHECKPOINT_MISMATCH for another model. */
  load(dir: string): Promise<void>;
  /** What was saved in this folder is about to be removed and will not be loaded again. Never throws. */
  forget(dir: string): Promise<void>;
  /** Keeps the current weights as the reference for `forward(…, 'reference')`. */
  freezeReference(): Promise<void>;
}

// ── sessions and the store ───────────────────────────────────────────────────────────────────────────────────────────────

export interface SessionSpec {
  readonly identity: RolloutIdentity;
  readonly roles: Readonly<Record<string, Role>>;
  /** Only these roles are trained, whatever `roles` says. */
  readonly trainable?: readonly string[] | undefined;
  /** For trainable roles these win over what the agent asks for. */
  readonly sampling: SamplingSettings;
  readonly limits: Limits;
  /** From which the seed of each call is derived. */
  readonly seed: number;
  /** Cancels model calls in flight. */
  readonly signal: AbortSignal;
  readonly observer?: SessionObserver;
}

/** Whoever wants to know what happens in a session. Must not throw. */
export interface SessionObserver {
  recorded?(identity: RolloutIdentity, turn: Turn): void;
  sealed?(identity: RolloutIdentity, session: Pick<Session, 'turns' | 'abandoned' | 'limitHit'>): void;
}

export interface Session {
  model(role?: string): ModelHandle;
  readonly turns: readonly Turn[];
  readonly abandoned: readonly AbandonedCall[];
  /** The limit that refused a call, if one did. */
  readonly limitHit: LimitName | undefined;
  /** Ends the session: keys die, calls in flight are cancelled and never recorded. Idempotent. */
  seal(): readonly Turn[];
}

/** Whoever can open a session: the gateway. */
export interface SessionHost {
  open(spec: SessionSpec): Session;
  readonly openSessions: number;
}

export interface TrajectoryFilter {
  readonly purpose?: Purpose;
  readonly groupId?: string;
  readonly taskId?: string;
  readonly outcome?: Trajectory['outcome']['kind'];
  /** Only those that entered (or did not enter) a committed step. */
  readonly trained?: boolean;
  readonly limit?: number;
}

/** Keeps trajectories and manifests. What was acknowledged is on disk. */
export interface Store extends AsyncDisposable {
  /** Durable when it resolves. The same trajectory again is a no-op; another one under the same id throws STORE_CONFLICT. */
  append(trajectory: Trajectory): Promise<void>;
  read(rolloutId: string): Promise<Trajectory | undefined>;
  /** In the order they were appended. */
  query(filter?: TrajectoryFilter): Promise<readonly Trajectory[]>;
  count(filter?: TrajectoryFilter): Promise<number>;
  /**
   * Commits a step: manifest, version and membership in one transaction. Throws STORE_CONFLICT if a rollout was trained
   * before, is unknown, or the step or version does not follow the last one.
   */
  commit(manifest: BatchManifest): Promise<void>;
  manifests(): Promise<readonly BatchManifest[]>;
}
