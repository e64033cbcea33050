import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Trajectory } from '../core/types.ts';
import { type Group, GroupScheduler, type Position, type SchedulerOptions, START } from './scheduler.ts';

interface World {
  readonly batchSize: number;
  readonly groupSize: number;
  readonly refill: number;
  readonly staleness: number;
  readonly concurrency: number;
  readonly steps: number;
  /** Whether group n has signal, by n modulo the length. */
  readonly keep: readonly boolean[];
  /** Milliseconds a rollout takes, in the order they are started, modulo the length. */
  readonly delays: readonly number[];
  /** Milliseconds a step of training takes. */
  readonly training: number;
}

const worlds: fc.Arbitrary<World> = fc.record({
  batchSize: fc.integer({ min: 1, max: 4 }),
  groupSize: fc.integer({ min: 1, max: 3 }),
  refill: fc.integer({ min: 1, max: 3 }),
  staleness: fc.integer({ min: 0, max: 3 }),
  concurrency: fc.integer({ min: 1, max: 8 }),
  steps: fc.integer({ min: 1, max: 5 }),
  keep: fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }),
  delays: fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 10 }),
  training: fc.integer({ min: 0, max: 3 }),
});

const BEGINNING = { version: 0, groups: START };

const given = (options: Partial<SchedulerOptions> & Pick<SchedulerOptions, 'runOne'>): SchedulerOptions => ({
  ...{ batchSize: 1, groupSize: 1, refill: 1, staleness: 0, stale: 'drop', concurrency: 1, lastVersion: 1 },
  plan: (number) => ({ groupId: String(number), task: { id: String(number), prompt: [] } }),
  hasSignal: () => true,
  ...options,
});

/** A loop of steps as a run makes them; `stopAfter` steps it is abandoned, as by a kill. */
function simulate(world: World, from: { version: number; groups: Position } = BEGINNING) {
  const log = {
    started: [] as number[],
    rollouts: [] as string[],
    mostRunning: 0,
    taken: [] as { version: number; groups: string[]; withoutSignal: string[]; stale: string[]; position: Position }[],
  };
  let version = from.version;
  let running = 0;
  let tick = 0;
  const options: SchedulerOptions = {
    stale: 'drop',
    ...world,
    lastVersion: world.steps,
    plan: (number) => {
      log.started.push(number);
      return { groupId: String(number), task: { id: String(number), prompt: [] } };
    },
    runOne: async ({ groupId }, place) => {
      log.mostRunning = Math.max(log.mostRunning, ++running);
      const policyVersion = version;
      await sleep(world.delays[tick++ % world.delays.length]);
      running--;
      log.rollouts.push(`${groupId}-${place}`);
      return { groupId, rolloutId: `${groupId}-${place}`, turns: [{ policyVersion }] } as unknown as Trajectory;
    },
    hasSignal: ([first]) => world.keep[Number(first?.groupId) % world.keep.length] ?? true,
  };
  const scheduler = new GroupScheduler(options, from);
  const ids = (groups: readonly Group[]): string[] => groups.map(({ groupId }) => groupId);
  const run = async (steps: number): Promise<typeof log> => {
    while (version < steps) {
      const { groups, withoutSignal, stale } = await scheduler.take();
      const { position } = scheduler;
      log.taken.push({ version, groups: ids(groups), withoutSignal: ids(withoutSignal), stale: ids(stale), position });
      for (const { turns } of groups.flatMap(({ trajectories }) => trajectories)) {
        const sampled = (turns[0] as { policyVersion: number }).policyVersion;
        expect(version - sampled).toBeLessThanOrEqual(world.staleness);
      }
      await sleep(world.training);
      version++;
      scheduler.published(version);
    }
    await scheduler.close();
    return log;
  };
  return { run, scheduler };
}

type Taken = Record<'groups' | 'withoutSignal' | 'stale', string[]>;
const allOf = ({ groups, withoutSignal, stale }: Taken): string[] => [...groups, ...withoutSignal, ...stale];
const numbers = (ids: readonly string[]): number[] => ids.map(Number).toSorted((a, b) => a - b);

