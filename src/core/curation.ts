/**
 * What marks come to: which rollouts and turns are left out of training, and trajectories without them.
 *
 * A rollout that is left out is gone before anything is compared, so that its group's mean is that of the others. A turn that is left out stays in
 * its conversation as context: it is not trained, and what it earned is compared with nothing. Does not read the store.
 */
import type { Exclusion, Mark, Trajectory } from './types.ts';

/** The marks that hold and exclude something, by rollout and turn. */
export function exclusionsIn(marks: Iterable<Mark>): readonly Mark[] {
  const latest = new Map<string, Mark>();
  for (const mark of marks) latest.set(placeOf(mark), mark);
  return [...latest.values()].filter(({ excluded }) => excluded).toSorted(byPlace);
}

/** Of these rollouts alone: a store may hold marks of very many others. */
export function exclusionsOf(rolloutIds: ReadonlySet<string>, marks: readonly Mark[]): readonly Exclusion[] {
  const own = exclusionsIn(marks.filter(({ rolloutId }) => rolloutIds.has(rolloutId)));
  return own.map(({ rolloutId, turn }) => ({ rolloutId, ...(turn === undefined ? {} : { turn }) }));
}

/** The same trajectories, as far as they are trained. What nobody marked is the same object. */
export function withoutExcluded(trajectories: readonly Trajectory[], exclusions: readonly Exclusion[]): readonly Trajectory[] {
  if (exclusions.length === 0) return trajectories;
  const places = new Set(exclusions.map(placeOf));
  const rollouts = new Set(exclusions.map(({ rolloutId }) => rolloutId));
  return trajectories
    .filter(({ rolloutId }) => !places.has(placeOf({ rolloutId })))
    .map((trajectory) => (rollouts.has(trajectory.rolloutId) ? withoutTurns(trajectory, places) : trajectory));
}

/** One text for one rollout or turn. */
export function placeOf({ rolloutId, turn }: Exclusion): string {
  return JSON.stringify([rolloutId, turn ?? null]);
}

function withoutTurns(trajectory: Trajectory, places: ReadonlySet<string>): Trajectory {
  const { rolloutId } = trajectory;
  const turns = trajectory.turns.map((turn) =>
    places.has(placeOf({ rolloutId, turn: turn.index })) ? { ...turn, trainable: false } : turn,
  );
  return { ...trajectory, turns };
}

function byPlace(a: Exclusion, b: Exclusion): number {
  if (a.rolloutId !== b.rolloutId) return a.rolloutId < b.rolloutId ? -1 : 1;
  return (a.turn ?? -1) - (b.turn ?? -1);
}
