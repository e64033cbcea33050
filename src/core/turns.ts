/** Turns and rollouts as they are named, shown and excluded from training. Reads no store. */
import type { Exclusion, Mark, RolloutIdentity, Trajectory, Turn } from './types.ts';

/** For people and their tools: where its prompt comes from, how much was said, what was special. No token ids. */
export function turnSummary(turn: Turn) {
  const { index, thread, role, after, fork, stopReason, policyVersion, trainable, request, formatError, response } = turn;
  return {
    index,
    thread,
    role,
    after: after ?? null,
    fork: fork ?? null,
    promptTokens: turn.promptIds.length,
    sampledTokens: turn.sampledIds.length,
    stopReason,
    policyVersion,
    trainable,
    model: turn.model ?? null,
    undelivered: turn.undelivered ?? false,
    dialect: request.dialect ?? null,
    ignored: request.ignored ?? [],
    formatError: formatError ?? null,
    response,
  };
}

export type TurnSummary = ReturnType<typeof turnSummary>;

/** The id of the completion that a client gets. The seed of a turn is known before it is complete, and no other turn of the rollout has it. */
export function completionId({ rolloutId }: Pick<RolloutIdentity, 'rolloutId'>, seed: number): string {
  return `${rolloutId.replaceAll(/[^\w-]/g, '_')}-${seed.toString(36)}`;
}

/**
 * The turn of this index or completion id. An id may have the prefix that a dialect puts before it (`chatcmpl-`, `resp_`, `msg_`). Of
 * several answers to one call, which share an id, it is the first.
 */
export function turnNamed(identity: RolloutIdentity, turns: readonly Turn[], name: number | string): Turn | undefined {
  if (typeof name === 'number' || /^\d+$/.test(name)) return turns.find(({ index }) => index === Number(name));
  return turns.find(({ sampling }) => {
    const id = completionId(identity, sampling.seed);
    return name === id || name === `chatcmpl-${id}` || name === `resp_${id}` || name === `msg_${id}`;
  });
}

// ── exclusion by marks ────────────────────────────────────────────────────────────────────────────────────────────────────

// An excluded rollout is removed before anything is compared, so that its group's mean is that of the others. An excluded turn stays in its
// conversation as context: it is not trained, and what it earned is compared with nothing.

/** The marks that hold and exclude something, by rollout and turn. */
export function exclusionsIn(marks: Iterable<Mark>): readonly Mark[] {
  const latest = new Map<string, Mark>();
  for (const mark of marks) latest.set(placeOf(mark), mark);
  return [...latest.values()].filter(({ excluded }) => excluded).toSorted(byRolloutAndTurn);
}

/** Of these rollouts alone: a store may hold marks of very many others. */
export function exclusionsOf(rolloutIds: ReadonlySet<string>, marks: readonly Mark[]): readonly Exclusion[] {
  const own = exclusionsIn(marks.filter(({ rolloutId }) => rolloutIds.has(rolloutId)));
  return own.map(({ rolloutId, turn }) => ({ rolloutId, ...(turn === undefined ? {} : { turn }) }));
}

/** The same trajectories, as far as they are trained. What nobody marked is the same object. */
export function withoutExcluded(trajectories: readonly Trajectory[], exclusions: readonly Exclusion[]): readonly Trajectory[] {
  const byRollout = Map.groupBy(exclusions, ({ rolloutId }) => rolloutId);
  return trajectories.flatMap((trajectory) => {
    const excluded = byRollout.get(trajectory.rolloutId)?.map(({ turn }) => turn);
    if (excluded === undefined) return [trajectory];
    if (excluded.includes(undefined)) return [];
    const turns = trajectory.turns.map((turn) => (excluded.includes(turn.index) ? { ...turn, trainable: false } : turn));
    return [{ ...trajectory, turns }];
  });
}

/** One text for one rollout or turn. */
export function placeOf({ rolloutId, turn }: Exclusion): string {
  return JSON.stringify([rolloutId, turn ?? null]);
}

function byRolloutAndTurn(a: Exclusion, b: Exclusion): number {
  if (a.rolloutId !== b.rolloutId) return a.rolloutId < b.rolloutId ? -1 : 1;
  return (a.turn ?? -1) - (b.turn ?? -1);
}
