/** Groups for whoever trains somewhere else: in which order, what is left out, what comes too late, and what a kill changes. */
import fc from 'fast-check';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { Store } from '../../src/core/contracts.ts';
import type { Purpose, Trajectory, Turn } from '../../src/core/types.ts';
import { type Fetched, type FetchRequest, GroupPool, type GroupPoolOptions } from '../../src/shapes/flows/group-pool.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

const template = randomTrajectory(3).turns[0] ?? randomTrajectory(4).turns[0] ?? randomTrajectory(5).turns[0]!;
const turn = (index: number, more: Partial<Turn> = {}): Turn => ({
  ...{ ...template, index, thread: 'main', trainable: true, policyVersion: 0, ...more },
});
const ended = (groupId: string, rolloutId: string, more: Partial<Trajectory> = {}): Trajectory => ({
  ...{ groupId, rolloutId, taskId: 't', purpose: 'train' as Purpose, outcome: { kind: 'completed' } as const },
  ...{ grade: { kind: 'graded', reward: { value: 1 } } as const, turns: [turn(0)], startedAt: 0, endedAt: 0, ...more },
});

async function opened(more: Partial<GroupPoolOptions> = {}) {
  const store = more.store ?? memoryStore();
  const pool = await GroupPool.open({ store, clock: { now: () => 0 }, group: 2, ...more });
  const keep = async (...trajectories: readonly Trajectory[]): Promise<void> => {
    for (const one of trajectories) await pool.keep(one);
  };
  const fetch = (request: Partial<FetchRequest> = {}, ms = 0): Promise<Fetched> =>
    pool.fetch({ purpose: 'train', groups: 1, ...request }, ms === 0 ? AbortSignal.abort() : AbortSignal.timeout(ms));
  return { store, pool, keep, fetch };
}

const rows = (fetched: Fetched): readonly string[] | string =>
  fetched.kind === 'batch' ? fetched.steps.map(({ rolloutId, index }) => `${rolloutId}:${index}`) : fetched.kind;
const LATE = { row: { code: 'group_closed' } };
const mark = (store: Store, rolloutId: string, excluded: boolean, place: { turn?: number } = {}) =>
  store.mark([{ rolloutId, ...place, excluded, reason: 'by hand', at: 0 }]);

describe('a batch', () => {
  it('is sorted by trajectory and step, in whatever order they came', async () => {
    const { keep, fetch } = await opened();
    await keep(ended('g', 'b', { turns: [turn(1), turn(0)] }), ended('g', 'a', { turns: [turn(0), turn(1)] }));
    expect(rows(await fetch())).toEqual(['a:0', 'a:1', 'b:0', 'b:1']);
  });

  it('is of the first groups that are complete: one that is not holds up nobody', async () => {
    const { keep, fetch } = await opened();
    await keep(ended('stuck', 's0'), ended('x', 'x0'), ended('y', 'y0'));
    await keep(ended('y', 'y1'), ended('x', 'x1'), ended('stuck', 's1'));
    expect(rows(await fetch())).toEqual(['s0:0', 's1:0']);
    await keep(ended('open', 'o0'));
    expect(rows(await fetch())).toEqual(['x0:0', 'x1:0']);
    expect(rows(await fetch())).toEqual(['y0:0', 'y1:0']);
    expect(rows(await fetch())).toBe('waiting');
  });

  it('that waits for fewer trajectories than the pool has is made when they are there: it is told, and does not look by the clock', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    onTestFinished(() => void vi.useRealTimers());
    const { keep, pool } = await opened({ group: 5 });
    const waiting = pool.fetch({ purpose: 'train', groups: 1, n: 1 }, new AbortController().signal);
    for (let i = 0; i < 10; i++) await Promise.resolve();
    await keep(ended('g', 'a'));
    expect(rows(await waiting)).toEqual(['a:0']);
  });

  it('has no trajectory that failed, was not graded, or has not ended', async () => {
    const { keep, fetch, pool } = await opened({ group: 3 });
    const failed = { outcome: { kind: 'failed', code: 'X', message: 'x' }, grade: { kind: 'ungraded', why: 'failed' } } as const;
    await keep(ended('g', 'a'), ended('g', 'b', failed), ended('g', 'c', { grade: { kind: 'ungraded', why: 'rejected' } }));
    expect(rows(await fetch())).toEqual(['a:0']);
    expect(pool.counts('train')).toMatchObject({ kept: 3, served: 1, leftOut: 2, waiting: 0 });
    await expect(pool.keep(ended('g', 'extra'))).rejects.toMatchObject(LATE);
  });

  it('carries what each turn earned, and what the trajectory did', async () => {
    const { keep, fetch } = await opened({ group: 1 });
    const grade = { kind: 'graded', reward: { value: 3, byTurn: { 0: 1, 1: 2 } } } as const;
    await keep(ended('g', 'a', { grade, turns: [turn(0), turn(1), turn(2, { trainable: false })] }));
    const fetched = await fetch();
    expect(fetched.kind === 'batch' && fetched.steps).toMatchObject([
      { reward: 1, value: 3, weight: 1, isLast: false },
      { reward: 2, value: 3, weight: 1, isLast: true },
    ]);
  });

  it('is the same again when it is asked for by its id, and never made of the same trajectories otherwise', async () => {
    const { keep, fetch, store } = await opened();
    await keep(ended('g', 'a'), ended('g', 'b'), ended('h', 'c'), ended('h', 'd'));
    const first = await fetch({ batchId: 'one' });
    expect(await fetch({ batchId: 'one' })).toEqual(first);
    expect(rows(await fetch({ batchId: 'two' }))).toEqual(['c:0', 'd:0']);
    const after = await opened({ store });
    expect(await after.fetch({ batchId: 'one' })).toEqual(first);
  });
});

