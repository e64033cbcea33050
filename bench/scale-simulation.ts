/**
 * How many machines one coordinator can feed: `npm run bench -- scale [--json] [--assume gradeMs=1.5,storeMs=0.4,…]`. A simulation by events, not a
 * measurement: its assumptions are printed with its results. Those that are times of ours were measured here: `queueMs` by `queue`, `storeMs` by `store`,
 * `coordinatorMs` by `workers`, `gradeMs` by `grader`.
 *
 * Workers run `concurrency` rollouts each. A rollout is `turns` calls, each as long as an engine takes: log-normal, most short and a few very
 * long. Its result passes the database (one statement at a time, so this is the worst of it), the coordinator's main thread, the graders
 * (`graders` at a time), and the database again, which keeps it. Rollouts are given out as the scheduler does it: in groups, at most
 * (`staleness` + 1) batches ahead of the trainer, whose step takes `trainMs`. A batch of `batch` groups grows with the machines if it is 0: as many
 * groups as fill every place once. The first and the last step are not counted. No machine fails here.
 */
import { gaussian, randomStream } from '../src/engines/embedded/random.ts';
import type { Flags } from './main.ts';

const ASSUMED = {
  concurrency: 32,
  turns: 4,
  /** Median and spread of one call. */
  callMs: 2_000,
  sigma: 0.6,
  graders: 2,
  gradeMs: 2,
  queueMs: 0.25,
  coordinatorMs: 2.1,
  storeMs: 0.36,
  trainMs: 5_000,
  group: 8,
  batch: 0,
  staleness: 1,
  steps: 12,
  seed: 1,
};
type Assumed = typeof ASSUMED;

const MACHINES = [1, 10, 100, 1_000];

interface Simulated {
  readonly machines: number;
  readonly rolloutsPerSecond: number;
  /** Shares of the time: of the workers' places, the coordinator's thread, the graders, the database and the trainer. */
  readonly workers: number;
  readonly coordinator: number;
  readonly graders: number;
  readonly database: number;
  readonly trainer: number;
  /** What is nearest to its limit. */
  readonly limit: string;
}

/** A heap of things to do by their time; of equal times, the first that was added. */
class Agenda {
  readonly #heap: { readonly at: number; readonly order: number; readonly act: () => void }[] = [];
  #added = 0;
  now = 0;

  after(ms: number, act: () => void): void {
    const heap = this.#heap;
    const entry = { at: this.now + ms, order: this.#added++, act };
    let i = heap.push(entry) - 1;
    for (let up = (i - 1) >> 1; i > 0 && this.#isBefore(i, up); i = up, up = (i - 1) >> 1) this.#swap(i, up);
  }

  /** False if nothing is left. */
  next(): boolean {
    const heap = this.#heap;
    if (heap.length === 0) return false;
    this.#swap(0, heap.length - 1);
    const { at, act } = heap.pop()!;
    for (let i = 0; ; ) {
      const left = 2 * i + 1;
      const right = 2 * i + 2;
      if (left >= heap.length) break;
      const first = right < heap.length && this.#isBefore(right, left) ? right : left;
      if (!this.#isBefore(first, i)) break;
      this.#swap(first, i);
      i = first;
    }
    this.now = at;
    act();
    return true;
  }

  #isBefore(i: number, j: number): boolean {
    const a = this.#heap[i]!;
    const b = this.#heap[j]!;
    return a.at < b.at || (a.at === b.at && a.order < b.order);
  }

  #swap(i: number, j: number): void {
    [this.#heap[i], this.#heap[j]] = [this.#heap[j]!, this.#heap[i]!];
  }
}

/** So many at a time; the others wait in order. */
class Station {
  readonly #agenda: Agenda;
  #free: number;
  #waiting: (readonly [ms: number, then: () => void])[] = [];
  #head = 0;
  busyMs = 0;

  constructor(agenda: Agenda, places: number) {
    this.#agenda = agenda;
    this.#free = places;
  }

  pass(ms: number, then: () => void): void {
    this.#waiting.push([ms, then]);
    this.#begin();
  }

  #begin(): void {
    while (this.#free > 0 && this.#head < this.#waiting.length) {
      const [ms, then] = this.#waiting[this.#head++]!;
      if (this.#head > 1_000) {
        this.#waiting = this.#waiting.slice(this.#head);
        this.#head = 0;
      }
      this.#free--;
      this.busyMs += ms;
      this.#agenda.after(ms, () => {
        this.#free++;
        then();
        this.#begin();
      });
    }
  }
}

