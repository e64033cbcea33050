/** What a step's rollouts came to: numbers for the report, what it means when there was nothing to learn from, and why a training ends. */
import { TrainyardError } from '../core/errors.ts';
import type { RunEnding, RunEvent } from '../core/events.ts';
import { meanOf } from '../core/statistics.ts';
import type { Trajectory } from '../core/types.ts';
import { isFailure } from '../rollout/budget.ts';
import type { Group, GroupBatch } from '../rollout/scheduler.ts';
import type { TrainSettings } from './settings.ts';

export function trajectoriesOf(groups: readonly Group[]): Trajectory[] {
  return groups.flatMap(({ trajectories }) => trajectories);
}

/** Tokens that were sampled in a rollout, whatever the role. */
export function tokensIn({ turns }: Trajectory): number {
  return turns.reduce((sum, { sampledIds }) => sum + sampledIds.length, 0);
}

/** Rewards of the rollouts that got one. */
export function gradedRewards(trajectories: readonly Trajectory[]): number[] {
  return trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward.value] : []));
}

/** More names than anybody looks at: a grader that makes them up must not fill the run's files. */
const MOST_NAMES = 256;

export interface Means {
  readonly parts?: Readonly<Record<string, number>>;
  readonly metrics?: Readonly<Record<string, number>>;
}

/** Every part and metric of rewards by its name: the mean over the graded rollouts that have it. */
export function meansOf(trajectories: readonly Trajectory[]): Means {
  return meansIn(trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward] : [])));
}

export function meansIn(rewards: readonly Means[]): Means {
  const parts = meanByName(rewards.map((reward) => reward.parts));
  const metrics = meanByName(rewards.map((reward) => reward.metrics));
  return { ...(parts && { parts }), ...(metrics && { metrics }) };
}

function meanByName(all: readonly (Readonly<Record<string, number>> | undefined)[]): Record<string, number> | undefined {
  const values = new Map<string, number[]>();
  // Sorted: rewards made now and rewards read from a store hold them in different orders.
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

/** With the rollouts that marks took out whole. */
interface StepRollouts extends GroupBatch {
  readonly excludedRollouts?: readonly Trajectory[];
}

/** What a step's rollouts were like, trained or not. */
export function rolloutReport({ groups, withoutSignal, stale, excludedRollouts = [] }: StepRollouts) {
  const all = [...groups, ...withoutSignal, ...stale];
  const trajectories = [...trajectoriesOf(all), ...excludedRollouts];
  const rewards = gradedRewards(trajectories);
  return {
    // None is not 0.
    reward: rewards.length === 0 ? Number.NaN : meanOf(rewards),
    ...meansOf(trajectories),
    groups: all.length,
    groupsWithoutSignal: withoutSignal.length,
    staleGroups: stale.length,
    rollouts: trajectories.length,
    sampledTokens: trajectories.reduce((sum, trajectory) => sum + tokensIn(trajectory), 0),
    failedRollouts: trajectories.filter(isFailure).length,
    failedGrades: trajectories.filter(({ grade }) => grade.kind === 'failed').length,
    ungraded: trajectories.filter((trajectory) => endingOf(trajectory) === 'ungraded').length,
    excludedRollouts: excludedRollouts.length,
  };
}

/** No step was taken: its groups are tried again with other tasks. */
export function noSignalYet(batch: GroupBatch): RunEvent {
  const { groups, reward } = rolloutReport(batch);
  const seen = Number.isNaN(reward) ? 'nothing was graded' : `mean reward ${reward.toFixed(2)}`;
  const message = `none of ${groups} groups had two different rewards (${seen}); trying others`;
  return { type: 'warning', code: 'NO_SIGNAL', message };
}

/** What the grader says it is; else a reward of 1 or more. In a game `value` does not know who is trained: then theirs by role count. */
export function isSuccess({ grade, turns }: Trajectory): boolean {
  if (grade.kind !== 'graded') return false;
  const { success, value, byRole = {} } = grade.reward;
  const earned = turns.flatMap(({ role, trainable }) => (trainable && Object.hasOwn(byRole, role) ? [byRole[role]!] : []));
  return success ?? (earned.length > 0 ? earned : [value]).every((reward) => reward >= 1);
}

/** `failed`: the rollout or its grading broke. `ungraded`: the workflow or the grader said that there is nothing to score. */
export type Ending = 'solved' | 'unsolved' | 'ungraded' | 'failed';

export function endingOf(trajectory: Trajectory): Ending {
  const { grade } = trajectory;
  if (grade.kind === 'graded') return isSuccess(trajectory) ? 'solved' : 'unsolved';
  return grade.kind === 'failed' || isFailure(trajectory) ? 'failed' : 'ungraded';
}

function noSignal(trajectories: readonly Trajectory[]): TrainyardError {
  const rewards = gradedRewards(trajectories);
  const seen = [...new Set(rewards)].toSorted((a, b) => a - b).join(', ') || 'none';
  return new TrainyardError(
    'NO_SIGNAL',
    `in several tries no group had two different rewards (rewards of the last ${trajectories.length} rollouts: ${seen})`,
    {
      hint: 'the policy does equally well on every try: give easier tasks, a larger --group, or a grader with partial credit',
    },
  );
}

/** Rewards differ, but nothing that was sampled may be trained. */
export function nothingTrainable(trajectories: readonly Trajectory[]): TrainyardError {
  const roles = [...new Set(trajectories.flatMap(({ turns }) => turns.map(({ role }) => role)))].toSorted().join(', ') || 'none';
  return new TrainyardError('NO_SIGNAL', `rewards differ, but no turn of a trainable role was sampled (roles seen: ${roles})`, {
    hint: 'make at least one of these roles trainable, in the workflow or with --trainable',
  });
}

interface Reached {
  readonly settings: Pick<TrainSettings, 'steps' | 'maxTime' | 'maxTokens'>;
  readonly finish: AbortSignal;
  /** On `performance.now()`'s clock. */
  readonly since: number;
  readonly sampledTokens: number;
  readonly outOfPatience: boolean;
}

/** Undefined: another step is to be begun. */
export function endingAt(
  step: number,
  { settings, finish, since, sampledTokens, outOfPatience }: Reached,
): RunEnding | undefined {
  const { steps, maxTime = Number.POSITIVE_INFINITY, maxTokens = Number.POSITIVE_INFINITY } = settings;
  if (finish.aborted) return 'interrupted';
  if (step >= steps) return 'steps';
  if (outOfPatience) return 'patience';
  if (performance.now() - since > maxTime * 1000) return 'max-time';
  if (sampledTokens >= maxTokens) return 'max-tokens';
  return undefined;
}

/** Step after step no group had signal: because everything is solved, or because something is wrong. */
export function endingWithoutSignal({ withoutSignal }: Pick<GroupBatch, 'withoutSignal'>): RunEnding {
  const trajectories = trajectoriesOf(withoutSignal);
  if (trajectories.length > 0 && trajectories.every(isSuccess)) return 'solved';
  throw noSignal(trajectories);
}
