/**
 * Results of rollouts: step reports for training, and per-task results and metrics for evaluations. A rollout's id, and hence its seeds,
 * depend only on task id, number and attempt, not on concurrency or interruptions. The last attempt counts; earlier ones are kept. Every
 * rollout is in the denominator: one that failed or was not graded did not solve its task. Mean reward covers graded rollouts only, because
 * a failure is not a reward of 0. All tasks count equally.
 */
import { hash } from 'node:crypto';
import type { Store } from '../core/contracts.ts';
import type { CallReport, EvaluationReport, Score, TagReport } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { meanInterval, meanOf, passAtK, passHatK, sharesInterval } from '../core/statistics.ts';
import { isSuccess, overflowOf, sampledTokensIn, tokensOf } from '../core/turns.ts';
import type { Reward, RolloutIdentity, StaleRule, Trajectory, Turn } from '../core/types.ts';
import { isFailure } from '../rollout/budget.ts';
import { type Group, type GroupBatch, versionsBehind } from '../rollout/scheduler.ts';
import type { NumberedTask } from '../run/plan.ts';
import { isApi } from '../settings/settings.ts';

export interface RolloutResult extends Means {
  readonly rolloutId: string;
  /** Among the task's rollouts, from 1. */
  readonly number: number;
  /** From 1. */
  readonly attempt: number;
  readonly ending: Ending;
  readonly reward: number | null;
  /** Why it failed or got no reward, or which limit cut it short. */
  readonly why?: string;
  readonly seconds: number;
  /** Of each call that a model behind an API answered: how long it took, in seconds, and its tokens. Absent if there was none. */
  readonly calls?: readonly { readonly seconds: number; readonly promptTokens: number; readonly completionTokens: number }[];
}

export interface TaskResult {
  readonly id: string;
  /** In the task file, from 1. */
  readonly row: number;
  readonly tags: readonly string[];
  readonly rollouts: readonly RolloutResult[];
}

export interface Pending {
  readonly task: NumberedTask['task'];
  readonly identity: Pick<RolloutIdentity, 'rolloutId' | 'groupId' | 'purpose'>;
}

export class Results {
  readonly #tasks: readonly NumberedTask[];
  /** Rollout numbers per task. */
  readonly #numbers: readonly number[];
  /** Latest attempt by task and rollout number. */
  readonly #latest = new Map<string, RolloutResult>();

  constructor(tasks: readonly NumberedTask[], n: number) {
    this.#tasks = tasks;
    this.#numbers = Array.from({ length: n }, (_, i) => i + 1);
  }

  get done(): number {
    return this.#latest.size;
  }

  add(trajectory: Trajectory): void {
    const [, number, attempt] = (/-(\d+)(?:-again-(\d+))?$/.exec(trajectory.rolloutId) ?? []).map((part = '1') => Number(part));
    if (number === undefined || attempt === undefined) return;
    const key = keyOf(trajectory.taskId, number);
    if ((this.#latest.get(key)?.attempt ?? 0) < attempt) this.#latest.set(key, resultOf(trajectory, number, attempt));
  }

  /** Reads one task at a time and keeps only results: conversations can be long. */
  async recall(store: Store): Promise<void> {
    for (const { task } of this.#tasks) {
      const { groupId } = identityOf(task.id, 1, 1);
      for (const trajectory of await store.query({ groupId, purpose: 'eval' })) this.add(trajectory);
    }
  }

  /** Rollouts that have not run, and failed ones under a new id if `retryFailed`. */
  pending(retryFailed: boolean): readonly Pending[] {
    return this.#tasks.flatMap(({ task }) =>
      this.#numbers.flatMap((number) => {
        const kept = this.#latest.get(keyOf(task.id, number));
        if (kept !== undefined && !(retryFailed && kept.ending === 'failed')) return [];
        return [{ task, identity: identityOf(task.id, number, (kept?.attempt ?? 0) + 1) }];
      }),
    );
  }

  /** Ordered by row and rollout number, without rollouts that have not run. */
  byTask(): readonly TaskResult[] {
    return this.#tasks.map(({ task, number: row }) => ({
      id: task.id,
      row,
      tags: tagsOf(task.metadata),
      rollouts: this.#numbers.flatMap((number) => this.#latest.get(keyOf(task.id, number)) ?? []),
    }));
  }
}

export function identityOf(taskId: string, number: number, attempt: number): Pending['identity'] {
  const groupId = `e-${hash('sha256', taskId, 'hex').slice(0, 16)}`;
  const again = attempt === 1 ? '' : `-again-${attempt}`;
  return { rolloutId: `${groupId}-${number}${again}`, groupId, purpose: 'eval' };
}

function keyOf(taskId: string, number: number): string {
  return `${number} ${taskId}`;
}