function simulate(machines: number, assumed: Assumed): Simulated {
  const { concurrency, turns, callMs, sigma, graders, gradeMs, trainMs, group, staleness, steps, seed } = assumed;
  const places = machines * concurrency;
  const batch = assumed.batch || Math.max(1, Math.ceil(places / group));
  const agenda = new Agenda();
  const random = randomStream(seed);
  const workers = new Station(agenda, places);
  const database = new Station(agenda, 1);
  const coordinator = new Station(agenda, 1);
  const grading = new Station(agenda, graders);
  let version = 0;
  let begun = 0;
  let whole = 0;
  let rollouts = 0;
  let trained = 0;
  let isTraining = false;
  const rolloutMs = (): number => {
    let ms = 0;
    for (let turn = 0; turn < turns; turn++) ms += callMs * Math.exp(sigma * gaussian(random));
    return ms;
  };
  const used = (): readonly number[] => [
    agenda.now,
    rollouts,
    ...[workers, coordinator, grading, database].map(({ busyMs }) => busyMs),
    trained,
  ];
  let from = used();
  let to = used();
  const returned = (then: () => void): void =>
    database.pass(assumed.queueMs, () =>
      coordinator.pass(assumed.coordinatorMs, () => grading.pass(gradeMs, () => database.pass(assumed.storeMs, then))),
    );
  const begin = (): void => {
    const most = Math.min((staleness + version + 1) * batch, steps * batch);
    for (; begun < most; begun++) {
      let left = group;
      const kept = (): void => {
        rollouts++;
        if (--left === 0) whole++;
        train();
      };
      for (let place = 0; place < group; place++) workers.pass(rolloutMs(), () => returned(kept));
    }
  };
  const train = (): void => {
    if (isTraining || whole < (version + 1) * batch) return;
    isTraining = true;
    trained += trainMs;
    agenda.after(trainMs, () => {
      isTraining = false;
      version++;
      if (version === 1) from = used();
      if (version === steps - staleness - 1) to = used();
      begin();
      train();
    });
  };
  begin();
  while (agenda.next());
  const [ms, ended, ...busy] = to.map((value, i) => value - from[i]!) as [number, number, ...number[]];
  const share = (place: number, of = 1): number => Number((busy[place]! / (of * ms)).toFixed(3));
  const ours = { coordinator: share(1), graders: share(2, graders), database: share(3) };
  const shares = { workers: share(0, places), ...ours, trainer: share(4) };
  const [limit] = Object.entries(shares).toSorted(([, a], [, b]) => b - a)[0]!;
  return { machines, rolloutsPerSecond: Number(((1000 * ended) / ms).toFixed(2)), ...shares, limit };
}

/** Throws for a name or a number that it does not know. */
function assumedIn(text: string | undefined): Assumed {
  const given = (text ?? '').split(',').filter((part) => part !== '');
  const entries = given.map((part): [string, number] => {
    const [name = '', value] = part.split('=');
    if (!Object.hasOwn(ASSUMED, name) || !(Number(value) >= 0)) {
      throw new Error(`found ${part}, expected a number for one of: ${Object.keys(ASSUMED).join(', ')}`);
    }
    return [name, Number(value)];
  });
  return { ...ASSUMED, ...Object.fromEntries(entries) };
}

export async function run({ assume }: Flags): Promise<Readonly<Record<string, unknown>>> {
  const assumed = assumedIn(assume);
  console.log(`assumed: ${JSON.stringify(assumed)}`);
  const simulated = MACHINES.map((machines) => simulate(machines, assumed));
  console.table(simulated);
  return { assumed, simulated };
}
