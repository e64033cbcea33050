/**
 * What both AReaL shapes are lowered to: core's one workflow around ONE instance per process, and what an episode is given: its data, the
 * shared HTTP client and `workflowContext`.
 *
 * The instance is made when the workflow is set up, or at its first rollout, so its constructor is the place for whatever costs a lot. The
 * HTTP client and the reward processes are made when first needed and closed when the last workflow of the process is torn down.
 */
import { currentRollout } from '../core/context.ts';
import { type ModelHandle, type Workflow, type WorkflowContext, type WorkflowResult, workflowSymbol } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import { isObject, isPlain } from '../core/json.ts';
import type { Json, PromptMessage, Trajectory } from '../core/types.ts';

/** A dataset row without its answer. Each rollout has a copy of its own. */
export interface EpisodeData<Metadata = Json | undefined> {
  /** Of the task. */
  id: string;
  /** The prompt, as messages. */
  messages: PromptMessage[];
  /** The row's other fields, as the task file has them. */
  metadata: Metadata;
}

export function episodeData({ task }: Pick<WorkflowContext, 'task'>): EpisodeData<never> {
  const { id, prompt: messages, metadata } = task;
  return structuredClone({ id, messages, metadata }) as EpisodeData<never>;
}

/** A task's rollouts, as `shouldAccept` sees them. */
export interface EpisodeGroup {
  /** Of the rollouts that got one. */
  readonly rewards: readonly number[];
  readonly trajectories: readonly Trajectory[];
}

export interface ArealWorkflowParts<T> {
  readonly name: string;
  readonly settings?: { readonly isolation?: 'process'; readonly env?: readonly string[]; readonly concurrency?: number };
  /** Called once in a process. */
  make(): T;
  /** Null: the rollout is rejected. */
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
  const ready = (): Promise<T> => boundary('WORKFLOW_INIT_FAILED', `the constructor of ${name} failed`, instance);
  const accepts = (trajectories: readonly Trajectory[]): boolean => {
    const rewards = trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : []));
    return shouldAccept!({ rewards, trajectories }, instance);
  };
  return {
    [workflowSymbol]: true,
    name,
    roles: {},
    isolation: 'none',
    grading: 'when-missing',
    ...settings,
    ...(shouldAccept === undefined ? {} : { accepts }),
    setup: async () => {
      workflows++;
      await ready();
    },
    teardown: closeShared,
    run: async (ctx) => {
      const scalars: Episode['scalars'] = new Map();
      episodes.set(ctx, { model: ctx.model(), scalars });
      const result = await parts.run(await ready(), ctx);
      if (result === null) return ctx.reject('returned_none');
      return { ...result, metrics: Object.fromEntries([...scalars].map(([key, { sum, count }]) => [key, sum / count])) };
    },
  };
}

// ── rewards by completion ────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * What each completion earned itself, by its id; the rollout's value is the sum. Which completions there are is checked by the run. Throws
 * WORKFLOW_BAD_RESULT; `who` begins its message.
 */
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

/** Entries of a plain object or a Map; undefined for anything else. */
export function entriesOf(value: unknown): readonly (readonly [unknown, unknown])[] | undefined {
  if (value instanceof Map) return [...value];
  return isObject(value) && isPlain(value) ? Object.entries(value) : undefined;
}

export function takesArguments(Class: string, hint: string): TrainyardError {
  const found = `the constructor of ${Class} takes arguments, and nobody knows which to give`;
  return new TrainyardError('WORKFLOW_INVALID', found, { hint });
}

export function badReturn(found: string, hint?: string): TrainyardError {
  return new TrainyardError('WORKFLOW_BAD_RESULT', found, hint === undefined ? {} : { hint });
}

// ── what workflows of a process share ────────────────────────────────────────────────────────────────────────────────────

/**
 * A `fetch` for SDK constructors and for requests of one's own. Its connections are kept alive and shared by all rollouts, in the pool of
 * Node's own `fetch`. A rollout's calls to its model need no connection where the gateway is in this process.
 */
export type HttpClient = typeof globalThis.fetch & { readonly closed: boolean };

let workflows = 0;
let client: HttpClient | undefined;
const closers = new Set<() => Promise<void>>();

/** Called when the last workflow is torn down. */
export function closeWithWorkflows(close: () => Promise<void>): void {
  closers.add(close);
}

async function closeShared(): Promise<void> {
  workflows = Math.max(0, workflows - 1);
  if (workflows > 0) return;
  client = undefined;
  await Promise.all([...closers].map((close) => close()));
}

/** The same one in every rollout. Once closed, it refuses every request. */
export function getHttpClient(): HttpClient {
  client ??= makeClient();
  return client;
}

function makeClient(): HttpClient {
  const fetch: typeof globalThis.fetch = (input, init) => {
    if (made.closed) {
      const hint = 'ask workflowContext.getHttpClient() for it in the rollout instead of keeping it';
      return Promise.reject(new TrainyardError('USAGE', 'the shared HTTP client was closed with its workflow', { hint }));
    }
    return (inProcess(input) ?? globalThis.fetch)(input, init);
  };
  const made = Object.defineProperty(fetch, 'closed', { get: () => client !== made }) as HttpClient;
  return made;
}

/** The gateway's own `fetch`, for what the current rollout calls under its base URL. */
function inProcess(input: string | URL | Request): typeof globalThis.fetch | undefined {
  const model = currentEpisode()?.model;
  const url = input instanceof Request ? input.url : String(input);
  return model !== undefined && url.startsWith(`${model.baseURL}/`) ? model.fetch : undefined;
}

// ── workflowContext ──────────────────────────────────────────────────────────────────────────────────────────────────────

interface Episode {
  readonly model: ModelHandle;
  readonly scalars: Map<string, { readonly sum: number; readonly count: number }>;
}

const episodes = new WeakMap<WorkflowContext, Episode>();

function currentEpisode(): Episode | undefined {
  const ctx = currentRollout();
  return ctx && episodes.get(ctx);
}

/** What code deep inside an episode asks about the rollout it runs in. The rollout is the ambient one. */
export interface WorkflowContextView {
  /** False outside of a rollout too. */
  readonly isEval: boolean;
  readonly taskId: string | undefined;
  /** Where numbers of this rollout belong. */
  statScope(): 'rollout' | 'eval-rollout';
  /** Shared by all rollouts of the process; a `fetch`. */
  getHttpClient(): HttpClient;
  /** Scalars become the rollout's metrics; of several under one name the mean is kept. */
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
    throw new TrainyardError('NO_ROLLOUT', `the scalar ${JSON.stringify(name)} was given outside of an episode`, {
      hint: 'call workflowContext.stats.scalar inside arunEpisode or run, or in what they await',
    });
  }
  if (!Number.isFinite(value))
    throw new TrainyardError('USAGE', `the scalar ${JSON.stringify(name)} is ${value}, expected a finite number`);
  const { sum, count } = scalars.get(name) ?? { sum: 0, count: 0 };
  scalars.set(name, { sum: sum + value, count: count + 1 });
}
