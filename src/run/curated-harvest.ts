/**
 * A harvest without what marks exclude, as they stand when the batch is made. A group that then teaches nothing is one without signal.
 *
 * What is decided here goes into the step's manifest: a step that is computed again leaves out what it left out, whatever was marked since.
 */
import type { Store } from '../core/contracts.ts';
import { exclusionsOf, placeOf, withoutExcluded } from '../core/turns.ts';
import type { Exclusion, Trajectory } from '../core/types.ts';
import type { Group, Harvest } from '../rollout/scheduler.ts';
import { hasSignal, turnAdvantagesOf } from '../trainer/advantages.ts';

export interface CuratedHarvest extends Harvest {
  /** What marks took out of its groups, those without signal included. */
  readonly excluded: readonly Exclusion[];
  /** Of those, the rollouts that were taken out whole. */
  readonly excludedRollouts: readonly Trajectory[];
}

export async function curatedHarvest(harvest: Harvest, store: Pick<Store, 'marks'>): Promise<CuratedHarvest> {
  const all = harvest.groups.flatMap(({ trajectories }) => trajectories);
  const excluded = exclusionsOf(new Set(all.map(({ rolloutId }) => rolloutId)), await store.marks());
  if (excluded.length === 0) return { ...harvest, excluded, excludedRollouts: [] };
  const touched = new Set(excluded.map(({ rolloutId }) => rolloutId));
  const groups = harvest.groups.map((group) => ({ ...group, trajectories: withoutExcluded(group.trajectories, excluded) }));
  const isLost = ({ trajectories }: Group, place: number): boolean =>
    harvest.groups[place]!.trajectories.some(({ rolloutId }) => touched.has(rolloutId)) && !teaches(trajectories);
  const lost = new Set(groups.filter(isLost));
  const places = new Set(excluded.map(placeOf));
  return {
    groups: groups.filter((group) => !lost.has(group)),
    withoutSignal: [...harvest.withoutSignal, ...lost],
    stale: harvest.stale,
    excluded,
    excludedRollouts: all.filter(({ rolloutId }) => places.has(placeOf({ rolloutId }))),
  };
}

/** Rewards differ, and something that may be trained is compared by them. */
function teaches(group: readonly Trajectory[]): boolean {
  if (!hasSignal(group)) return false;
  const advantageOf = turnAdvantagesOf(group, 'dr-grpo');
  return group.some((trajectory) => trajectory.turns.some((turn) => advantageOf(trajectory, turn) !== undefined));
}
