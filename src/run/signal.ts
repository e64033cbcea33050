/** What a step's rollouts gave: numbers for the report, and what it means when there was nothing to learn from. */
import { TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import type { Trajectory } from '../core/types.ts';
import type { Group, Harvest } from '../rollout/scheduler.ts';
import type { CuratedHarvest } from './curated-harvest.ts';

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

/** What a step's rollouts were like, trained or not. */
export function rolloutReport({ groups, withoutSignal, stale, excludedRollouts = [] }: Harvest & Partial<CuratedHarvest>) {
  const all = [...groups, ...withoutSignal, ...stale];
  const trajectories = [...trajectoriesOf(all), ...excludedRollouts];
  const rewards = gradedRewards(trajectories);
  return {
    reward: rewards.reduce((sum, value) => sum + value, 0) / rewards.length,
    groups: all.length,
    groupsWithoutSignal: withoutSignal.length,
    staleGroups: stale.length,
    rollouts: trajectories.length,
    sampledTokens: trajectories.reduce((sum, trajectory) => sum + tokensIn(trajectory), 0),
    failedRollouts: trajectories.filter(({ outcome }) => outcome.kind === 'failed' || outcome.kind === 'rejected').length,
    failedGrades: trajectories.filter(({ grade }) => grade.kind === 'failed').length,
    ungradedRollouts: trajectories.filter(isUngraded).length,
    excludedRollouts: excludedRollouts.length,
  };
}

/** It ended as it should, and the grader found nothing to grade. */
function isUngraded({ grade, outcome }: Trajectory): boolean {
  return grade.kind === 'ungraded' && (outcome.kind === 'completed' || outcome.kind === 'truncated');
}

/** No step was taken: its groups are tried again with other tasks. */
export function roundWithoutSignal(harvest: Harvest): RunEvent {
  const { groups, reward } = rolloutReport(harvest);
  const message = `none of ${groups} groups had two different rewards (mean reward ${reward.toFixed(2)}); trying others`;
  return { type: 'warning', code: 'NO_SIGNAL', message };
}

export function nothingLeftToLearn(trajectories: readonly Trajectory[]): boolean {
  return trajectories.length > 0 && trajectories.every(isSuccess);
}

/** What the grader says it is; where it does not say, a reward of 1 or more. */
export function isSuccess({ grade }: Trajectory): boolean {
  return grade.kind === 'graded' && (grade.reward.success ?? grade.reward.value >= 1);
}

export function noSignal(trajectories: readonly Trajectory[]): TrainyardError {
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
