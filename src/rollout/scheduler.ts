/**
 * Starts the rollouts of groups in order, within the concurrency limit and as far ahead of the trainer as the staleness bound allows.
 * Replaces groups without signal. Knows nothing about training.
 *
 * Groups are numbered in starting order and taken in that order. With a staleness bound of 0, a step's groups do not depend on which
 * rollout finishes first: group n starts exactly when fewer than a batch of the earlier groups had signal.
 */
import type { StaleRule, Task, Trajectory } from '../core/types.ts';

export interface GroupPlan {
  readonly groupId: string;
  readonly task: Task;
}

export interface Group extends GroupPlan {
  readonly trajectories: readonly Trajectory[];
}

export interface SchedulerOptions {
  /** Groups with signal per step. */
  readonly batchSize: number;
  readonly groupSize: number;
  /** A step stops waiting for a full batch after `refill` × `batchSize` groups. */
  readonly refill: number;
  /** Maximum number of policy versions between sampling and training. 0: rollouts wait for the trainer. */
  readonly staleness: number;
  /** What happens to groups with older turns when a batch is taken; `weigh` and `keep` leave them in it. */
  readonly stale: StaleRule['rule'];
  /** Concurrent rollouts. */
  readonly concurrency: number;
  /** The run's final version: no group is started for a step after it. */
  readonly lastVersion: number;
  readonly plan: (number: number) => GroupPlan;
  readonly runOne: (plan: GroupPlan, place: number, signal: AbortSignal) => Promise<Trajectory>;
  readonly hasSignal: (trajectories: readonly Trajectory[]) => boolean;
  /** Rollouts ended since the last batch, and an estimate of how many the next one needs. */
  readonly onProgress?: (done: number, of: number) => void;
}

/** Next number to begin, and numbers begun but not yet in a batch. */
export interface Position {
  readonly next: number;
  readonly pending: readonly number[];
}

export const START: Position = { next: 1, pending: [] };

/** One step's groups; each list is in order of group numbers. */
export interface GroupBatch {
  readonly groups: readonly Group[];
  readonly withoutSignal: readonly Group[];
  /** Sampled too many versions ago, and dropped by the rule. */
  readonly stale: readonly Group[];
}

interface Numbered extends Group {
  readonly number: number;
}

export class GroupScheduler {
  readonly #options: SchedulerOptions;
  readonly #backlog: number[];
  #next: number;
  #version: number;
  /** Groups with signal, taken or not. As in AReaL, each version counts as one whole batch, however many groups it took. */
  #accepted: number;
  readonly #open = new Set<number>();
  #waiting: Numbered[] = [];
  #withoutSignal: Numbered[] = [];
  #stale: Numbered[] = [];
  #queue: (() => Promise<void>)[] = [];
  #runningRollouts = 0;
  #endedRollouts = 0;
  #failure: { readonly thrown: unknown } | undefined;
  readonly #leave = new AbortController();
  #change = Promise.withResolvers<void>();

  constructor(options: SchedulerOptions, from: { readonly version: number; readonly groups: Position }) {
    this.#options = options;
    this.#backlog = [...from.groups.pending];
    this.#next = from.groups.next;
    this.#version = from.version;
    this.#accepted = from.version * options.batchSize;
  }

