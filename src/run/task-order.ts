/** The order in which training meets its tasks: a fresh seeded shuffle each time round. The same seed, the same order. */
import { createHash } from 'node:crypto';
import type { Task } from '../core/types.ts';

export class TaskOrder {
  readonly #tasks: readonly Task[];
  readonly #seed: number;
  #round = 0;
  #left: Task[] = [];

  constructor(tasks: readonly Task[], seed: number) {
    this.#tasks = tasks;
    this.#seed = seed;
  }

  next(): Task {
    if (this.#left.length === 0) this.#left = this.#shuffled(this.#round++);
    return this.#left.pop() as Task;
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
