/** Turns and rollouts as they are named, shown and excluded from training. Reads no store. */
import type { DialectName, Exclusion, Fork, Mark, Message, RolloutIdentity, StopReason, Trajectory, Turn } from './types.ts';

/** For people and their tools: where its prompt comes from, how much was said, what was special. No token ids. */
export interface TurnSummary {
  readonly index: number;
  readonly thread: string;
  readonly role: string;
  readonly after: number | null;
  readonly fork: Fork | null;
  readonly promptTokens: number;
  readonly sampledTokens: number;
  readonly stopReason: StopReason;
  readonly policyVersion: number;
  readonly trainable: boolean;
  /** Who answered, where it was not the policy. */
  readonly model: string | null;
  readonly undelivered: boolean;
  readonly dialect: DialectName | null;
  readonly ignored: readonly string[];
  readonly formatError: string | null;
  readonly response: Message;
}

export function turnSummary(turn: Turn): TurnSummary {
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