export function resultOf(trajectory: Trajectory, number = 1, attempt = 1): RolloutResult {
  const { rolloutId, grade, startedAt, endedAt } = trajectory;
  const { value = null, parts, metrics } = grade.kind === 'graded' ? grade.reward : {};
  return {
    rolloutId,
    number,
    attempt,
    ending: endingOf(trajectory),
    reward: value,
    ...defined({ parts, metrics, why: whyOf(trajectory), calls: callsIn(trajectory) }),
    seconds: secondsOf({ startedAt, endedAt }),
  };
}

/** The system clock may have been set back. */
function secondsOf({ startedAt, endedAt }: Pick<Turn, 'startedAt' | 'endedAt'>): number {
  return Math.max(0, endedAt - startedAt) / 1000;
}

function callsIn({ turns }: Trajectory): RolloutResult['calls'] {
  const calls = turns.flatMap((turn) => {
    const { promptTokens, sampledTokens: completionTokens } = tokensOf(turn);
    return turn.model === undefined ? [] : [{ seconds: secondsOf(turn), promptTokens, completionTokens }];
  });
  return calls.length === 0 ? undefined : calls;
}

function callsOf(rollouts: readonly RolloutResult[]): CallReport | undefined {
  const calls = rollouts.flatMap((rollout) => rollout.calls ?? []);
  if (calls.length === 0) return undefined;
  const seconds = calls.map((call) => call.seconds).toSorted((a, b) => a - b);
  const at = (share: number): number => seconds[Math.ceil(share * seconds.length) - 1]!;
  const sum = (name: 'promptTokens' | 'completionTokens'): number => calls.reduce((total, call) => total + call[name], 0);
  const tokens = { promptTokens: sum('promptTokens'), completionTokens: sum('completionTokens') };
  return { n: calls.length, medianSeconds: at(0.5), p95Seconds: at(0.95), ...tokens };
}

function whyOf(trajectory: Trajectory): string | undefined {
  const { outcome, grade } = trajectory;
  if (outcome.kind === 'failed') return `${outcome.code}: ${outcome.message}`;
  if (grade.kind === 'failed') return `${grade.code}: ${grade.message}`;
  if (outcome.kind === 'rejected') return outcome.reason;
  if (outcome.kind === 'truncated') return `cut short by its limit of ${outcome.limit}${overflowOf(trajectory, ': ')}`;
  return grade.kind === 'ungraded' ? grade.why : undefined;
}

/** Reads `metadata.tags` (a list or a string) and `metadata.tag` (a string). */
function tagsOf(metadata: unknown): readonly string[] {
  if (typeof metadata !== 'object' || metadata === null) return [];
  const { tags, tag } = metadata as { readonly tags?: unknown; readonly tag?: unknown };
  const found = [...(Array.isArray(tags) ? (tags as readonly unknown[]) : [tags]), tag];
  return [...new Set(found.filter((each) => typeof each === 'string' && each !== ''))] as string[];
}

/** Leaves out tasks without rollouts. `n`: planned rollouts per task. */
export function reportOf(
  results: readonly TaskResult[],
  { n, temperature, engine }: { readonly n: number; readonly temperature: number; readonly engine?: unknown },
): EvaluationReport {
  const tasks = results.filter(({ rollouts }) => rollouts.length > 0);
  // k cannot exceed the rollouts of the task that has the fewest.
  const fewest = tasks.reduce((least, { rollouts }) => Math.min(least, rollouts.length), n);
  const over = (of: (n: number, c: number, k: number) => number): Readonly<Record<string, number>> =>
    Object.fromEntries(
      triesOf(fewest).map((k) => [k, meanOf(tasks.map(({ rollouts }) => of(rollouts.length, solvedIn(rollouts), k)))]),
    );
  const tags = [...new Set(tasks.flatMap((task) => task.tags))].toSorted();
  const tagged = (tag: string): readonly TaskResult[] => tasks.filter((task) => task.tags.includes(tag));
  return {
    ...sharesOf(tasks, n),
    temperature,
    perTask: n,
    rollouts: tasks.reduce((sum, { rollouts }) => sum + rollouts.length, 0),
    passAtK: over(passAtK),
    passHatK: over(passHatK),
    ...meansIn(tasks.flatMap(({ rollouts }) => rollouts)),
    byTag: Object.fromEntries(tags.map((tag) => [tag, sharesOf(tagged(tag), n)])),
    ...(isApi(engine) && defined({ calls: callsOf(tasks.flatMap(({ rollouts }) => rollouts)) })),
  };
}

/** The score of one rollout per task, as trainings report it. */
export function scoreOf(trajectories: readonly Trajectory[]): Score {
  const tasks = trajectories.map((trajectory) => ({ rollouts: [resultOf(trajectory)] }));
  const { meanRewardCi: _, ...shares } = sharesOf(tasks, 1);
  return { ...shares, ...meansOf(trajectories) };
}

