/** What became of the trajectories of each channel. `kept` is always what waits, was handed out, left out or dropped, together. */
import type { Purpose } from '../core/types.ts';

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

type Added =
  | 'kept'
  | 'served'
  | 'leftOut'
  | 'dropped'
  | 'late'
  | 'refused'
  | 'servedGroups'
  | 'droppedGroups'
  | 'servedSteps'
  | 'staleSteps';

export class PoolCounts {
  readonly #sums: Record<Purpose, Record<Added, number>> = { train: nothing(), eval: nothing() };

  add(purpose: Purpose, counts: Partial<Record<Added, number>>): void {
    const sums = this.#sums[purpose];
    for (const [name, n] of Object.entries(counts) as [Added, number][]) sums[name] += n;
  }

  of(purpose: Purpose): Readonly<Record<Added, number>> {
    return { ...this.#sums[purpose] };
  }
}

function nothing(): Record<Added, number> {
  return {
    ...{ kept: 0, served: 0, leftOut: 0, dropped: 0, late: 0, refused: 0 },
    ...{ servedGroups: 0, droppedGroups: 0, servedSteps: 0, staleSteps: 0 },
  };
}
