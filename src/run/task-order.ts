/** The order in which training meets its tasks: a fresh seeded shuffle each time round. The same seed, the same order. */
import { createHash } from 'node:crypto';
import type { Task } from '../core/types.ts';

export class TaskOrder {
  readonly #tasks: readonly Task[];
  readonly #seed: number;
  #round = -1;
  #order: readonly Task[] = [];

  constructor(tasks: readonly Task[], seed: number) {
    this.#tasks = tasks;
    this.#seed = seed;
  }

  /** The task of the n-th group, from 1. */
  at(n: number): Task {
    const round = Math.floor((n - 1) / this.#tasks.length);
    if (round !== this.#round) {
      this.#round = round;
      this.#order = this.#shuffled(round);
    }
    return this.#order[(n - 1) % this.#tasks.length] as Task;
  }

  /** Sorted by a hash of (seed, round, place): no generator state to keep or lose. */
  #shuffled(round: number): Task[] {
    const keyed = this.#tasks.map((task, place) => ({
      task,
      key: createHash('sha256').update(`${this.#seed}/${round}/${place}`).digest('hex'),
    }));
    return keyed.toSorted((a, b) => (a.key < b.key ? -1 : 1)).map(({ task }) => task);
  }
}
