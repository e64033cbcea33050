/** The in-memory store, which keeps the whole contract except durability. Other stores are tested against it. */
import { isDeepStrictEqual } from 'node:util';
import type { Store, TrajectoryFilter } from '../core/contracts.ts';
import { defined } from '../core/json.ts';
import { summaryOf } from '../core/turns.ts';
import type { BatchManifest, Mark, RolloutSummary, Trajectory } from '../core/types.ts';
import { checkFilter, keepManifest, keepMark, keepTrajectory } from './records.ts';
import { checkManifest, closedError, conflictError, unmarkable } from './store-errors.ts';

export function memoryStore(): Store {
  return new MemoryStore();
}

class MemoryStore implements Store {
  /** Insertion order is append order. */
  readonly #trajectories = new Map<string, Trajectory>();
  readonly #manifests: BatchManifest[] = [];
  readonly #stepOf = new Map<string, number>();
  readonly #marks: Mark[] = [];
  #closed = false;

  async append(trajectory: Trajectory): Promise<void> {
    this.#checkOpen();
    const incoming = keepTrajectory(trajectory);
    const kept = this.#trajectories.get(incoming.rolloutId);
    if (kept === undefined) this.#trajectories.set(incoming.rolloutId, incoming);
    else if (!isDeepStrictEqual(kept, incoming)) throw conflictError(incoming.rolloutId);
  }

  async read(rolloutId: string): Promise<Trajectory | undefined> {
    this.#checkOpen();
    const kept = this.#trajectories.get(rolloutId);
    return kept === undefined ? undefined : keepTrajectory(kept);
  }

  async query(filter: TrajectoryFilter = {}): Promise<readonly Trajectory[]> {
    this.#checkOpen();
    return this.#select(filter).map(keepTrajectory);
  }

  async summaries(after = 0, limit?: number): Promise<readonly RolloutSummary[]> {
    this.#checkOpen();
    checkFilter(defined({ limit }));
    return this.#select({})
      .map((trajectory, position) => summaryOf(trajectory, position + 1))
      .slice(after, limit === undefined ? undefined : after + limit);
  }

  async count(filter: TrajectoryFilter = {}): Promise<number> {
    this.#checkOpen();
    return this.#select(filter).length;
  }

  async groupIds(filter: TrajectoryFilter = {}): Promise<readonly string[]> {
    this.#checkOpen();
    return [...new Set(this.#select(filter).map(({ groupId }) => groupId))];
  }

  async commit(manifest: BatchManifest): Promise<void> {
    this.#checkOpen();
    const incoming = keepManifest(manifest);
    checkManifest(incoming, {
      last: this.#manifests.at(-1),
      isKept: (id) => this.#trajectories.has(id),
      stepOf: (id) => this.#stepOf.get(id),
    });
    this.#manifests.push(incoming);
    for (const id of incoming.rolloutIds) this.#stepOf.set(id, incoming.step);
  }

  async manifests(after = 0): Promise<readonly BatchManifest[]> {
    this.#checkOpen();
    return this.#manifests.filter(({ step }) => step > after).map(keepManifest);
  }

  async mark(marks: readonly Mark[]): Promise<void> {
    this.#checkOpen();
    const incoming = marks.map(keepMark);
    for (const mark of incoming) {
      const kept = this.#trajectories.get(mark.rolloutId);
      const isThere = mark.turn === undefined || kept?.turns.some(({ index }) => index === mark.turn);
      if (kept === undefined || !isThere) throw unmarkable(mark, kept !== undefined);
    }
    this.#marks.push(...incoming);
  }

  async marks(): Promise<readonly Mark[]> {
    this.#checkOpen();
    return this.#marks.map(keepMark);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
  }

  #select(filter: TrajectoryFilter): readonly Trajectory[] {
    checkFilter(filter);
    const { limit, ...wanted } = filter;
    const isWanted = ({ rolloutId, purpose, groupId, taskId, outcome: { kind } }: Trajectory): boolean => {
      const found = { purpose, groupId, taskId, outcome: kind, trained: this.#stepOf.has(rolloutId) };
      return isDeepStrictEqual(found, { ...found, ...defined(wanted) });
    };
    return [...this.#trajectories.values()].filter(isWanted).slice(0, limit);
  }

  #checkOpen(): void {
    if (this.#closed) throw closedError('the in-memory store');
  }
}
