/**
 * Shared by both AReaL workflow shapes: lowering to core's workflow, and what an episode gets (its data, the shared HTTP client,
 * `workflowContext`). There is ONE instance per process, created at setup or at the first rollout, so expensive work belongs in its
 * constructor. The HTTP client and the reward processes are created on first use and closed when the last workflow of the process is torn
 * down. In an episode, the environment names its policy.
 */
import { currentRollout } from '../../core/context.ts';
import {
  type ModelHandle,
  type Workflow,
  type WorkflowContext,
  type WorkflowResult,
  workflowSymbol,
} from '../../core/contracts.ts';
import { describeValue, refusing } from '../../core/describe.ts';
import { boundary, TrainyardError } from '../../core/errors.ts';
import { isObject, isPlain } from '../../core/json.ts';
import type { Json, PromptMessage, Trajectory } from '../../core/types.ts';
import { agentEnvironment } from '../../processes/agent-process.ts';

/** A dataset row without its answer; each rollout gets its own copy. */
export interface EpisodeData<Metadata = Json | undefined> {
  id: string;
  messages: PromptMessage[];
  metadata: Metadata;
}

export function episodeData({ task }: Pick<WorkflowContext, 'task'>): EpisodeData<never> {
  const { id, prompt: messages, metadata } = task;
  const instead = 'an AsyncRewardWrapper gives data.answer to its reward, and a grader (defineGrader) gets task.answer';
  return refusing(structuredClone({ id, messages, metadata }) as EpisodeData<never>, 'data', [], instead);
}

/** What a wrapped reward gets for the episode's data. */
export interface RewardData<Metadata = Json | undefined> extends EpisodeData<Metadata> {
  answer: Json | undefined;
}

const answers = new WeakMap<WorkflowContext, Json | undefined>();

/** A reward's arguments, the episode's data (or a copy) with its row's answer. For processes of rewards, never for a workflow. */
export function withAnswer(args: readonly unknown[]): readonly unknown[] {
  const ctx = currentRollout();
  if (ctx === undefined) return args;
  const isData = (arg: unknown): arg is object => isObject(arg) && arg['id'] === ctx.task.id && 'messages' in arg;
  if (!answers.has(ctx) && args.some(isData)) {
    const found =
      "a wrapped reward was given the episode's data in an isolated process or on a worker, where there is no answer to add to it";
    throw new TrainyardError(
      'GRADER_FAILED',
      found,
      'export a grader (defineGrader), which runs outside and sees task.answer, or run without isolation and workers; a reward that needs no answer can be given the fields of data that it needs',
    );
  }
  return args.map((arg) => (isData(arg) ? { ...arg, answer: answers.get(ctx) } : arg));
}

/** A task's rollouts, as passed to `shouldAccept`. */
export interface EpisodeGroup {
  /** Rewards of the graded rollouts only. */
  readonly rewards: readonly number[];
  readonly trajectories: readonly Trajectory[];
}

interface ArealWorkflowParts<T> {
  readonly name: string;
  readonly settings?: Partial<Pick<Workflow, 'isolation' | 'env' | 'hidden' | 'concurrency' | 'usesTokens'>>;
  /** Called once per process. */
  make(): T;
  /** Null rejects the rollout. */
  run(instance: T, ctx: WorkflowContext): Promise<WorkflowResult | null>;
  readonly shouldAccept?: ((group: EpisodeGroup, instance: () => T) => boolean) | undefined;
}