describe('a batch that is asked for again by its id', () => {
  const old = { purpose: 'train', groups: 1, batchId: 'one' } as const;
  const weighed = { policyVersion: 2, most: 1, rule: 'weigh' } as const;

  it.each([
    ['without a rule, then with one', undefined, weighed],
    ['with a rule, then without', weighed, undefined],
    ['when the policy went on', weighed, { ...weighed, policyVersion: 40 }],
    ['by another rule', weighed, { ...weighed, rule: 'drop' as const }],
  ])('is the same, %s; also after a restart', async (_, first, then) => {
    const { keep, fetch, store } = await opened({ group: 1 });
    await keep(ended('g', 'a', { turns: [turn(0), turn(1, { policyVersion: 1 })] }));
    const batch = await fetch({ ...old, stale: first });
    expect(rows(batch)).toEqual(['a:0', 'a:1']);
    expect(await fetch({ ...old, stale: then })).toEqual(batch);
    expect(await (await opened({ store })).fetch({ ...old, stale: then })).toEqual(batch);
  });

  it('is the same whatever was marked since', async () => {
    const { keep, fetch, store } = await opened({ group: 1 });
    await keep(ended('g', 'a', { turns: [turn(0), turn(1)] }));
    await mark(store, 'a', true, { turn: 0 });
    const batch = await fetch(old);
    await mark(store, 'a', false, { turn: 0 });
    await mark(store, 'a', true, { turn: 1 });
    expect(await fetch(old)).toEqual(batch);
  });
});

it('what is excluded is not handed out: a trajectory, or a single step; taken back, it is', async () => {
  const { keep, fetch, store } = await opened({ group: 1 });
  await keep(ended('g', 'a', { turns: [turn(0), turn(1)] }), ended('h', 'b'));
  await mark(store, 'a', true, { turn: 0 });
  await mark(store, 'b', true);
  expect(rows(await fetch())).toEqual(['a:0']);
  expect(rows(await fetch())).toBe('waiting');
  const waiting = fetch({}, 5000);
  await mark(store, 'b', false);
  expect(rows(await waiting)).toEqual(['b:0']);
  expect((await store.manifests())[0]).toMatchObject({ excluded: [{ rolloutId: 'a', turn: 0 }] });
});

