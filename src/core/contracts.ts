/**
 * The contracts between the parts, which `run/` wires together. Every implementation keeps these rules: a resolved promise is final (an
 * appended trajectory is on disk, a published version is served); every wait takes an AbortSignal or is bounded; nothing logs.
 */
import type { Downtime } from './async.ts';
import type { TrainyardError } from './errors.ts';
import type { Credit } from './reward.ts';
import type {
  BatchManifest,
  ByName,
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
  RolloutSummary,
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

/** Milliseconds since the epoch. Injected so that tests can fix the time. */
export interface Clock {
  now(): number;
  /** Milliseconds since some moment, which setting the system's clock does not change. Default: `now`. */
  elapsed?(): number;
}

/**
 * Marks an export as a workflow; discovery looks at nothing else. The value is `true` on a `Workflow`, or a `Lowering` on anything that can
 * be converted to one. Registered globally, so that two copies of the package agree.
 */
export const workflowSymbol: unique symbol = Symbol.for('trainyard.workflow') as never;
export const graderSymbol: unique symbol = Symbol.for('trainyard.grader') as never;

/** What a lowering can use: all exports of the module, what it announced while it was imported, and a way to report problems. */
export interface EntryModule {
  readonly exports: readonly (readonly [name: string, value: unknown])[];
  readonly announced?: readonly object[];
  problem(mistake: TrainyardError): void;
}

/** Converts its `this`, an export, to a workflow or grader. Undefined for an abstract base class, or after it reported problems. */
export type Lowering<T> = (module: EntryModule) => T | undefined;

export interface Role {
  /** Whether tokens sampled in this role are trained. If so, the run's sampling settings override what the agent requests. */
  readonly trainable: boolean;
  /** Answers for the role while it is not trained. Default: the policy. */
  readonly default?: DefaultModelLike;
}

/** A model other than the policy. Its responses appear in the trajectory, never in a sample. */
export interface DefaultModel {
  readonly name: string;
  /** `waits`: the time between its `begin` and `end` does not count towards the rollout's deadline. */
  generate(request: DefaultModelRequest, waits?: Downtime): Promise<DefaultModelAnswer>;
}

export interface DefaultModelRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** The tool that the model must call; true: any. */
  readonly tool?: string | true;
  /** Stop sequences. The gateway cuts the response at the first of these even if the model does not. */
  readonly stop?: readonly string[];
  /** The response should be JSON, matching the schema if given. */
  readonly format?: { readonly schema?: Json };
  readonly sampling: Partial<SamplingSettings>;
  readonly signal: AbortSignal;
  /** The name of the conversation. */
  readonly thread?: string;
  /** The request as its agent wrote it, if that was in Chat Completions. */
  readonly chat?: Readonly<Record<string, unknown>>;
  /** For a model that streams: what it says, while it says it. Absent if nobody listens, or if a stop sequence may cut it. */
  readonly tell?: (piece: { readonly kind: 'reasoning' | 'text'; readonly text: string }) => void;
}

export interface DefaultModelAnswer {
  readonly content: string | null;
  readonly reasoning?: string;
  /** The gateway assigns ids to those that have none. */
  readonly toolCalls?: readonly (ToolCall['function'] & { readonly id?: string })[];
  readonly stopReason?: StopReason;
  /** As the model counted them. */
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number };
}

/** A server that speaks Chat Completions, or Anthropic's Messages API. */
export interface ModelServer {
  readonly name: string;
  readonly baseURL: string;
  /** If absent or empty, no key is sent. */
  readonly apiKey?: string;
  /** Default: openai. */
  readonly api?: 'openai' | 'anthropic';
  readonly fetch?: typeof globalThis.fetch;
}

/** A default model, or something that becomes one: a server, or a function from the conversation to a response. */
export type DefaultModelLike =
  | DefaultModel
  | ModelServer
  | ((request: DefaultModelRequest) => string | DefaultModelAnswer | Promise<string | DefaultModelAnswer>);

