/**
 * What the group pool is made of, in memory: the groups that wait to be handed out and those that are closed, by channel and name, in the
 * order their first trajectory was kept; counts of what became of trajectories; and the rows of a batch.
 *
 * A group's place in the queue never holds up those behind it. When the queue is full, the oldest group that is excluded whole makes room,
 * else the oldest that is not complete, never one that could be handed out. Closed groups stay closed: what belongs to one is late. No I/O.
 */

import { earnedBy } from '../core/reward.ts';
import type { Purpose, StaleRule, Trajectory, Turn } from '../core/types.ts';

export interface WaitingGroup {
  readonly groupId: string;
  readonly purpose: Purpose;
  /** When its first trajectory ended, milliseconds since the epoch. */
  readonly since: number;
  /** Trajectories that ended, and whether there is something to train in them. */
  readonly members: Map<string, boolean>;
  /** Trajectories that are being written. While there are any the group is not handed out. */
  entering: number;
  /** Whether marks excluded all that could be handed out of it, when somebody last asked. */
  held: boolean;
}

type Identity = Pick<Trajectory, 'groupId' | 'purpose'>;

/** Why a trajectory is not taken. `late`: its group was handed out or dropped; `full`: there are as many complete groups as may wait. */
export type Closed = 'late' | 'full';

export class WaitingGroups {
  readonly #waiting = new Map<string, WaitingGroup>();
  readonly #closed = new Set<string>();

  get(identity: Identity): WaitingGroup | undefined {
    return this.#waiting.get(nameOf(identity));
  }

  isClosed(identity: Identity): boolean {
    return this.#closed.has(nameOf(identity));
  }

  /** In line. */
  of(purpose: Purpose): readonly WaitingGroup[] {
    return [...this.#waiting.values()].filter((group) => group.purpose === purpose);
  }

  /** The group of this name, at the end of the line where it is new. */
  open(identity: Identity, since: number): WaitingGroup {
    const known = this.get(identity);
    if (known !== undefined) return known;
    const { groupId, purpose } = identity;
    const group: WaitingGroup = { groupId, purpose, since, members: new Map(), entering: 0, held: false };
    this.#waiting.set(nameOf(identity), group);
    return group;
  }

  close(identity: Identity): void {
    this.#waiting.delete(nameOf(identity));
    this.#closed.add(nameOf(identity));
  }

  /** A group that nothing came into after all. */
  forget(group: WaitingGroup): void {
    if (group.members.size === 0 && group.entering === 0) this.#waiting.delete(nameOf(group));
  }
}

function nameOf({ purpose, groupId }: Identity): string {
  return `${purpose} ${groupId}`;
}

// ── counts ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

// `kept` is always what waits, was handed out, left out or dropped, together.

export interface ChannelCounts {
  /** Trajectories that were kept. */
  readonly kept: number;
  readonly waiting: number;
  readonly served: number;
  /** Of groups that were handed out: failed, not graded, excluded, or with nothing left to train. */
  readonly leftOut: number;
  readonly dropped: number;
  /** Trajectories that came after their group was closed; they were not kept. */
  readonly late: number;
  /** Trajectories for which there was no room; they were not kept. */
  readonly refused: number;
  readonly waitingGroups: number;
  readonly readyGroups: number;
  readonly servedGroups: number;
  readonly droppedGroups: number;
  readonly servedSteps: number;
  /** Steps of batches that were too old: left out, or weighed. */
  readonly staleSteps: number;
}

type Added = keyof typeof NONE;
const NONE = {
  ...{ kept: 0, served: 0, leftOut: 0, dropped: 0, late: 0, refused: 0 },
  ...{ servedGroups: 0, droppedGroups: 0, servedSteps: 0, staleSteps: 0 },
};

export class PoolCounts {
  readonly #sums: Record<Purpose, Record<Added, number>> = { train: { ...NONE }, eval: { ...NONE } };

  add(purpose: Purpose, counts: Partial<Record<Added, number>>): void {
    const sums = this.#sums[purpose];
    for (const [name, n] of Object.entries(counts) as [Added, number][]) sums[name] += n;
  }

  of(purpose: Purpose): Readonly<Record<Added, number>> {
    return { ...this.#sums[purpose] };
  }
}

// ── rows of a batch ───────────────────────────────────────────────────────────────────────────────────────────────────────

// One row for each trained turn. A turn that was sampled too many policy versions ago is left out, or counts half as much for each version
// too many.

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
