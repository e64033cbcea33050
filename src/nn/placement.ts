/**
 * Which worker a request goes to: the one that its affinity went to before, else the least loaded.
 *
 * Placement decides how much of a prompt can be reused, never what is sampled.
 */

/** Affinities remembered at once; the oldest are forgotten first. */
const REMEMBERED = 4096;

export class WorkerPlacement {
  readonly #inFlight: number[];
  readonly #workerOf = new Map<string, number>();

  constructor(workers: number) {
    this.#inFlight = Array.from({ length: workers }, () => 0);
  }

  enter(affinity: string | undefined): number {
    const known = affinity === undefined ? undefined : this.#workerOf.get(affinity);
    const worker = known ?? this.#inFlight.indexOf(Math.min(...this.#inFlight));
    if (affinity !== undefined) {
      // Written again so that the order of the map is the order of last use.
      this.#workerOf.delete(affinity);
      this.#workerOf.set(affinity, worker);
      if (this.#workerOf.size > REMEMBERED) this.#workerOf.delete(this.#workerOf.keys().next().value!);
    }
    this.#inFlight[worker]!++;
    return worker;
  }

  leave(worker: number): void {
    this.#inFlight[worker]!--;
  }

  /** Caches were dropped, so nothing is gained by keeping to a worker. */
  forget(): void {
    this.#workerOf.clear();
  }
}