export interface Workflow {
  readonly [workflowSymbol]: true;
  readonly name: string;
  readonly roles: ByName<Role>;
  /** Whether roles not listed in `roles` are trained. Default: true. */
  readonly othersTrainable?: boolean;
  readonly config?: unknown;
  /** How many of its rollouts may run at once. Default: the run's limit. */
  readonly concurrency?: number;
  /** `process`: each rollout runs in a process that holds no answers, keys or store. */
  readonly isolation: 'none' | 'process';
  /** Names of extra environment variables that an isolated process receives. */
  readonly env?: readonly string[];
  /** Paths that an isolated process cannot read, from the entry's folder; a name may hold `*`. */
  readonly hidden?: readonly string[];
  /** Its rollouts render, send and decode token ids themselves, so their isolated processes load the tokenizer. */
  readonly usesTokens?: true;
  /** Whether the grader always runs, or only if the workflow returned no reward. */
  readonly grading: 'always' | 'when-missing';
  /** The workflow never returns a reward, so training and evaluation need a grader. */
  readonly needsGrader?: true;
  /** Its rewards by turn already include what later turns earned, so the run's turn discount does not apply to them. */
  readonly rewardsAreReturns?: true;
  /** Returns problems with the tasks, before any rollout starts. */
  checkTasks?(tasks: readonly TaskView[]): readonly TrainyardError[];
  /** Whether a group may be trained on. Default: any group with signal. */
  accepts?(group: readonly Trajectory[]): boolean;
  /** Called once per process, before the first rollout and after the last. */
  setup?(): Promise<void>;
  teardown?(): Promise<void>;
  /** For workflows that need more of the run than a context, such as gateway routes. Called once; the returned function replaces `run`. */
  attach?(host: RunHost): Promise<AttachedRun>;
  /** `handed`: in an isolated process, what the attached part in the run's process handed over. */
  run(ctx: WorkflowContext, handed?: unknown): Promise<unknown>;
}

/** `apart`, with isolation: calls the workflow's `run` in the rollout's process, which gets `handed` and nothing else of the run. */
export type AttachedRun = (ctx: WorkflowContext, task: Task, apart?: (handed: unknown) => Promise<unknown>) => Promise<unknown>;

export interface RunHost {
  readonly gateway: SessionHost;
  readonly grader?: GraderRunner | undefined;
  /** Whether this is a worker, where tasks have no answers. */
  readonly isWorker?: boolean;
}

export interface WorkflowContext<Config = unknown, RoleName extends string = string> extends Omit<RolloutIdentity, 'taskId'> {
  readonly task: TaskView;
  /** A copy of the task's prompt that the rollout may modify. */
  readonly prompt: PromptMessage[];
  /** The workflow's config. Plain data is copied for each rollout; functions, tools and other instances are shared. */
  readonly config: Config;
  readonly metadata: Json | undefined;
  /** Unique to the rollout, and the same whenever it is rerun. */
  readonly seed: number;
  /** The rollout's own folder, created on first access; null if none can be created. */
  readonly artifactsDir: string | null;
  /** Aborts at the rollout's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** Stores a line with the trajectory. */
  log(text: string): void;
  /** Ends the rollout without a reward. It is stored, but never trained. */
  reject(reason: string): never;
  model(role?: RoleName, options?: SeatOptions): ModelHandle;
}

export interface SeatOptions {
  /** Answers for the role while it is not trained. Default: the workflow's default model, else the policy. */
  readonly default?: DefaultModelLike;
  /** Evaluated at every call. The run's own choice of roles takes precedence. */
  readonly trainable?: () => boolean;
}

/** What a workflow returns about its rollout. The grader sees all of it. */
export interface WorkflowResult {
  /** What the grader should look at, usually the answer. A workflow may also return a plain string. */
  readonly output?: Json;
  /** Names turns by index or completion id. */
  readonly reward?: GraderResult;
  readonly success?: boolean;
  readonly metadata?: ByName<Json>;
  readonly metrics?: ByName<number>;
  /** Trains only these turns, by index or completion id. Default: all turns of trainable roles. */
  readonly trainedTurns?: readonly (number | string)[];
  /** How rewards, including the grader's, propagate to earlier turns. Default: a turn has its own reward, else the rollout's. */
  readonly credit?: Credit;
  /** Conversations by thread, as the workflow kept them. For graders when the gateway, which knows better, is in another process. */
  readonly threads?: ByName<readonly Message[]>;
}

