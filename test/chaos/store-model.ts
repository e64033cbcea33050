/**
 * Commands on a store, beside the in-memory store as its model: after any sequence both have given the same verdicts and hold the same.
 * A kill leaves appends of which nobody hears the end: each is there as it was given or not at all, and the model follows the store in that alone.
 */
import fc from 'fast-check';
import { expect } from 'vitest';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { Store } from '../../src/core/contracts.ts';
import { TrainyardError } from '../../src/core/errors.ts';
import type { BatchManifest, Mark, Trajectory } from '../../src/core/types.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

/** A place for one store, that outlives the processes that open it. */
export interface StorePlace {
  open(): Promise<Store>;
  /** Drops the store as a kill would: nobody waits for what is under way. */
  kill(store: Store): Promise<void>;
}

interface Model {
  store: Store;
  readonly verdicts: Set<string>;
}
interface Real {
  readonly place: StorePlace;
  store: Store;
}

const trajectoryOf = (rollout: number, variant: number): Trajectory =>
  randomTrajectory(rollout + 100 * variant, { rolloutId: `rollout-${rollout}` });

async function verdictOf(asked: Promise<void>): Promise<string> {
  try {
    await asked;
    return 'done';
  } catch (thrown) {
    return thrown instanceof TrainyardError ? thrown.code : `foreign: ${String(thrown)}`;
  }
}

type Asking = (store: Store) => Promise<void>;

class Ask implements fc.AsyncCommand<Model, Real> {
  readonly #label: string;
  readonly #asking: (model: Store) => Promise<Asking>;

  constructor(label: string, asking: (model: Store) => Promise<Asking>) {
    this.#label = label;
    this.#asking = asking;
  }

  check = (): boolean => true;
  toString = (): string => this.#label;

  async run(model: Model, real: Real): Promise<void> {
    const asking = await this.#asking(model.store);
    const expected = await verdictOf(asking(model.store));
    model.verdicts.add(`${this.#label.split(' ')[0]} ${expected}`);
    expect(await verdictOf(asking(real.store)), this.#label).toBe(expected);
  }
}

/** What is under way when the process dies, then another process that opens the store. */
class Kill implements fc.AsyncCommand<Model, Real> {
  readonly #underWay: readonly Trajectory[];

  constructor(underWay: readonly Trajectory[]) {
    this.#underWay = underWay;
  }

  check = (): boolean => true;
  toString = (): string => `kill during [${this.#underWay.map(({ rolloutId }) => rolloutId).join()}]`;

  async run(model: Model, real: Real): Promise<void> {
    for (const trajectory of this.#underWay) void real.store.append(trajectory).catch(() => undefined);
    await real.place.kill(real.store);
    real.store = await real.place.open();
    const before = new Set((await model.store.query()).map(({ rolloutId }) => rolloutId));
    const mayBe = new Set(this.#underWay.map(({ rolloutId }) => rolloutId));
    // In the store's own order, which the model takes over; one that differs from what the model has is a conflict.
    for (const kept of await real.store.query()) {
      expect(before.has(kept.rolloutId) || mayBe.has(kept.rolloutId), `${kept.rolloutId}, which nobody wrote`).toBe(true);
      await model.store.append(kept);
    }
  }
}

class Look implements fc.AsyncCommand<Model, Real> {
  check = (): boolean => true;
  toString = (): string => 'look';

  async run(model: Model, real: Real): Promise<void> {
    expect(await contentsOf(real.store)).toEqual(await contentsOf(model.store));
  }
}

async function contentsOf(store: Store): Promise<unknown> {
  const filters = [
    {},
    { trained: true },
    { trained: false, limit: 2 },
    { groupId: 'group-1' },
    { outcome: 'completed' },
  ] as const;
  const [queries, counts, groups] = await Promise.all([
    Promise.all(filters.map((filter) => store.query(filter))),
    Promise.all(filters.map((filter) => store.count(filter))),
    Promise.all(filters.map((filter) => store.groupIds(filter))),
  ]);
  const inShort = (await store.summaries()).map(({ seq: _, ...summary }) => summary);
  return { queries, counts, groups, inShort, manifests: await store.manifests(), marks: await store.marks() };
}

const rollouts = fc.nat(7);

const appends = fc
  .record({ rollout: rollouts, variant: fc.nat({ max: 1 }) })
  .map(
    ({ rollout, variant }) =>
      new Ask(
        `append rollout-${rollout} variant ${variant}`,
        async () => (store) => store.append(trajectoryOf(rollout, variant)),
      ),
  );

/** All at once, so that several share a transaction; those of one rollout may conflict. */
const bursts = fc.array(rollouts, { minLength: 2, maxLength: 6 }).map(
  (numbers) =>
    new Ask(`burst ${numbers.join()}`, async () => async (store) => {
      await Promise.all(numbers.map((rollout) => store.append(trajectoryOf(rollout, 0)).catch(() => undefined)));
    }),
);

const commits = fc.record({ numbers: fc.array(rollouts, { maxLength: 3 }), wrong: fc.constantFrom(0, 0, 0, 0, 1, -1) }).map(
  ({ numbers, wrong }) =>
    new Ask(`commit [${numbers.join()}] ${wrong}`, async (model) => {
      const step = (await model.manifests()).length + 1;
      const manifest: BatchManifest = manifestOf(
        step + wrong,
        numbers.map((rollout) => `rollout-${rollout}`),
      );
      return (store) => store.commit(manifest);
    }),
);

const marks = fc.record({ number: rollouts, excluded: fc.boolean(), turn: fc.option(fc.nat(3), { nil: undefined }) }).map(
  ({ number, excluded, turn }) =>
    new Ask(`mark rollout-${number} ${turn}`, async () => {
      const mark: Mark = {
        rolloutId: `rollout-${number}`,
        ...(turn === undefined ? {} : { turn }),
        ...{ excluded, reason: 'seen', at: 1 },
      };
      return (store) => store.mark([mark]);
    }),
);

const kills = fc
  .uniqueArray(rollouts, { maxLength: 4 })
  .map((numbers) => new Kill(numbers.map((rollout) => trajectoryOf(rollout, 0))));

export const storeCommands = fc.commands<Model, Real, false>(
  [appends, appends, bursts, commits, commits, marks, kills, fc.constant(new Look())],
  { maxCommands: 30, size: 'max' },
);

/** Runs many sequences, each in a place of its own. Returns every verdict that came up. */
export async function checkStore(
  placeFor: () => Promise<StorePlace & AsyncDisposable>,
  numRuns: number,
): Promise<ReadonlySet<string>> {
  const verdicts = new Set<string>();
  await fc.assert(
    fc.asyncProperty(storeCommands, async (commands) => {
      await using place = await placeFor();
      const real: Real = { place, store: await place.open() };
      const model: Model = { store: memoryStore(), verdicts };
      try {
        await fc.asyncModelRun(() => ({ model, real }), commands);
        await new Look().run(model, real);
      } finally {
        await real.store[Symbol.asyncDispose]();
      }
    }),
    { numRuns },
  );
  return verdicts;
}