describe('a pool that is full', () => {
  it('makes room by the oldest group that is not complete, never by a complete one; what comes late for it is refused', async () => {
    const { keep, fetch, pool } = await opened({ maxGroups: 2 });
    await keep(ended('ready', 'r0'), ended('ready', 'r1'), ended('slow', 's0'), ended('new', 'n0'));
    await expect(pool.keep(ended('slow', 's1'))).rejects.toMatchObject(LATE);
    await keep(ended('new', 'n1'));
    await expect(pool.keep(ended('more', 'm0'))).rejects.toMatchObject({ row: { code: 'pool_full' } });
    expect(rows(await fetch())).toEqual(['r0:0', 'r1:0']);
    await keep(ended('more', 'm0'));
    await expect(pool.keep(ended('ready', 'r2'))).rejects.toMatchObject(LATE);
    expect(rows(await fetch())).toEqual(['n0:0', 'n1:0']);
    const counts = { late: 2, refused: 1, droppedGroups: 1, dropped: 1, servedGroups: 2, waiting: 1 };
    expect(pool.counts('train')).toMatchObject(counts);
  });

  it('is not blocked for good by complete groups that somebody excluded', async () => {
    const { keep, fetch, pool, store } = await opened({ group: 1, maxGroups: 2 });
    await keep(ended('x', 'a'), ended('y', 'b'));
    await mark(store, 'a', true);
    // Two are wanted, and one of the two that fit is held back.
    expect(rows(await fetch({ groups: 2 }))).toBe('waiting');
    await keep(ended('z', 'c'));
    expect(rows(await fetch({ groups: 2 }))).toEqual(['b:0', 'c:0']);
    expect(pool.counts('train')).toMatchObject({ kept: 3, dropped: 1, droppedGroups: 1, waiting: 0 });
  });

  it('refuses before anything is kept, and knows what was dropped after a restart', async () => {
    const { keep, store, pool } = await opened({ maxGroups: 1 });
    await keep(ended('slow', 's0'), ended('new', 'n0'));
    await expect(pool.keep(ended('slow', 's1'))).rejects.toMatchObject(LATE);
    expect((await store.query()).map(({ rolloutId }) => rolloutId)).toEqual(['s0', 'n0']);
    const after = await opened({ store, maxGroups: 1 });
    await expect(after.pool.keep(ended('slow', 's1'))).rejects.toMatchObject(LATE);
    expect(after.pool.counts('train')).toMatchObject({ kept: 2, dropped: 1, waiting: 1 });
  });
});

describe('a group of which one never ends', () => {
  it('is handed out with what it has when its time is up, and waits for nobody who comes then', async () => {
    let now = 0;
    const { keep, fetch, pool } = await opened({ clock: { now: () => now }, groupTimeoutMs: 1000 });
    await keep(ended('g', 'a'));
    expect(rows(await fetch())).toBe('waiting');
    now = 1000;
    expect(rows(await fetch())).toEqual(['a:0']);
    await expect(pool.keep(ended('g', 'b'))).rejects.toMatchObject(LATE);
  });

  it('is dropped where there is nothing in it to train', async () => {
    const { keep, fetch, pool } = await opened({ groupTimeoutMs: 0 });
    await keep(ended('g', 'a', { grade: { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'slow' } }));
    expect(rows(await fetch())).toBe('waiting');
    expect(pool.counts('train')).toMatchObject({ droppedGroups: 1, dropped: 1, waiting: 0 });
  });
});

describe('steps that are too old', () => {
  const old = ended('g', 'a', { turns: [turn(0, { policyVersion: 1 }), turn(1, { policyVersion: 4 })] });
  const rule = { policyVersion: 5, most: 2 } as const;

  it('are dropped, and counted; a step keeps its number', async () => {
    const { keep, fetch, pool } = await opened({ group: 1 });
    await keep(old);
    expect(rows(await fetch({ stale: { ...rule, rule: 'drop' } }))).toEqual(['a:1']);
    expect(pool.counts('train')).toMatchObject({ staleSteps: 1, servedSteps: 1 });
  });

  it('count half as much for each version too many where that is wanted', async () => {
    const { keep, fetch, pool } = await opened({ group: 1 });
    await keep(old);
    const fetched = await fetch({ stale: { ...rule, rule: 'weigh' } });
    expect(fetched.kind === 'batch' && fetched.steps.map(({ weight }) => weight)).toEqual([0.25, 1]);
    expect(pool.counts('train')).toMatchObject({ staleSteps: 1, servedSteps: 2 });
  });

  it('take their group with them where nothing else is in it', async () => {
    const { keep, fetch, pool } = await opened({ group: 1 });
    await keep(ended('g', 'a'));
    expect(rows(await fetch({ stale: { ...rule, rule: 'drop' } }))).toBe('waiting');
    expect(pool.counts('train')).toMatchObject({ staleSteps: 1, droppedGroups: 1 });
  });
});