/** What a client needs to reach the policy as one role of one rollout. */
export interface ModelHandle {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  /** Calls the gateway in process where possible. Produces the same trajectory as the base URL. */
  readonly fetch: typeof globalThis.fetch;
  /** For `new OpenAI(model.openai())`, `new Anthropic(model.anthropic())`, and clients that take a base URL, a key and a `fetch`. */
  openai(): ClientOptions;
  anthropic(): ClientOptions;
  generate(request: GenerateRequest): Promise<Generation>;
  /** Prompt ids for `generate({ promptIds })`. With `after`: that turn's exact ids, then the new messages. In process only. */
  render(messages: readonly Message[], options?: { readonly tools?: readonly Tool[]; readonly after?: Turn }): Int32Array;
  /** Text of sampled ids, without the end-of-turn token. In process only. */
  decode(ids: ArrayLike<number>): string;
  /** The same role in a separate conversation. */
  thread(name: string): ModelHandle;
}

/**
 * A type, not an interface, to be assignable to clients' options. Clients keep their own retries: the gateway recognises them, records one
 * turn for all attempts, and tells clients which failures are final.
 */
export type ClientOptions = {
  baseURL: string;
  apiKey: string;
  fetch: typeof globalThis.fetch;
  defaultHeaders?: Record<string, string>;
};

export type GenerateRequest = {
  readonly tools?: readonly Tool[];
  /** The policy must call this tool, or any tool (`true`). The tokens that open the call are forced, not sampled, and not trained. */
  readonly tool?: string | true;
  /** Stop sequences; the response ends before the first match. */
  readonly stop?: readonly string[];
  /** JSON, of the schema if given. Enforced by engines that constrain, if there are no tools; else the turn records what is wrong. */
  readonly format?: { readonly schema?: Json };
  readonly signal?: AbortSignal;
} & Partial<SamplingSettings> &
  (
    | { readonly messages: readonly Message[]; readonly promptIds?: undefined }
    /** In process only. */
    | { readonly promptIds: ArrayLike<number>; readonly messages?: undefined }
  );

export interface Generation {
  readonly id: string;
  readonly message: Message;
  /** The message's content, or ''. */
  readonly text: string;
  readonly toolCalls: readonly ToolCall[];
  readonly stopReason: StopReason;
  /** The recorded turn; absent if the policy is in another process. */
  readonly turn?: Turn;
}

/** What a grader sees: the task with its answer, and what the agent said and did. */
export interface GraderInput {
  readonly task: Task;
  /** The conversation of the last turn by a trainable role (else of the last turn), including that turn's response. */
  readonly messages: readonly Message[];
  readonly threads: ByName<readonly Message[]>;
  readonly turns: readonly GraderTurn[];
  readonly output: Json | undefined;
  readonly result: Pick<WorkflowResult, 'reward' | 'success' | 'metadata' | 'metrics'>;
  readonly truncated: LimitName | undefined;
  readonly artifactsDir: string | null;
}

/** A recorded turn without request, sampling settings and prompt ids (only their count). Without tokens if the policy is elsewhere. */
export interface GraderTurn
  extends Pick<Turn, 'role' | 'thread' | 'response' | 'stopReason'>,
    Partial<Omit<Turn, 'role' | 'thread' | 'response' | 'stopReason' | 'request' | 'promptIds' | 'sampling'>> {
  readonly promptTokens?: number;
}

export interface GraderContext {
  /** Aborts at the grader's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** The run's policy, for a grader with `asksPolicy`. Its responses are never trained. */
  readonly model: GraderModel | undefined;
}

/** An OpenAI-compatible endpoint; `name` is for the `model` parameter. */
export type GraderModel = Pick<ModelHandle, 'baseURL' | 'apiKey' | 'name'>;

/** A number, or a number with its parts and rewards by turn, thread or role. A `byTurn` list has one number for every turn. */
export type GraderResult =
  | number
  | (Omit<Reward, 'source' | 'credit' | 'byTurn'> & { readonly byTurn?: Reward['byTurn'] | readonly number[] });

export type Ungraded = Extract<Grade, { kind: 'ungraded' }>;