describe('GroupScheduler', () => {
  it('without staleness runs the same groups whatever finishes first, each rollout once, within the concurrency', async () => {
    await fc.assert(
      fc.asyncProperty(worlds, async (any) => {
        const world = { ...any, staleness: 0 };
        const straight = await simulate({ ...world, concurrency: 1, delays: [0] }).run(world.steps);
        const shuffled = await simulate(world).run(world.steps);
        expect(shuffled.taken).toEqual(straight.taken);
        expect(shuffled.mostRunning).toBeLessThanOrEqual(world.concurrency);
        expect(new Set(shuffled.rollouts).size).toBe(shuffled.rollouts.length);
        for (const { groups, withoutSignal, position } of shuffled.taken) {
          const [tried, most] = [groups.length + withoutSignal.length, world.refill * world.batchSize];
          expect(tried).toBeLessThanOrEqual(most);
          expect(groups.length === world.batchSize || tried === most).toBe(true);
          expect(position.pending).toEqual([]);
        }
      }),
      { numRuns: 60 },
    );
  });

  it('with staleness never trains what is too old, never starts more than the bound allows, and takes each group once', async () => {
    await fc.assert(
      fc.asyncProperty(worlds, async (world) => {
        const { started, taken, mostRunning, rollouts } = await simulate(world).run(world.steps);
        expect(mostRunning).toBeLessThanOrEqual(world.concurrency);
        expect(started).toEqual(started.map((_, i) => i + 1));
        const all = taken.flatMap(allOf);
        expect(new Set(all).size).toBe(all.length);
        expect(new Set(rollouts).size).toBe(rollouts.length);
        for (const { version, position } of taken) {
          // At most (staleness + 1) batches of this version and the groups that were given up on the way.
          const givenUp = taken
            .filter((step) => step.version <= version)
            .flatMap((step) => [...step.withoutSignal, ...step.stale]);
          expect(position.next - 1 - givenUp.length).toBeLessThanOrEqual((version + world.staleness + 1) * world.batchSize);
        }
      }),
      { numRuns: 60 },
    );
  });

  it('goes on from a position with exactly the groups that no batch was taken from', async () => {
    await fc.assert(
      fc.asyncProperty(worlds, fc.integer({ min: 1, max: 5 }), async (world, killed) => {
        const first = await simulate(world).run(Math.min(killed, world.steps));
        const last = first.taken.at(-1);
        const groups = last?.position ?? START;
        const second = await simulate(world, { version: first.taken.length, groups }).run(world.steps);
        const settled = [...first.taken, ...second.taken].flatMap(allOf);
        expect(new Set(settled).size).toBe(settled.length);
        const left = second.taken.at(-1)?.position ?? groups;
        const known = new Set([...numbers(settled), ...left.pending]);
        for (let n = 1; n < left.next; n++) expect(known.has(n)).toBe(true);
      }),
      { numRuns: 60 },
    );
  });

  it('after a restart may run ahead exactly as far as at the start', async () => {
    const world = {
      ...{ batchSize: 4, groupSize: 1, refill: 3, staleness: 2, concurrency: 100, steps: 50 },
      ...{ keep: [true], delays: [0], training: 0 },
    };
    const begun = (version: number): number => {
      let started = 0;
      const runOne = () => {
        started++;
        return new Promise<Trajectory>(() => {});
      };
      void new GroupScheduler(given({ ...world, lastVersion: 50, runOne }), { version, groups: START }).take();
      return started;
    };
    expect(begun(0)).toBe(12);
    expect(begun(7)).toBe(12);
    expect(begun(49)).toBe(4);
    expect(begun(51)).toBe(0);
  });

  it.each([
    ['as many as there are places', { staleness: 2, concurrency: 32, version: 1, accepted: 14, refused: 0 }, 32],
    ['as many as the bound has left', { staleness: 2, concurrency: 100, version: 1, accepted: 14, refused: 0 }, 34],
    ['the rest of one batch without staleness', { staleness: 0, concurrency: 100, version: 0, accepted: 14, refused: 0 }, 2],
    ['one more for each that was refused', { staleness: 0, concurrency: 100, version: 0, accepted: 9, refused: 5 }, 7],
  ])('begins %s', async (_, { staleness, concurrency, version, accepted, refused }, capacity) => {
    let running = 0;
    const ended = accepted + refused;
    const runOne: SchedulerOptions['runOne'] = async ({ groupId }) => {
      if (Number(groupId) <= ended) return { groupId, turns: [] } as unknown as Trajectory;
      running++;
      return await new Promise<never>(() => {});
    };
    const hasSignal = ([first]: readonly Trajectory[]): boolean => Number(first!.groupId) <= accepted;
    const sizes = { batchSize: 16, refill: 3, staleness, concurrency, lastVersion: 50 };
    void new GroupScheduler(given({ ...sizes, runOne, hasSignal }), { version, groups: START }).take();
    await sleep(0);
    expect(running).toBe(capacity);
  });

  it('goes on while the trainer works, as far as the bound allows, and further once a version is published', async () => {
    let [begun, release] = [0, (): void => {}];
    const runOne: SchedulerOptions['runOne'] = async ({ groupId }) => {
      begun++;
      // One of the first batch takes for ever: nobody waits for it.
      if (groupId === '2') await new Promise<void>((done) => (release = done));
      return { groupId, turns: [{ policyVersion: 0 }] } as unknown as Trajectory;
    };
    const sizes = { batchSize: 2, staleness: 1, concurrency: 10, lastVersion: 9, stale: 'keep' as const };
    const scheduler = new GroupScheduler(given({ ...sizes, runOne }), BEGINNING);
    const taken = async () => (await scheduler.take()).groups.map(({ groupId }) => groupId);
    expect(await taken()).toEqual(['1', '3']);
    await sleep(0);
    expect(begun).toBe(4);
    for (const version of [1, 2]) {
      scheduler.published(version);
      await sleep(0);
      expect(begun).toBe(4 + 2 * version);
      await taken();
    }
    // Two versions old when a batch is taken, and kept by the rule.
    release();
    scheduler.published(3);
    await sleep(0);
    expect(await taken()).toContain('2');
    await scheduler.close();
  });

  it('counts groups that a slow rollout made too old, and takes others in their place', async () => {
    // Every third rollout takes so long that several versions pass.
    const world = {
      ...{ batchSize: 1, groupSize: 1, refill: 5, staleness: 1, concurrency: 3, steps: 12 },
      ...{ keep: [true], delays: [25, 0, 0], training: 1 },
    };
    const { taken } = await simulate(world).run(world.steps);
    expect(taken.flatMap(({ stale }) => stale).length).toBeGreaterThan(0);
    expect(taken.every(({ groups }) => groups.length === 1)).toBe(true);
  });

  it('throws the first error after the running rollouts ended, and starts nothing more', async () => {
    let begun = 0;
    let ended = 0;
    const runOne = async (): Promise<Trajectory> => {
      if (++begun === 2) throw new Error('second');
      await sleep(10);
      ended++;
      return { turns: [] } as unknown as Trajectory;
    };
    const scheduler = new GroupScheduler(given({ batchSize: 10, groupSize: 1, concurrency: 2, runOne }), BEGINNING);
    await expect(scheduler.take()).rejects.toThrow('second');
    expect({ begun, ended }).toEqual({ begun: 2, ended: 1 });
  });

  it('gives up running rollouts when it is closed', async () => {
    const aborted: boolean[] = [];
    const runOne: SchedulerOptions['runOne'] = async (_plan, _place, signal) => {
      await once(signal, 'abort');
      aborted.push(true);
      throw new Error('given up');
    };
    const scheduler = new GroupScheduler(given({ batchSize: 2, groupSize: 2, concurrency: 3, runOne }), BEGINNING);
    const taking = scheduler.take();
    await Promise.all([expect(taking).rejects.toThrow('given up'), scheduler.close()]);
    expect(aborted).toEqual([true, true, true]);
  });
});