it('a pool that is closed hands out the complete groups that are left, fewer than are wanted, and then says that nothing comes', async () => {
  const { keep, fetch, pool } = await opened();
  await keep(ended('g', 'a'), ended('g', 'b'), ended('h', 'c'));
  const waiting = fetch({ groups: 2 }, 5000);
  const idle = fetch({ purpose: 'eval' }, 5000);
  pool.close();
  expect(rows(await waiting)).toEqual(['a:0', 'b:0']);
  expect(rows(await idle)).toBe('closed');
  expect(rows(await fetch())).toBe('closed');
});

describe('whatever happens in whatever order', () => {
  type Event = readonly ['keep', string, number, Purpose] | readonly ['fetch', number, Purpose] | readonly ['restart'];
  const purpose = fc.constantFrom<Purpose>('train', 'eval');
  const event: fc.Arbitrary<Event> = fc.oneof(
    { weight: 6, arbitrary: fc.tuple(fc.constant('keep' as const), fc.constantFrom('g', 'h', 'i'), fc.nat(3), purpose) },
    { weight: 2, arbitrary: fc.tuple(fc.constant('fetch' as const), fc.integer({ min: 1, max: 3 }), purpose) },
    { weight: 1, arbitrary: fc.constant(['restart'] as const) },
  );

  it('no trajectory is in two batches, none that was kept is lost, and the counts of each channel add up', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(event, { maxLength: 40 }), fc.option(fc.integer({ min: 1, max: 2 })), async (events, max) => {
        const options = { store: memoryStore(), ...(max === null ? {} : { maxGroups: max }) };
        let bench = await opened(options);
        const served = new Map<string, Purpose>();
        for (const one of events) {
          if (one[0] === 'restart') bench = await opened(options);
          else if (one[0] === 'keep') {
            const [, groupId, place, channel] = one;
            await bench.pool.keep(ended(groupId, `${channel}-${groupId}-${place}`, { purpose: channel })).catch(() => undefined);
          } else {
            const fetched = await bench.fetch({ n: one[1], purpose: one[2] });
            for (const { rolloutId } of fetched.kind === 'batch' ? fetched.steps : []) {
              expect(served.has(rolloutId)).toBe(false);
              expect(rolloutId.startsWith(one[2])).toBe(true);
              served.set(rolloutId, one[2]);
            }
          }
          for (const channel of ['train', 'eval'] as const) {
            const { kept, waiting, served: out, leftOut, dropped } = bench.pool.counts(channel);
            expect(waiting + out + leftOut + dropped).toBe(kept);
            expect(kept).toBe(await options.store.count({ purpose: channel }));
            expect(out).toBe([...served.values()].filter((one) => one === channel).length);
          }
        }
      }),
      { numRuns: 60 },
    );
  });

  it('trajectories that come while a batch is made are in it, or too late, or in a later one', async () => {
    const { pool, fetch, store } = await opened({ group: 2 });
    const ids = Array.from({ length: 40 }, (_, i) => `r${i}`);
    const keeping = async (id: string, i: number) => {
      await pool.keep(ended(`g${i % 5}`, id));
      return id;
    };
    const kept = ids.map((id, i) => keeping(id, i).catch(() => undefined));
    const batches = await Promise.all(Array.from({ length: 8 }, () => fetch({}, 200)));
    const acknowledged = (await Promise.all(kept)).filter((id) => id !== undefined);
    const served = batches.flatMap((batch) => (batch.kind === 'batch' ? batch.steps.map(({ rolloutId }) => rolloutId) : []));
    expect(new Set(served).size).toBe(served.length);
    expect((await store.query()).map(({ rolloutId }) => rolloutId).toSorted()).toEqual(acknowledged.toSorted());
    expect(served.toSorted()).toEqual(acknowledged.toSorted());
  });
});
