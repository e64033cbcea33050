/**
 * The scheduler under random interleavings of rollouts that end, batches that are taken, versions that are published, and kills. The test decides
 * when each rollout ends, so nothing here waits for a clock.
 */
import { setImmediate as turn } from 'node:timers/promises';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/core/types.ts';
import {
  type Group,
  type GroupBatch,
  GroupScheduler,
  type Position,
  type SchedulerOptions,
  START,
} from '../../src/rollout/scheduler.ts';

type Sizes = Pick<SchedulerOptions, 'batchSize' | 'groupSize' | 'refill' | 'staleness' | 'concurrency' | 'lastVersion'>;

const sizes: fc.Arbitrary<Sizes> = fc.record({
  batchSize: fc.integer({ min: 1, max: 3 }),
  groupSize: fc.integer({ min: 1, max: 3 }),
  refill: fc.integer({ min: 1, max: 3 }),
  staleness: fc.integer({ min: 0, max: 3 }),
  concurrency: fc.integer({ min: 1, max: 9 }),
  lastVersion: fc.integer({ min: 1, max: 6 }),
});

interface Running {
  readonly group: number;
  end(signal: boolean): void;
}

/** A run as a coordinator makes it: what is committed stays; a kill takes the rest, and another process goes on from the last commit. */
class World {
  readonly #sizes: Sizes;
  #scheduler!: GroupScheduler;
  #life = 0;
  version = 0;
  #committed: Position = START;
  readonly settled: number[] = [];
  running: Running[] = [];
  /** Begun in this life and not in a batch: with the oldest version of each that ended with signal. */
  readonly #open = new Set<number>();
  readonly #waiting = new Map<number, number>();
  batch: { readonly taken: GroupBatch; readonly position: Position } | undefined;
  isTaking = false;
  /** Broken rules, found where the scheduler would catch what is thrown. */
  readonly broken: string[] = [];

  constructor(given: Sizes) {
    this.#sizes = given;
    this.#begin();
  }

