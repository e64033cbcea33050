/**
 * Which groups wait to be handed out, and which are closed: in memory, by channel and name, in the order their first trajectory was kept.
 *
 * A group's place in the line never holds up those behind it. Of a line that is full the oldest group that is excluded whole makes room, else
 * the oldest that is not complete, never one that could be handed out. Closed groups stay closed: what belongs to one comes too late. No I/O.
 */
import type { Purpose, Trajectory } from '../core/types.ts';

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
