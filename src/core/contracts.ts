/**
 * The contracts between the parts, which are wired in `run/`.
 *
 * Rules that hold for every implementation: a promise that resolved is kept (an appended trajectory is on disk, a published version is
 * served); every wait takes an AbortSignal or is bounded; nothing here logs.
 */

import type { TrainyardError } from './errors.ts';
import type { Credit } from './reward.ts';
import type {
  BatchManifest,
  Grade,
  Json,
  LimitName,
  Limits,
  Mark,
  Message,
  PromptMessage,
  Purpose,
  Reward,
  RolloutIdentity,
  SamplingSettings,
  StopReason,
  Task,
  TaskView,
  Tool,
  ToolCall,
  Trajectory,
  Turn,
  UnansweredCall,
} from './types.ts';

/** Milliseconds since the epoch, so that tests can hold time still. */
export interface Clock {
  now(): number;
}

// ── what the developer writes ────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Marks what a module exports as a workflow; discovery looks at nothing else. Its value is `true` on a `Workflow`, or a `Lowering` on
 * anything that can be made into one. Registered, so that two copies of the package agree.
 */
export const workflowSymbol: unique symbol = Symbol.for('trainyard.workflow') as never;
export const graderSymbol: unique symbol = Symbol.for('trainyard.grader') as never;

/** What a lowering may look at and say: all exports of the module, and what is wrong with them. */
export interface EntryModule {
  readonly exports: readonly (readonly [name: string, value: unknown])[];
  /** One mistake of the user's; the others are still looked for. */
  problem(mistake: TrainyardError): void;
}

/** Makes a workflow or a grader of the export it stands on, its `this`. Undefined for an abstract base class, or where mistakes were told. */
export type Lowering<T> = (module: EntryModule) => T | undefined;

export interface Role {
  /** Whether the tokens sampled in this role are trained. Its sampling settings are then the run's, whatever the agent asks for. */
  readonly trainable: boolean;
  /** Who answers for it while it is not trained; absent: the policy. */
  readonly default?: DefaultModelLike;
}

/** A model that is not the policy. What it says is in the trajectory, never in a sample. */
export interface DefaultModel {
  readonly name: string;
  generate(request: DefaultModelRequest): Promise<DefaultModelAnswer>;
}

export interface DefaultModelRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** The tool that it must call, or true where any will do. */
  readonly tool?: string | true;
  /** The answer ends before the first of these texts; what is said from there on is cut off in any case. */
  readonly stop?: readonly string[];
  readonly sampling: Partial<SamplingSettings>;
  readonly signal: AbortSignal;
}

export interface DefaultModelAnswer {
  readonly content: string | null;
  /** Ids are given by the gateway. */
  readonly toolCalls?: readonly ToolCall['function'][];
  readonly stopReason?: StopReason;
}

/** A default model, or what one can be made of: an OpenAI-compatible server, or a function from the conversation to an answer. */
export type DefaultModelLike =
  | DefaultModel
  | { readonly name: string; readonly baseURL: string; readonly apiKey?: string; readonly fetch?: typeof globalThis.fetch }
  | ((request: DefaultModelRequest) => string | DefaultModelAnswer | Promise<string | DefaultModelAnswer>);

/** The agent's behaviour on one task. */
export interface Workflow {
  readonly [workflowSymbol]: true;
  readonly name: string;
  /** What the model is asked as, by name. */
  readonly roles: Readonly<Record<string, Role>>;
  /** Whether a role that is not listed is trained; absent: it is. */
  readonly othersTrainable?: boolean;
  /** Copied for each rollout. */
  readonly config?: unknown;
  /** Rollouts of it at once; absent: as many as the run has. */
  readonly concurrency?: number;
  /** `process`: each rollout in a process that holds no answers, keys or store. */
  readonly isolation: 'none' | 'process';
  /** Environment variables, by name, that such a process gets besides those that programs need. */
  readonly env?: readonly string[];
  /** When the grader is asked: always, or only where the workflow gave no reward of its own. */
  readonly grading: 'always' | 'when-missing';
  /** Its run never gives a reward: without a grader nothing can be trained or measured. */
  readonly needsGrader?: true;
  /** The rewards by turn that it returns hold what later turns earned: the run's turn discount leaves them alone. */
  readonly rewardsAreReturns?: true;
  /** What is wrong with the tasks it is to run on, told before anything is spent. */
  checkTasks?(tasks: readonly TaskView[]): readonly TrainyardError[];
  /** Whether a group may be trained on; absent: any that has signal. */
  accepts?(group: readonly Trajectory[]): boolean;
  /** Once in a process, before the first rollout and after the last. */
  setup?(): Promise<void>;
  teardown?(): Promise<void>;
  /** For what needs more of its run than a context, such as routes at the gateway: called once; the result runs rollouts instead of `run`. */
  attach?(host: RunHost): Promise<(ctx: WorkflowContext, task: Task) => Promise<unknown>>;
  run(ctx: WorkflowContext): Promise<unknown>;
}