  #must(holds: boolean, rule: string): void {
    if (!holds) this.broken.push(rule);
  }

  #begin(): void {
    const life = ++this.#life;
    const { staleness, batchSize, lastVersion, concurrency, groupSize } = this.#sizes;
    this.#scheduler = new GroupScheduler(
      {
        ...this.#sizes,
        stale: 'drop',
        hasSignal: (trajectories) => trajectories.every(({ output }) => output === true),
        plan: (number) => {
          const batches = this.version + (this.batch === undefined ? 0 : 1);
          const fresh = [...this.#waiting.values()].filter((oldest) => this.version - oldest <= staleness).length;
          const most = (staleness + Math.min(this.version, lastVersion - 1 - staleness) + 1) * batchSize;
          this.#must(batches * batchSize + fresh + this.#open.size < most, 'too far ahead of the trainer');
          const isKnown = this.#open.has(number) || this.#waiting.has(number) || this.settled.includes(number);
          this.#must(!isKnown, 'a group begun twice');
          this.#open.add(number);
          return { groupId: `${number}`, task: { id: `${number}`, prompt: [] } };
        },
        runOne: ({ groupId }, place) => {
          const policyVersion = this.version;
          this.#must(life !== this.#life || this.running.length < concurrency, 'too many rollouts at once');
          return new Promise((resolve) => {
            const end = (output: boolean): void =>
              resolve({ groupId, rolloutId: `${groupId}-${place}`, output, turns: [{ policyVersion }] } as unknown as Trajectory);
            if (life === this.#life) this.running.push({ group: Number(groupId), end });
          }).then((trajectory) => this.#ended(trajectory as Trajectory, life, groupSize));
        },
      },
      { version: this.version, groups: this.#committed },
    );
  }

  readonly #parts = new Map<string, Trajectory[]>();
  #ended(trajectory: Trajectory, life: number, groupSize: number): Trajectory {
    const key = `${life} ${trajectory.groupId}`;
    const parts = [...(this.#parts.get(key) ?? []), trajectory];
    this.#parts.set(key, parts);
    if (life !== this.#life || parts.length < groupSize) return trajectory;
    const number = Number(trajectory.groupId);
    this.#open.delete(number);
    const oldest = Math.min(...parts.map(({ turns }) => turns[0]!.policyVersion));
    if (parts.every(({ output }) => output === true)) this.#waiting.set(number, oldest);
    return trajectory;
  }

  take(): void {
    this.isTaking = true;
    const life = this.#life;
    void this.#scheduler.take().then((taken) => {
      if (life !== this.#life) return;
      this.isTaking = false;
      this.batch = { taken, position: this.#scheduler.position };
      this.#checkBatch(taken);
    });
  }

  #checkBatch({ groups, withoutSignal, stale }: GroupBatch): void {
    const { batchSize, staleness } = this.#sizes;
    const oldestOf = ({ trajectories }: Group): number => Math.min(...trajectories.map(({ turns }) => turns[0]!.policyVersion));
    this.#must(groups.length <= batchSize, 'a batch too large');
    const isStale = (group: Group): boolean => this.version - oldestOf(group) > staleness;
    this.#must(!groups.some(isStale), 'a group too old in a batch');
    this.#must(stale.every(isStale), 'a group dropped that is not too old');
    for (const group of [...groups, ...withoutSignal, ...stale]) this.#waiting.delete(Number(group.groupId));
  }

  publish(): void {
    const { taken, position } = this.batch!;
    this.batch = undefined;
    this.#committed = position;
    this.settled.push(...[...taken.groups, ...taken.withoutSignal, ...taken.stale].map(({ groupId }) => Number(groupId)));
    this.#scheduler.published(++this.version);
  }

  kill(): void {
    this.running = [];
    this.#open.clear();
    this.#waiting.clear();
    [this.batch, this.isTaking] = [undefined, false];
    this.#begin();
  }

  /** Every group that was begun is settled once or still to come. */
  check(): void {
    expect(this.broken).toEqual([]);
    expect(new Set(this.settled).size, 'groups settled twice').toBe(this.settled.length);
    const { next, pending } = this.#committed;
    const known = new Set([...this.settled, ...pending]);
    expect(known.size, 'settled and pending').toBe(this.settled.length + pending.length);
    expect([...known].toSorted((a, b) => a - b)).toEqual(Array.from({ length: next - 1 }, (_, i) => i + 1));
  }

  get canTake(): boolean {
    return !this.isTaking && this.batch === undefined && this.version < this.#sizes.lastVersion;
  }

  get isOver(): boolean {
    return this.version === this.#sizes.lastVersion;
  }
}

type Step = fc.AsyncCommand<object, World>;
const step = (label: string, run: (world: World) => void): Step => ({
  check: () => true,
  toString: () => label,
  async run(_, world) {
    run(world);
    await turn();
    world.check();
  },
});

const endOne = (world: World, which: number, signal: boolean): void =>
  void world.running.splice(which % Math.max(world.running.length, 1), 1)[0]?.end(signal);

const steps = fc.commands<object, World, false>(
  [
    ...[1, 2, 3].map(() =>
      fc
        .tuple(fc.nat(8), fc.constantFrom(true, true, false))
        .map(([which, signal]) => step(`end ${which} ${signal}`, (world) => endOne(world, which, signal))),
    ),
    fc.constant(step('take', (world) => world.canTake && world.take())),
    fc.constant(step('publish', (world) => world.batch !== undefined && world.publish())),
    fc.constantFrom(true, false, false, false).map((isKill) => step(isKill ? 'kill' : 'wait', (world) => isKill && world.kill())),
  ],
  { maxCommands: 80, size: 'max' },
);

it('trains no group that is too old, none twice, loses none and never runs further ahead than the formula, whatever ends when', async () => {
  await fc.assert(
    fc.asyncProperty(sizes, steps, async (given, commands) => {
      const world = new World(given);
      await fc.asyncModelRun(() => ({ model: {}, real: world }), commands);
      // From wherever that led, the run can be brought to its end.
      for (let round = 0; !world.isOver; round++) {
        expect(round, 'rounds without an end').toBeLessThan(2_000);
        if (world.canTake) world.take();
        endOne(world, round, round % 5 > 0);
        await turn();
        if (world.batch !== undefined) world.publish();
      }
      world.check();
    }),
    { numRuns: 150 },
  );
});
