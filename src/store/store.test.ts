/** SQLite's store, in a file and in memory, and the model of a store: the same cases, and random histories. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { storeConformance } from '../../packages/testing/src/store-conformance.ts';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { memoryStore } from '../../test/fixtures/store/memory-store.ts';
import type { Store, TrajectoryFilter } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { openSqliteStore } from './sqlite.ts';

let folder: string;
let opened = 0;
const pathOf = new Map<Store, string>();

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'trainyard-store-'));
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

async function openFresh(): Promise<Store> {
  opened += 1;
  const path = join(folder, `${opened}.db`);
  const store = await openSqliteStore(path);
  pathOf.set(store, path);
  return store;
}

describe('every store', () => {
  const cases = [
    ...storeConformance('model', async () => memoryStore()),
    ...storeConformance('sqlite in memory', () => openSqliteStore(':memory:')),
    ...storeConformance('sqlite', openFresh, { reopen: (closed) => openSqliteStore(pathOf.get(closed)!) }),
  ];
  for (const { name, run } of cases) it(name, run);
});

describe('what a template writes in the order of its keys', () => {
  it.each([
    ['model', async () => memoryStore()],
    ['sqlite', openFresh],
  ])('is kept in that order: %s', async (_, opening) => {
    const parameters = { type: 'object', properties: { to: { type: 'string' }, at: { type: 'number' } }, required: ['to'] };
    const tool = { type: 'function' as const, function: { name: 'send', description: 'Sends.', parameters } };
    const { turns, ...rest } = randomTrajectory(1);
    const [turn] = turns;
    const request = { ...turn!.request, tools: [tool] };
    await using store = await opening();
    await store.append({ ...rest, turns: [{ ...turn!, request }] });
    const kept = await store.read(rest.rolloutId);
    expect(JSON.stringify(kept!.turns[0]!.request.tools)).toBe(JSON.stringify([tool]));
  });
});

describe('the sqlite store against the model', () => {
  /** Few ids and few variants, so that repeats, conflicts and retraining are common. */
  const append = fc.record({ kind: fc.constant('append' as const), rollout: fc.nat(9), variant: fc.nat({ max: 1 }) });
  const commit = fc.record({
    kind: fc.constant('commit' as const),
    rollouts: fc.array(fc.nat(10), { maxLength: 3 }),
    stepError: fc.constantFrom(0, 0, 0, 0, 1, -1),
    versionError: fc.constantFrom(0, 0, 0, 0, 1, -1),
  });
  type Operation =
    typeof append extends fc.Arbitrary<infer A> ? (typeof commit extends fc.Arbitrary<infer C> ? A | C : never) : never;
  const bursts = fc.array(fc.array(fc.oneof({ weight: 2, arbitrary: append }, commit), { minLength: 1, maxLength: 6 }), {
    maxLength: 8,
  });

  const filters: readonly TrajectoryFilter[] = [
    {},
    { trained: true },
    { trained: false, limit: 2 },
    { groupId: 'group-1' },
    { purpose: 'train', outcome: 'completed' },
  ];

  async function verdictOf(asked: Promise<void>): Promise<string> {
    try {
      await asked;
      return 'done';
    } catch (thrown) {
      return thrown instanceof TrainyardError ? `${thrown.code}: ${thrown.message}` : `foreign: ${String(thrown)}`;
    }
  }

  function ask(store: Store, operation: Operation, nextStep: number): Promise<string> {
    if (operation.kind === 'append') {
      const { rollout, variant } = operation;
      return verdictOf(store.append(randomTrajectory(rollout + 100 * variant, { rolloutId: `rollout-${rollout}` })));
    }
    const step = nextStep + operation.stepError;
    const rolloutIds = operation.rollouts.map((rollout) => `rollout-${rollout}`);
    return verdictOf(store.commit(manifestOf(step, rolloutIds, { policyVersion: nextStep + operation.versionError })));
  }

  async function contentsOf(store: Store): Promise<unknown> {
    const queries = await Promise.all(filters.map((filter) => store.query(filter)));
    const counts = await Promise.all(filters.map((filter) => store.count(filter)));
    return { queries, counts, manifests: await store.manifests() };
  }

  it('gives the same verdicts and holds the same after any history of simultaneous appends and commits', async () => {
    const seen = new Set<string>();
    await fc.assert(
      fc.asyncProperty(bursts, async (history) => {
        await using model = memoryStore();
        await using store = await openFresh();
        for (const burst of history) {
          const nextStep = (await model.manifests()).length + 1;
          const expected = await Promise.all(burst.map((operation) => ask(model, operation, nextStep)));
          const found = await Promise.all(burst.map((operation) => ask(store, operation, nextStep)));
          expect(found).toEqual(expected);
          burst.forEach((operation, position) => {
            seen.add(`${operation.kind} ${expected[position]!.split(':')[0]}`);
          });
        }
        expect(await contentsOf(store)).toEqual(await contentsOf(model));
      }),
      { numRuns: 60 },
    );
    // The histories did reach every kind of verdict.
    expect([...seen]).toEqual(
      expect.arrayContaining(['append done', 'append STORE_CONFLICT', 'commit done', 'commit STORE_CONFLICT']),
    );
  });
});
