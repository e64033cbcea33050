/**
 * The groups of a run: which task each gets, how its rollouts are named and sampled, how far they may run ahead, and which are trained.
 * Only groups with signal that the workflow accepts are trained, without what marks exclude.
 */
import { hash } from 'node:crypto';
import { mapConcurrently } from '../core/async.ts';
import type { Store, Workflow } from '../core/contracts.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { type Emit, type Warn, warnBy } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { meanOf } from '../core/statistics.ts';
import { exclusionsOf, placeOf, sampledTokensIn, tokensOf, withoutExcluded } from '../core/turns.ts';
import type { Exclusion, Task, Trajectory } from '../core/types.ts';
import { withModelPath } from '../engines/model-path.ts';
import { spread } from '../evaluation/evaluate.ts';
import { scoreOf, trajectoriesOf } from '../evaluation/results.ts';
import { type Group, type GroupBatch, GroupScheduler } from '../rollout/scheduler.ts';
import { openParts, type RunParts } from '../run/parts.ts';
import type { TrainPlan } from '../run/plan.ts';
import { type Checked, preflight } from '../run/preflight.ts';
import type { Rollouts } from '../run/rollouts.ts';
import { type EvaluationRequest, evaluationSettings, type TrainSettings } from '../settings/check-settings.ts';
import { TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { costOf, hiddenFiles, plannedFor, resumeCommand, samplingAt, shellWord } from '../settings/settings.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { hasSignal, turnAdvantagesOf } from './advantages.ts';
import { answersText, isSolved, noSignal } from './no-signal.ts';
import { compared } from './objective.ts';
import type { Resumption } from './resume.ts';
import type { StepLog } from './step.ts';
import type { GroupSource } from './stored-groups.ts';

/** New rollouts, or those of another run. */
export async function groupSource(
  { plan, parts, log, rollouts }: GroupParts,
  from: Resumption,
  onProgress: (done: number, of: number) => void,
): Promise<GroupSource> {
  const { sampled } = parts.policy;
  if (plan.settings.from === undefined || !('renderer' in sampled)) return groupsOf(plan, from, rollouts, onProgress);
  const { store, warn, directory } = log;
  const { storedGroups } = await import('./stored-groups.ts');
  return await storedGroups(
    { plan, store, warn, directory, renderer: sampled.renderer, hasSignal: trainedBy(plan) },
    from.groups.next,
  );
}

interface GroupParts {
  readonly plan: TrainPlan;
  readonly parts: Pick<RunParts, 'policy'>;
  readonly log: Pick<StepLog, 'store' | 'warn' | 'directory'>;
  readonly rollouts: Rollouts;
}

/** Whether a group has signal, and the workflow accepts it. */
export function trainedBy({ settings, entry }: Pick<TrainPlan, 'settings' | 'entry'>): (group: readonly Trajectory[]) => boolean {
  return (group) => hasSignal(compared(group, settings)) && isAccepted(entry.workflow, group);
}

export function groupsOf(
  plan: Pick<TrainPlan, 'settings' | 'tasks' | 'entry'>,
  from: Resumption,
  rollouts: Rollouts,
  onProgress: (done: number, of: number) => void,
): GroupScheduler {
  const { settings, tasks } = plan;
  const { groupsPerStep, group, refill, staleness, stale, concurrency, steps, seed } = settings;
  const taskOf = inPasses(tasks, seed);
  const sampling = samplingAt(settings.temperature, settings);
  return new GroupScheduler(
    {
      refill,
      staleness,
      stale,
      concurrency,
      onProgress,
      hasSignal: trainedBy(plan),
      batchSize: groupsPerStep,
      groupSize: group,
      lastVersion: steps,
      plan: (number) => ({ groupId: groupName('g', number), task: taskOf(number) }),
      runOne: ({ groupId, task }, place, signal) =>
        rollouts.run({ rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' }, task, sampling, signal),
    },
    { version: from.step, groups: from.groups },
  );
}

function groupName(letter: string, number: number): string {
  return `${letter}${String(number).padStart(6, '0')}`;
}

/** Returns the n-th item, counted from 1, of endless passes over the items. Each pass uses a new shuffle, determined by the seed. */
export function inPasses<T>(items: readonly T[], seed: number): (n: number) => T {
  let round = -1;
  let order: readonly T[] = [];
  return (n) => {
    const wanted = Math.floor((n - 1) / items.length);
    if (wanted !== round) {
      round = wanted;
      order = shuffled(items, (_, place) => `${seed}/${round}/${place}`);
    }
    return order[(n - 1) % items.length] as T;
  };
}

/** Sorting by a hash of each item's name needs no generator state that could get lost. */
export function shuffled<T>(items: readonly T[], nameOf: (item: T, place: number) => string): readonly T[] {
  const keyed = items.map((item, place) => ({ item, key: hash('sha256', nameOf(item, place), 'hex') }));
  return keyed.toSorted((a, b) => (a.key < b.key ? -1 : 1)).map(({ item }) => item);
}

/** A group that the workflow rejects counts as one without signal. Throws WORKFLOW_FAILED for a non-boolean answer. */
export function isAccepted({ name, accepts }: Pick<Workflow, 'name' | 'accepts'>, group: readonly Trajectory[]): boolean {
  if (accepts === undefined) return true;
  const who = `the workflow ${name} was asked whether to accept group ${group[0]?.groupId}`;
  let accepted: unknown;
  try {
    // A copy, so that the workflow cannot change what is trained.
    accepted = accepts(structuredClone(group));
  } catch (cause) {
    throw new TrainyardError('WORKFLOW_FAILED', `${who} and threw ${describeThrown(cause)}`, { cause });
  }
  if (typeof accepted === 'boolean') return accepted;
  throw new TrainyardError(
    'WORKFLOW_FAILED',
    `${who} and returned ${describeValue(accepted)}, expected true or false`,
    'return a boolean, not a promise: whoever asks does not wait',
  );
}

export interface CuratedBatch extends GroupBatch {
  /** Everything that marks excluded, including from groups without signal. */
  readonly excluded: readonly Exclusion[];
  /** Rollouts that were excluded as a whole. */
  readonly excludedRollouts: readonly Trajectory[];
}

/**
 * Applies the current exclusion marks. A group that teaches nothing afterwards counts as without signal. The step's manifest records the
 * exclusions, so recomputing the step excludes the same, whatever was marked since. `rewarded` gives the rewards to compare.
 */
export async function withoutMarked(
  batch: GroupBatch,
  store: Pick<Store, 'marks'>,
  rewarded: (group: readonly Trajectory[]) => readonly Trajectory[] = (group) => group,
): Promise<CuratedBatch> {
  const all = batch.groups.flatMap(({ trajectories }) => trajectories);
  const excluded = exclusionsOf(new Set(all.map(({ rolloutId }) => rolloutId)), await store.marks());
  if (excluded.length === 0) return { ...batch, excluded, excludedRollouts: [] };
  const touched = new Set(excluded.map(({ rolloutId }) => rolloutId));
  const groups = batch.groups.map((group) => ({ ...group, trajectories: withoutExcluded(group.trajectories, excluded) }));
  const isLost = ({ trajectories }: Group, place: number): boolean =>
    batch.groups[place]!.trajectories.some(({ rolloutId }) => touched.has(rolloutId)) && !teaches(rewarded(trajectories));
  const lost = new Set(groups.filter(isLost));
  const places = new Set(excluded.map(placeOf));
  return {
    groups: groups.filter((group) => !lost.has(group)),
    withoutSignal: [...batch.withoutSignal, ...lost],
    stale: batch.stale,
    excluded,
    excludedRollouts: all.filter(({ rolloutId }) => places.has(placeOf({ rolloutId }))),
  };
}

/** Ids that fit into a command. */
const MOST_LEFT_OUT = 20;

/** With the way out of an error that stored rollouts would cause again at every resume. */
export function withWayOut(thrown: unknown, run: string): unknown {
  if (!(thrown instanceof TrainyardError)) return thrown;
  const { rollouts } = (thrown.details ?? {}) as { readonly rollouts?: readonly string[] };
  if (rollouts === undefined) return thrown;
  const curate = ['trainyard curate', ...[run, ...rollouts.slice(0, MOST_LEFT_OUT)].map(shellWord), '--reason "why"'].join(' ');
  const hint = `${thrown.hint ?? 'every resume finds the same'}; to go on without such rollouts: ${curate}, then ${resumeCommand(run)}`;
  return new TrainyardError(thrown.code, thrown.message, { hint, cause: thrown });
}

/** Whether rewards differ and at least one trainable turn gets an advantage from them. */
function teaches(group: readonly Trajectory[]): boolean {
  if (!hasSignal(group)) return false;
  const advantageOf = turnAdvantagesOf(group, 'dr-grpo');
  return group.some((trajectory) => trajectory.turns.some((turn) => advantageOf(trajectory, turn) !== undefined));
}

export interface RolloutBatchRequest extends Omit<EvaluationRequest, 'n' | 'run' | 'rows'> {
  readonly tasks: readonly Task[];
  readonly group?: number;
  /** Default 1. */
  readonly temperature?: number;
}

/**
 * Runs rollouts without training and without writing to disk. Returns one group per task, in order, with its graded rollouts; null if it
 * has none or the workflow rejects them. Nothing is replaced or awaited, so it always ends. Throws if most rollouts fail, as any run does.
 */
export async function rolloutBatch(
  { tasks, group = 1, temperature = TRAIN_DEFAULTS.temperature, ...request }: RolloutBatchRequest,
  { stop = new AbortController().signal, warn = () => {} }: { readonly stop?: AbortSignal; readonly warn?: Warn } = {},
): Promise<(readonly Trajectory[] | null)[]> {
  if (!(Number.isSafeInteger(group) && group >= 1)) {
    throw new TrainyardError('USAGE', `group is ${group}, expected a whole number from 1 up`);
  }
  const settings = evaluationSettings(await withModelPath(request));
  const { entry } = await preflight({ entry: settings.entry });
  await using parts = await openParts(settings, entry, { stop, warn });
  const groups = await runGroups(parts, tasks, { ...settings, group, temperature });
  return groups.map(({ trajectories }) => {
    const graded = trajectories.filter(({ grade }) => grade.kind === 'graded');
    return graded.length > 0 && isAccepted(entry.workflow, graded) ? graded : null;
  });
}

/** Runs one group per task, in order, and keeps nothing on disk. */
async function runGroups(
  parts: RunParts,
  tasks: readonly Task[],
  settings: Pick<TrainSettings, 'group' | 'temperature' | 'callTokens' | 'concurrency'>,
  tell: Emit = () => {},
): Promise<readonly Group[]> {
  await using store = await openSqliteStore(':memory:');
  const rollouts = parts.rolloutsInto(store);
  const sampling = samplingAt(settings.temperature, settings);
  const groups = tasks.map((task, i) => ({ groupId: groupName('b', i + 1), task }));
  const places = groups.flatMap((one) => Array.from({ length: settings.group }, (_, place) => ({ ...one, place })));
  let done = 0;
  const run = async ({ groupId, task, place }: (typeof places)[number]): Promise<Trajectory> => {
    const identity = { rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' } as const;
    const trajectory = await rollouts.run(identity, task, sampling);
    const { sampledTokens } = rollouts;
    tell({ type: 'progress', phase: 'rolling-out', done: ++done, of: places.length, sampledTokens });
    return trajectory;
  };
  const all = Map.groupBy((await mapConcurrently(places, settings.concurrency, run)) ?? [], ({ groupId }) => groupId);
  rollouts.settle();
  return groups.map((group) => ({ ...group, trajectories: all.get(group.groupId) ?? [] }));
}

/** Tasks of a probe. */
const PROBED = 4;

export type Probe = Awaited<ReturnType<typeof probe>>;

/** Opens everything as a training run would, runs one group for each of a few tasks, and says whether there is anything to learn from. */
export async function probe(
  settings: TrainSettings,
  { entry, tasks, heldOut }: Pick<Checked, 'entry' | 'tasks' | 'heldOut'>,
  { stop, tell }: { readonly stop: AbortSignal; readonly tell: Emit },
) {
  const warn = warnBy(tell);
  const files = hiddenFiles(settings);
  await using parts = await openParts(settings, entry, { stop, warn, files, trains: true });
  const { workflow } = entry;
  const { name: model, plan, sampled } = parts.policy;
  const begun = performance.now();
  const groups = await runGroups(parts, spread(tasks, PROBED), settings, tell);
  const withoutSignal = groups.filter(
    ({ trajectories: all }) => !(teaches(compared(all, settings)) && isAccepted(workflow, all)),
  );
  const all = trajectoriesOf(groups);
  const calls = all.flatMap(({ turns, unanswered = [] }) => [...turns.map(tokensOf), ...unanswered]);
  const withSignal = groups.length - withoutSignal.length;
  const seconds = (performance.now() - begun) / 1000 / all.length;
  const runRollouts = rolloutsOfRun(settings, heldOut.length, withSignal / groups.length);
  const scale = runRollouts / all.length;
  const sum = (name: 'promptTokens' | 'sampledTokens'): number => scale * calls.reduce((total, call) => total + call[name], 0);
  const tokens = { calls: scale * calls.length, promptTokens: sum('promptTokens'), sampledTokens: sum('sampledTokens') };
  const cost = costOf(settings.price, tokens.promptTokens, tokens.sampledTokens);
  const { message, hint } = isSolved({ withoutSignal }) ? ALL_SOLVED : noSignal({ withoutSignal }, { model, workflow });
  return {
    tasks: groups.map((group) => {
      const { success, meanReward } = scoreOf(group.trajectories);
      return { id: group.task.id, success, meanReward, hasSignal: !withoutSignal.includes(group) };
    }),
    rollouts: all.length,
    withSignal,
    /** Why there is nothing to learn from. Undefined if there is. */
    missing: withSignal === 0 ? { message, hint } : undefined,
    /** Of the groups without signal, if others have it. */
    answers: withSignal > 0 && withoutSignal.length > 0 ? answersText(trajectoriesOf(withoutSignal)) : undefined,
    /** Of one rollout, on average; its seconds are what it adds while others run beside it. */
    sampledTokens: meanOf(all.map(sampledTokensIn)),
    seconds,
    /** Of the longest prompt, even if it was refused. */
    promptTokens: Math.max(0, ...calls.map(({ promptTokens }) => promptTokens)),
    context: 'engine' in sampled ? sampled.engine.contextLength : Infinity,
    /** An estimate for a whole run: all rollouts, held-out ones included, their model calls, tokens, seconds and cost. Training is not in it. */
    run: { rollouts: runRollouts, seconds: runRollouts * seconds, ...tokens, ...defined({ cost }) },
    plan,
  };
}

const ALL_SOLVED = { message: 'every rollout succeeded: these tasks have nothing left to teach', hint: 'give harder tasks' };

/** Where a run resumes; of a new one, what is planned at most: `refill` times as many groups as have signal. */
export function extentOf({ settings, heldOut, isResumed }: TrainPlan, step: number) {
  return isResumed
    ? { resumedAt: step }
    : { planned: plannedFor(rolloutsOfRun(settings, heldOut.length, 1 / settings.refill), settings) };
}

/** `share`: of the groups with signal. A step tries more groups where few have it. */
function rolloutsOfRun(settings: TrainSettings, heldOut: number, share: number): number {
  const { from, steps, group, groupsPerStep, refill, evalEvery, evalTasks } = settings;
  const evaluations = evalEvery === 0 ? 0 : Math.floor((steps - 1) / evalEvery);
  const trained = from === undefined ? Math.round(steps * groupsPerStep * Math.min(refill, 1 / share)) * group : 0;
  return trained + 2 * heldOut + evaluations * Math.min(evalTasks, heldOut);
}
