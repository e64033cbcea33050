/**
 * Trajectories as the rows of a batch for whoever trains somewhere else: one for each trained turn, sorted by trajectory and turn.
 *
 * A turn that was sampled too many policy versions ago is left out, or counts half as much for each version too many. Pure.
 */
import { earnedBy } from '../core/reward.ts';
import type { StaleRule, Trajectory, Turn } from '../core/types.ts';

export const STALE_RULES = ['drop', 'weigh'] as const satisfies readonly StaleRule['rule'][];

export interface ServedStep {
  readonly groupId: string;
  readonly rolloutId: string;
  /** Among the trained turns of its trajectory, from 0. */
  readonly index: number;
  readonly isLast: boolean;
  readonly turn: Turn;
  /** What the turn earned, and the trajectory as a whole. */
  readonly reward: number;
  readonly value: number;
  /** 1, or less where it is stale. */
  readonly weight: number;
}

export interface ServedSteps {
  readonly steps: readonly ServedStep[];
  /** Turns that were too old, left out or weighed. */
  readonly stale: number;
}

export function servedSteps(trajectories: readonly Trajectory[], rule?: StaleRule): ServedSteps {
  const rows = trajectories.map((trajectory) => stepsOf(trajectory, rule));
  return { steps: inOrder(rows.flatMap(({ steps }) => steps)), stale: rows.reduce((sum, { stale }) => sum + stale, 0) };
}

/** By trajectory and index, whenever they came. */
export function inOrder(steps: readonly ServedStep[]): readonly ServedStep[] {
  return steps.toSorted((a, b) => (a.rolloutId === b.rolloutId ? a.index - b.index : a.rolloutId < b.rolloutId ? -1 : 1));
}

function stepsOf(trajectory: Trajectory, rule: StaleRule | undefined): ServedSteps {
  const { groupId, rolloutId, grade } = trajectory;
  if (grade.kind !== 'graded') return { steps: [], stale: 0 };
  const { value } = grade.reward;
  const trained = trajectory.turns
    .toSorted((a, b) => a.index - b.index)
    .flatMap((turn) => {
      const earned = earnedBy(trajectory, turn);
      return earned === undefined ? [] : [{ turn, reward: earned.reward, weight: weightOf(turn, rule) }];
    });
  // Numbered before anything stale is left out: an index names the same turn whoever asks when.
  const steps = trained.map((one, index) => ({ ...one, groupId, rolloutId, index, isLast: index === trained.length - 1, value }));
  return { steps: steps.filter(({ weight }) => weight > 0), stale: trained.filter(({ weight }) => weight < 1).length };
}

function weightOf({ policyVersion }: Turn, rule: StaleRule | undefined): number {
  const tooMany = rule === undefined ? 0 : rule.policyVersion - policyVersion - rule.most;
  if (tooMany <= 0) return 1;
  return rule?.rule === 'weigh' ? 0.5 ** tooMany : 0;
}