/** What a run offers to a workflow that attaches to it. */
export interface RunHost {
  readonly gateway: SessionHost;
  readonly grader?: GraderRunner | undefined;
}

export interface WorkflowContext<Config = unknown, RoleName extends string = string> extends Omit<RolloutIdentity, 'taskId'> {
  readonly task: TaskView;
  /** A copy of the task's prompt, which the rollout may change. */
  readonly prompt: PromptMessage[];
  /** The workflow's config: data in it is copied for each rollout; functions, tools and other instances are shared. */
  readonly config: Config;
  readonly metadata: Json | undefined;
  /** A number of the rollout's own, the same whenever it is run again. */
  readonly seed: number;
  /** A folder of the rollout's own, made when first asked for; null where none can be made. */
  readonly artifactsDir: string | null;
  /** Aborts at the rollout's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** Keeps a line with the trajectory. */
  log(text: string): void;
  /** Ends the rollout without a reward: it is kept, and never trained. */
  reject(reason: string): never;
  /** The door to the policy: everything a stock client needs. */
  model(role?: RoleName, options?: SeatOptions): ModelHandle;
}

export interface SeatOptions {
  /** Who answers for the role while it is not trained; absent: what the workflow says, else the policy. */
  readonly default?: DefaultModelLike;
  /** Asked at every call. The run's own choice of roles wins. */
  readonly trainable?: () => boolean;
}

/** What a rollout says of itself when it returns; all of it is shown to the grader. */
export interface WorkflowResult {
  /** Whatever the grader should look at: the answer, most often. A text alone may be returned as it is. */
  readonly output?: Json;
  /** Turns are named by their index or by the completion's id. */
  readonly reward?: GraderResult;
  readonly success?: boolean;
  readonly metadata?: Readonly<Record<string, Json>>;
  readonly metrics?: Readonly<Record<string, number>>;
  /** Only these turns are trained, by index or completion id; absent: all of trainable roles. */
  readonly trainedTurns?: readonly (number | string)[];
  /** How far back in a conversation rewards count, the grader's too; absent: a turn has its own reward, else the rollout's. */
  readonly credit?: Credit;
  /** Conversations as the workflow kept them, by thread: for a grader where the gateway, which knows better, is in another process. */
  readonly threads?: Readonly<Record<string, readonly Message[]>>;
}

/** What a client needs to reach the policy as one role of one rollout. */
export interface ModelHandle {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  /** The gateway called in process, where it is in this process; gives the same trajectory as the base URL. */
  readonly fetch: typeof globalThis.fetch;
  /** For `new OpenAI(model.openai())`, and whatever else takes a base URL, a key and a `fetch`. */
  openai(): ClientOptions;
  /** For `new Anthropic(model.anthropic())`. */
  anthropic(): ClientOptions;
  /** One model call without a client. */
  generate(request: GenerateRequest): Promise<Generation>;
  /** Ids up to where the policy begins to speak, for `generate({ promptIds })`; `after`: that turn's ids as they are, then what is new. In process only. */
  render(messages: readonly Message[], options?: { readonly tools?: readonly Tool[]; readonly after?: Turn }): Int32Array;
  /** Text of sampled ids, without what ends a turn. In process only. */
  decode(ids: ArrayLike<number>): string;
  /** The same role in another conversation: what is said in one is no part of the other. */
  thread(name: string): ModelHandle;
}

/** A type, not an interface, so that it fits clients' options. No retries: what the gateway could not answer once it cannot answer twice. */
export type ClientOptions = {
  baseURL: string;
  apiKey: string;
  fetch: typeof globalThis.fetch;
  maxRetries: number;
  defaultHeaders?: Record<string, string>;
};

export type GenerateRequest = {
  readonly tools?: readonly Tool[];
  /** The policy must call this tool, or one of them (`true`): what it has to say for that is given to it, not sampled, and not trained. */
  readonly tool?: string | true;
  /** The answer ends before the first of these texts. */
  readonly stop?: readonly string[];
  /** The answer should be JSON, of this schema where there is one. It is checked, not forced: what is wrong is marked on the turn. */
  readonly format?: { readonly schema?: Json };
  readonly signal?: AbortSignal;
} & Partial<SamplingSettings> &
  (
    | { readonly messages: readonly Message[]; readonly promptIds?: undefined }
    /** In process only. */
    | { readonly promptIds: ArrayLike<number>; readonly messages?: undefined }
  );

export interface Generation {
  /** Of the completion. */
  readonly id: string;
  readonly message: Message;
  /** The message's content, or ''. */
  readonly text: string;
  readonly toolCalls: readonly ToolCall[];
  readonly stopReason: StopReason;
  /** What was recorded of it; absent where the policy is in another process. */
  readonly turn?: Turn;
}