export function arealWorkflow<T>(parts: ArealWorkflowParts<T>): Workflow {
  const { name, settings, shouldAccept } = parts;
  let made: { readonly instance: T } | undefined;
  const instance = (): T => {
    made ??= { instance: parts.make() };
    return made.instance;
  };
  const ready = () => boundary('WORKFLOW_INIT_FAILED', `the constructor of ${name} failed`, instance);
  const accepts = (trajectories: readonly Trajectory[]): boolean => {
    const rewards = trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : []));
    return shouldAccept!({ rewards, trajectories }, instance);
  };
  const run: Workflow['run'] = async (ctx) => {
    const scalars: Episode['scalars'] = new Map();
    episodes.set(ctx, { model: ctx.model(), scalars });
    const result = await parts.run(await ready(), ctx);
    if (result === null) return ctx.reject('returned_none');
    return { ...result, metrics: Object.fromEntries([...scalars].map(([key, { sum, count }]) => [key, sum / count])) };
  };
  return {
    [workflowSymbol]: true,
    name,
    roles: {},
    isolation: 'none',
    grading: 'when-missing',
    ...settings,
    ...(shouldAccept === undefined ? {} : { accepts }),
    attach:
      async ({ isWorker }) =>
      (ctx, { answer }, apart) => {
        // A process of its own gets no answer.
        if (apart !== undefined) return apart(null);
        if (!isWorker) answers.set(ctx, answer);
        return run(ctx);
      },
    setup: async () => {
      if (workflows++ === 0) process.env = policyEnvironment(environment);
      await ready();
    },
    teardown: closeShared,
    run,
  };
}

/** Rewards by completion id; their sum is the value. The run checks the ids. Throws WORKFLOW_BAD_RESULT; its message begins with `who`. */
export function resultOfRewards(entries: readonly (readonly [id: unknown, reward: unknown])[], who: string): WorkflowResult {
  if (entries.length === 0) throw badReturn(`${who} returned an empty map of rewards`, 'return null to reject the episode');
  for (const [id, reward] of entries) {
    if (typeof id !== 'string') throw badReturn(`${who} returned a reward for ${describeValue(id)}, expected a completion id`);
    if (Number.isFinite(reward)) continue;
    throw badReturn(`${who} returned ${describeValue(reward)} for completion ${id}, expected a finite number`);
  }
  const byTurn = Object.fromEntries(entries as readonly (readonly [string, number])[]);
  return { reward: { value: Object.values(byTurn).reduce((sum, reward) => sum + reward, 0), byTurn } };
}

/** Undefined unless the value is a plain object or a Map. */
export function entriesOf(value: unknown): readonly (readonly [unknown, unknown])[] | undefined {
  if (value instanceof Map) return [...value];
  return isObject(value) && isPlain(value) ? Object.entries(value) : undefined;
}

export function takesArguments(Class: string, hint: string): TrainyardError {
  const found = `the constructor of ${Class} takes arguments, and nobody knows which to give`;
  return new TrainyardError('WORKFLOW_INVALID', found, hint);
}

export function badReturn(found: string, hint?: string): TrainyardError {
  return new TrainyardError('WORKFLOW_BAD_RESULT', found, hint);
}

/**
 * A `fetch` for SDK constructors and your own requests. All rollouts share its keep-alive connections, which are in the pool of Node's
 * `fetch`. If the gateway is in this process, calls to the rollout's model bypass the network.
 */
export type HttpClient = typeof globalThis.fetch & { readonly closed: boolean };

const environment = process.env;
let workflows = 0;
let client: HttpClient | undefined;
let closing = new AbortController();
const closers = new Set<() => Promise<void>>();

export function closeWithWorkflows(close: () => Promise<void>): void {
  closers.add(close);
}

async function closeShared(): Promise<void> {
  workflows = Math.max(0, workflows - 1);
  if (workflows > 0) return;
  process.env = environment;
  client = undefined;
  closing.abort(new TrainyardError('USAGE', CLOSED));
  closing = new AbortController();
  await Promise.all([...closers].map((close) => close()));
}

const CLOSED = 'the shared HTTP client was closed with its workflow';

/** The same client in every rollout. When it is closed, requests under way are aborted, and later ones refused with USAGE. */
export function getHttpClient(): HttpClient {
  client ??= makeClient();
  return client;
}