export interface Grader {
  readonly [graderSymbol]: true;
  readonly name: string;
  /** How many gradings may run at once. Default: the number of grading processes. */
  readonly concurrency?: number;
  /** Per attempt. Default: the run's setting. */
  readonly deadlineMs?: number;
  /** Retries after a failed grading. Default: the run's setting. */
  readonly retries?: number;
  readonly asksPolicy?: boolean;
  /** Whether it asks a model, whose answer may differ next time: `trainyard verify` then reuses the stored rewards. */
  readonly judges?: boolean;
  /** Names of environment variables that it requires. */
  readonly needsEnv?: readonly string[];
  /** May return `Ungraded` if there is nothing to grade: the rollout is stored, but neither trained nor used as a baseline. */
  grade(input: GraderInput, ctx: GraderContext): GraderResult | Ungraded | Promise<GraderResult | Ungraded>;
}

/** Calls a grader within its deadline. Never throws for what the grader does: a failure is a `Grade`. */
export interface GraderRunner extends AsyncDisposable {
  /** `print` receives what the grader prints in a process of its own, shortened; what it prints in this one is on the terminal already. */
  grade(input: GraderInput, model?: GraderModel, print?: (text: string) => void): Promise<Grade>;
}

export interface SessionSpec extends Pick<Workflow, 'roles'> {
  readonly identity: RolloutIdentity;
  readonly othersTrainable?: boolean | undefined;
  readonly trainable?: readonly string[] | undefined;
  /** Overrides what the agent requests for trainable roles. */
  readonly sampling: SamplingSettings;
  readonly limits: Limits;
  readonly seed: number;
  readonly signal: AbortSignal;
  /** Collects the time that the rollout's calls wait for busy model servers. */
  readonly waits?: Downtime | undefined;
  readonly observer?: SessionObserver;
}

/** Callbacks must not throw. */
export interface SessionObserver {
  recorded?(identity: RolloutIdentity, turn: Turn): void;
  sealed?(identity: RolloutIdentity, session: Pick<Session, 'turns' | 'unanswered' | 'isAfter'>): Promise<void> | void;
}

export interface Session {
  model(role?: string, options?: SeatOptions): ModelHandle;
  readonly turns: readonly Turn[];
  readonly unanswered: readonly UnansweredCall[];
  /** Whether the turn's call started after the other call had ended, rather than in parallel with it. */
  isAfter(turn: Turn, call: UnansweredCall): boolean;
  /** Ends the session: invalidates its keys, and cancels calls in flight without recording them. Idempotent. */
  seal(): readonly Turn[];
}

export interface SessionHost {
  open(spec: SessionSpec): Session;
}

export interface TrajectoryFilter {
  readonly purpose?: Purpose;
  readonly groupId?: string;
  readonly taskId?: string;
  readonly outcome?: Trajectory['outcome']['kind'];
  /** Only rollouts that are (or are not) part of a committed step. */
  readonly trained?: boolean;
  readonly limit?: number;
}

/** Stores trajectories and manifests. Everything acknowledged is on disk. */
export interface Store extends AsyncDisposable {
  /** Durable when it resolves. Appending an equal trajectory again is a no-op; a different one with the same id throws STORE_CONFLICT. */
  append(trajectory: Trajectory): Promise<void>;
  read(rolloutId: string): Promise<Trajectory | undefined>;
  /** In append order. */
  query(filter?: TrajectoryFilter): Promise<readonly Trajectory[]>;
  count(filter?: TrajectoryFilter): Promise<number>;
  /** In append order, those after this `seq`. Reads no tokens and no messages: a list of a large store is read in such pieces. */
  summaries(after?: number, limit?: number): Promise<readonly RolloutSummary[]>;
  /** The groups of what a query would return, in the order of their first rollouts: to read a large store one group at a time. */
  groupIds(filter?: TrajectoryFilter): Promise<readonly string[]>;
  /** Commits a step in one transaction. Throws STORE_CONFLICT if a rollout is unknown or already trained, or the step is out of order. */
  commit(manifest: BatchManifest): Promise<void>;
  /** By step; only those after this one. */
  manifests(after?: number): Promise<readonly BatchManifest[]>;
  /** All or nothing; durable when it resolves. Throws STORE_CONFLICT if a rollout or turn is not in the store. */
  mark(marks: readonly Mark[]): Promise<void>;
  marks(): Promise<readonly Mark[]>;
}