  /** For resuming a run after the latest batch. */
  get position(): Position {
    const begun = [...this.#open, ...this.#waiting.map(({ number }) => number), ...this.#backlog];
    return { next: this.#next, pending: begun.toSorted((a, b) => a - b) };
  }

  /** Returns `batchSize` groups, or fewer after `refill` times as many. Throws a rollout's first error once the running ones have ended. */
  async take(): Promise<GroupBatch> {
    this.#account();
    for (;;) {
      this.#dropStale();
      if (this.#failure !== undefined && this.#runningRollouts === 0) throw this.#failure.thrown;
      if (this.#failure === undefined) {
        this.#start();
        if (this.#isReady()) return this.#takeBatch();
      }
      await this.#change.promise;
    }
  }

  /** Call when the policy is served as this version. */
  published(version: number): void {
    this.#version = version;
    this.#account();
    this.#start();
  }

  /** Cancels the running rollouts. Resolves when they have ended. */
  async close(): Promise<void> {
    this.#leave.abort();
    this.#queue = [];
    while (this.#runningRollouts > 0) await this.#change.promise;
  }

  /** AReaL's recovery rule at every step: taken groups count as `version` whole batches, so rollouts neither burst nor starve. */
  #account(): void {
    this.#accepted = this.#version * this.#options.batchSize + this.#waiting.length;
  }

  #start(): void {
    const { staleness, batchSize, refill, concurrency, lastVersion } = this.#options;
    const version = Math.min(this.#version, lastVersion - 1 - staleness);
    while (!this.#leave.signal.aborted && this.#failure === undefined) {
      const running = this.#open.size;
      const tried = this.#waiting.length + this.#withoutSignal.length + running;
      // AReaL's formula: how far rollouts may run ahead of the trainer.
      const byStaleness = (staleness + version + 1) * batchSize - (this.#accepted + running);
      if (Math.min(concurrency - running, byStaleness, refill * (staleness + 1) * batchSize - tried) < 1) break;
      this.#begin(this.#backlog.shift() ?? this.#next++);
    }
    this.#pump();
  }

  #begin(number: number): void {
    const plan = this.#options.plan(number);
    const { groupSize } = this.#options;
    const trajectories = new Array<Trajectory>(groupSize);
    let left = groupSize;
    this.#open.add(number);
    for (let place = 0; place < groupSize; place++) {
      this.#queue.push(async () => {
        trajectories[place] = await this.#options.runOne(plan, place, this.#leave.signal);
        if (--left === 0) this.#end({ ...plan, number, trajectories });
      });
    }
  }

  #end(group: Numbered): void {
    this.#open.delete(group.number);
    if (this.#options.hasSignal(group.trajectories)) {
      this.#waiting.push(group);
      this.#accepted++;
    } else {
      this.#withoutSignal.push(group);
    }
  }

  #pump(): void {
    while (this.#runningRollouts < this.#options.concurrency && this.#queue.length > 0 && this.#failure === undefined) {
      this.#runningRollouts++;
      void this.#queue
        .shift()?.()
        .catch((thrown: unknown) => {
          this.#failure ??= { thrown };
        })
        .finally(() => this.#onRolloutEnd());
    }
  }

  #onRolloutEnd(): void {
    this.#runningRollouts--;
    this.#endedRollouts++;
    const { batchSize, groupSize, staleness, onProgress } = this.#options;
    const known = staleness > 0 ? 0 : this.#endedRollouts + this.#runningRollouts + this.#queue.length;
    const of = Math.max(batchSize * groupSize, known);
    onProgress?.(Math.min(this.#endedRollouts, of), of);
    this.#start();
    this.#change.resolve();
    this.#change = Promise.withResolvers<void>();
  }

  #dropStale(): void {
    const { staleness, stale: rule } = this.#options;
    if (rule !== 'drop') return;
    const isStale = (group: Group): boolean => versionsBehind(group.trajectories, this.#version) > staleness;
    const stale = this.#waiting.filter(isStale);
    if (stale.length === 0) return;
    this.#stale.push(...stale);
    this.#waiting = this.#waiting.filter((group) => !isStale(group));
    this.#accepted -= stale.length;
  }

  #isReady(): boolean {
    const { batchSize, refill } = this.#options;
    const full = this.#waiting.length >= batchSize;
    const tried = this.#waiting.length + this.#withoutSignal.length >= refill * batchSize;
    return full || tried || (this.#open.size === 0 && this.#runningRollouts === 0);
  }

  #takeBatch(): GroupBatch {
    const inOrder = (groups: readonly Numbered[]): Numbered[] => groups.toSorted((a, b) => a.number - b.number);
    const waiting = inOrder(this.#waiting);
    const batch = {
      groups: waiting.slice(0, this.#options.batchSize),
      withoutSignal: inOrder(this.#withoutSignal),
      stale: inOrder(this.#stale),
    };
    this.#waiting = waiting.slice(this.#options.batchSize);
    this.#withoutSignal = [];
    this.#stale = [];
    this.#endedRollouts = 0;
    // Until the next version is published, this batch counts as taken.
    this.#accepted = (this.#version + 1) * this.#options.batchSize + this.#waiting.length;
    return batch;
  }
}

/** Versions between the policy's oldest sampled turn and `version`; 0 if nothing was sampled. */
export function versionsBehind(trajectories: readonly Trajectory[], version: number): number {
  let oldest = version;
  for (const { turns } of trajectories) {
    for (const { policyVersion, model } of turns) if (model === undefined) oldest = Math.min(oldest, policyVersion);
  }
  return version - oldest;
}