/** What a grader sees: the task with its answer, and what the agent said and did. */
export interface GraderInput {
  readonly task: Task;
  /** The last conversation of the rollout, the policy's final message included. */
  readonly messages: readonly Message[];
  /** The last state of every conversation, by thread. */
  readonly threads: Readonly<Record<string, readonly Message[]>>;
  readonly turns: readonly GraderTurn[];
  /** What the workflow returned as its output. */
  readonly output: Json | undefined;
  /** What else it said of itself. */
  readonly result: Pick<WorkflowResult, 'reward' | 'success' | 'metadata' | 'metrics'>;
  readonly truncated: LimitName | undefined;
  readonly artifactsDir: string | null;
}

/** A turn as it was recorded, without its request; ids of the prompt are counted, not copied. No tokens where the policy is elsewhere. */
export interface GraderTurn
  extends Pick<Turn, 'role' | 'thread' | 'response' | 'stopReason'>,
    Partial<Omit<Turn, 'role' | 'thread' | 'response' | 'stopReason' | 'request' | 'promptIds' | 'sampling'>> {
  readonly promptTokens?: number;
}

/** What a grader may use while it grades. */
export interface GraderContext {
  /** Aborts at the grader's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** The run's own policy, for a grader that says `asksPolicy`. What is said there is never trained. */
  readonly model: GraderModel | undefined;
}

/** An OpenAI-compatible base URL; `name` is for the `model` parameter. */
export type GraderModel = Pick<ModelHandle, 'baseURL' | 'apiKey' | 'name'>;

/** A number, or a number with what it is made of and who earned what. A list by turn has one number for every turn of the rollout. */
export type GraderResult =
  | number
  | (Omit<Reward, 'source' | 'credit' | 'byTurn'> & { readonly byTurn?: Reward['byTurn'] | readonly number[] });

export type Ungraded = Extract<Grade, { kind: 'ungraded' }>;

export interface Grader {
  readonly [graderSymbol]: true;
  readonly name: string;
  /** Gradings at once; absent: as many as there are processes for it. */
  readonly concurrency?: number;
  /** Per grading; absent: as the run has it. */
  readonly deadlineMs?: number;
  /** How often a grading that failed is tried again; absent: as the run has it. */
  readonly retries?: number;
  /** Whether it needs `ctx.model`. */
  readonly asksPolicy?: boolean;
  /** Whether it asks a model, which may say something else the next time: `trainyard verify` takes its rewards as they were kept. */
  readonly judges?: boolean;
  /** Names of environment variables that it cannot grade without. */
  readonly needsEnv?: readonly string[];
  /** May say that there is nothing to grade: such a rollout is kept, and neither trained nor compared with. */
  grade(input: GraderInput, ctx: GraderContext): GraderResult | Ungraded | Promise<GraderResult | Ungraded>;
}

/** Calls a grader within its deadline. Never throws for what the grader did: a failure is a `Grade`. */
export interface GraderRunner extends AsyncDisposable {
  /** Whether a hung grader can be killed (a child process) or only abandoned (an inline closure). */
  readonly killable: boolean;
  grade(input: GraderInput, model?: GraderModel): Promise<Grade>;
}

// ── sessions and the store ───────────────────────────────────────────────────────────────────────────────────────────────

export interface SessionSpec extends Pick<Workflow, 'roles'> {
  readonly identity: RolloutIdentity;
  /** Whether a role that is not listed is trained; absent: it is. */
  readonly othersTrainable?: boolean | undefined;
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

/** Told what happens in a session. Must not throw. */
export interface SessionObserver {
  recorded?(identity: RolloutIdentity, turn: Turn): void;
  sealed?(identity: RolloutIdentity, session: Pick<Session, 'turns' | 'unanswered' | 'isAfter'>): void;
}

export interface Session {
  model(role?: string, options?: SeatOptions): ModelHandle;
  readonly turns: readonly Turn[];
  readonly unanswered: readonly UnansweredCall[];
  /** Whether the call that a turn answers was made when the other one had ended: not beside it. */
  isAfter(turn: Turn, call: UnansweredCall): boolean;
  /** Ends the session: keys die, calls in flight are cancelled and never recorded. Idempotent. */
  seal(): readonly Turn[];
}

/** What can open a session: the gateway. */
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
  /** A step, in one transaction. Throws STORE_CONFLICT for a rollout that is unknown or was trained, and for a step out of order. */
  commit(manifest: BatchManifest): Promise<void>;
  manifests(): Promise<readonly BatchManifest[]>;
  /** All of them or none, durable when it resolves. Throws STORE_CONFLICT for a rollout or a turn that is not kept. */
  mark(marks: readonly Mark[]): Promise<void>;
  /** Every mark ever made, in order. */
  marks(): Promise<readonly Mark[]>;
}