function sharesOf(tasks: readonly Pick<TaskResult, 'rollouts'>[], n: number): TagReport {
  const shares = tasks.map(({ rollouts }) => solvedIn(rollouts) / rollouts.length);
  const rewards = tasks.flatMap(({ rollouts }) => meanRewardIn(rollouts) ?? []);
  const count = (ending: Ending): number =>
    tasks.reduce((sum, { rollouts }) => sum + rollouts.filter((rollout) => rollout.ending === ending).length, 0);
  return {
    success: meanOf(shares),
    ci: sharesInterval(shares, n),
    n: tasks.length,
    failed: count('failed'),
    ungraded: count('ungraded'),
    meanReward: rewards.length === 0 ? null : meanOf(rewards),
    meanRewardCi: meanInterval(rewards),
  };
}

export function solvedIn(rollouts: readonly RolloutResult[]): number {
  return rollouts.filter(({ ending }) => ending === 'solved').length;
}

export function meanRewardIn(rollouts: readonly RolloutResult[]): number | null {
  const rewards = rollouts.flatMap(({ reward }) => reward ?? []);
  return rewards.length === 0 ? null : meanOf(rewards);
}

/** 1, 2, 4 … up to n, and n itself. */
function triesOf(n: number): readonly number[] {
  const doubled = Array.from({ length: Math.floor(Math.log2(Math.max(1, n))) + 1 }, (_, i) => 2 ** i);
  return [...new Set([...doubled, n])].filter((k) => k >= 1);
}

export function trajectoriesOf(groups: readonly Group[]): Trajectory[] {
  return groups.flatMap(({ trajectories }) => trajectories);
}

/** Of those that were graded. */
export function rewardsIn(trajectories: readonly Trajectory[]): readonly Reward[] {
  return trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward] : []));
}

/** Bounds the run's files in case a grader makes up names. */
const MOST_NAMES = 256;

export interface Means {
  readonly parts?: Readonly<Record<string, number>>;
  readonly metrics?: Readonly<Record<string, number>>;
}

/** Mean of each part and metric over the graded rollouts that have it. */
export function meansOf(trajectories: readonly Trajectory[]): Means {
  return meansIn(rewardsIn(trajectories));
}

function meansIn(rewards: readonly Means[]): Means {
  return defined({
    parts: meanByName(rewards.map(({ parts }) => parts)),
    metrics: meanByName(rewards.map(({ metrics }) => metrics)),
  });
}

function meanByName(all: readonly (Readonly<Record<string, number>> | undefined)[]): Record<string, number> | undefined {
  const values = new Map<string, number[]>();
  // Sorted, because rewards from the store and new rewards differ in key order.
  for (const [name, value] of all.flatMap((one) => Object.entries(one ?? {}).toSorted(byName))) {
    const known = values.get(name);
    if (known !== undefined) known.push(value);
    else if (values.size < MOST_NAMES) values.set(name, [value]);
  }
  if (values.size === 0) return undefined;
  return Object.fromEntries(Array.from(values, ([name, of]) => [name, meanOf(of)] as const).toSorted(byName));
}

function byName([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

type StepRollouts = GroupBatch & { readonly excludedRollouts?: readonly Trajectory[] };

export function rolloutReport({ groups, withoutSignal, stale, excludedRollouts = [] }: StepRollouts, rule?: StaleRule) {
  const all = [...groups, ...withoutSignal, ...stale];
  const isStale = ({ trajectories }: Group) => versionsBehind(trajectories, rule!.policyVersion) > rule!.most;
  const staleGroups = stale.length + (rule === undefined ? 0 : groups.filter(isStale).length);
  const trajectories = [...trajectoriesOf(all), ...excludedRollouts];
  const valuesIn = (some: readonly Trajectory[]) => rewardsIn(some).map(({ value }) => value);
  const rewards = valuesIn(trajectories);
  const ofGroups = all.map((group) => valuesIn(group.trajectories)).filter((own) => own.length > 0);
  const rewardCi = meanInterval(ofGroups.map(meanOf));
  return {
    // No rewards is not a reward of 0.
    reward: rewards.length === 0 ? Number.NaN : meanOf(rewards),
    ...(rewardCi !== null && { rewardCi }),
    ...meansOf(trajectories),
    groups: all.length,
    groupsWithoutSignal: withoutSignal.length,
    staleGroups,
    ...(rule !== undefined && staleGroups > 0 && { staleRule: rule.rule }),
    rollouts: trajectories.length,
    sampledTokens: trajectories.reduce((sum, trajectory) => sum + sampledTokensIn(trajectory), 0),
    failedRollouts: trajectories.filter(isFailure).length,
    failedGrades: trajectories.filter(({ grade }) => grade.kind === 'failed').length,
    ungraded: trajectories.filter((trajectory) => endingOf(trajectory) === 'ungraded').length,
    excludedRollouts: excludedRollouts.length,
  };
}

/** `failed`: the rollout or its grading broke. `ungraded`: workflow or grader declared that there is nothing to score. */
type Ending = 'solved' | 'unsolved' | 'ungraded' | 'failed';

export function endingOf(trajectory: Trajectory): Ending {
  const { grade } = trajectory;
  if (grade.kind === 'graded') return isSuccess(trajectory) ? 'solved' : 'unsolved';
  return grade.kind === 'failed' || isFailure(trajectory) ? 'failed' : 'ungraded';
}