function makeClient(): HttpClient {
  const { signal: closed } = closing;
  const fetch: typeof globalThis.fetch = (input, init) => {
    if (made.closed) {
      const hint = 'ask workflowContext.getHttpClient() for it in the rollout instead of keeping it';
      return Promise.reject(new TrainyardError('USAGE', CLOSED, hint));
    }
    const given = init?.signal ?? (input instanceof Request ? input.signal : undefined);
    const signal = given ? AbortSignal.any([given, closed]) : closed;
    return inProcess(input)?.(input, init) ?? globalThis.fetch(input, { ...init, signal });
  };
  const made = Object.defineProperty(fetch, 'closed', { get: () => client !== made }) as HttpClient;
  return made;
}

/** The gateway's own `fetch` if the URL is under the current rollout's base URL; otherwise undefined. */
function inProcess(input: string | URL | Request): typeof globalThis.fetch | undefined {
  const model = currentEpisode()?.model;
  const url = input instanceof Request ? input.url : String(input);
  return model !== undefined && url.startsWith(`${model.baseURL}/`) ? model.fetch : undefined;
}

interface Episode {
  readonly model: ModelHandle;
  readonly scalars: Map<string, { readonly sum: number; readonly count: number }>;
}

const episodes = new WeakMap<WorkflowContext, Episode>();

function currentEpisode(): Episode | undefined {
  const ctx = currentRollout();
  return ctx && episodes.get(ctx);
}

/** A view of the environment: in an episode, some names are its policy's, so that `new OpenAI()` finds it, as in a process of its own. */
function policyEnvironment(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const ownOf = (): NodeJS.ProcessEnv => {
    const model = currentEpisode()?.model;
    return model === undefined ? {} : agentEnvironment(model);
  };
  const holding = (env: NodeJS.ProcessEnv, name: string | symbol): NodeJS.ProcessEnv => {
    const own = ownOf();
    return Object.hasOwn(own, name) ? own : env;
  };
  return new Proxy(environment, {
    get: (env, name) => Reflect.get(holding(env, name), name),
    has: (env, name) => name in holding(env, name),
    ownKeys: (env) => [...new Set([...Reflect.ownKeys(env), ...Object.keys(ownOf())])],
    getOwnPropertyDescriptor: (env, name) => Reflect.getOwnPropertyDescriptor(holding(env, name), name),
    // The default would define properties in a form that `process.env` refuses.
    set: (env, name, value) => Reflect.set(env, name, value),
  });
}

/** The current rollout, for code deep inside an episode that has no context at hand. */
export interface WorkflowContextView {
  /** Also false outside of a rollout. */
  readonly isEval: boolean;
  readonly taskId: string | undefined;
  statScope(): 'rollout' | 'eval-rollout';
  getHttpClient(): HttpClient;
  /** Scalars become the rollout's metrics. Several values under one name are averaged. */
  readonly stats: {
    scalar(name: string, value: number): void;
  };
}

export const workflowContext: WorkflowContextView = {
  get isEval() {
    return currentRollout()?.purpose === 'eval';
  },
  get taskId() {
    return currentRollout()?.task.id;
  },
  statScope() {
    return this.isEval ? 'eval-rollout' : 'rollout';
  },
  getHttpClient,
  stats: { scalar },
};

function scalar(name: string, value: number): void {
  const scalars = currentEpisode()?.scalars;
  if (scalars === undefined) {
    throw new TrainyardError(
      'NO_ROLLOUT',
      `the scalar ${JSON.stringify(name)} was given outside of an episode`,
      'call workflowContext.stats.scalar inside arunEpisode or run, or in what they await',
    );
  }
  if (!Number.isFinite(value))
    throw new TrainyardError('USAGE', `the scalar ${JSON.stringify(name)} is ${value}, expected a finite number`);
  const { sum, count } = scalars.get(name) ?? { sum: 0, count: 0 };
  scalars.set(name, { sum: sum + value, count: count + 1 });
}
