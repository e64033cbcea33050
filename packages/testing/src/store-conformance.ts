/**
 * Conformance cases for stores, for any test runner: `for (const { name, run } of …) it(name, run)`. Each case opens and closes its own
 * empty store. Failures are AssertionErrors of node:assert. Durability against a kill or a full disk is not covered, because how to cause
 * those depends on the store.
 */
import assert from 'node:assert/strict';
import type { Mark, Store, Trajectory, Turn } from '../../../src/index.ts';
import { summaryOf } from '../../../src/loop.ts';
import { type ConformanceCase, casesOf, rejectsWith } from './conformance.ts';
import { LIMIT_NAMES, manifestOf, randomTrajectory } from './trajectories.ts';

export interface StoreConformanceOptions {
  /** For durable stores: reopens what this closed store kept. Enables the cases about reopening. */
  readonly reopen?: (closed: Store) => Promise<Store>;
}

/** `open` must return a new, empty store each time. */
export function storeConformance(
  name: string,
  open: () => Promise<Store>,
  options: StoreConformanceOptions = {},
): readonly ConformanceCase[] {
  const cases = casesOf(name, CASES, async (check) => {
    await using store = await open();
    await check(store);
  });
  const { reopen } = options;
  if (reopen === undefined) return cases;
  return [
    ...cases,
    { name: `${name} keeps everything when closed and opened again`, run: () => survivesReopening(open, reopen) },
  ];
}

type Cases = Readonly<Record<string, (store: Store) => Promise<void>>>;

const CASES: Cases = {
  'gives back what was appended, bit by bit': async (store) => {
    const trajectories = seeds(40).map((seed) => randomTrajectory(seed));
    for (const trajectory of trajectories) await store.append(trajectory);
    for (const trajectory of trajectories) assert.deepEqual(await store.read(trajectory.rolloutId), trajectory);
  },
  'keeps every bit pattern of ids and log-probabilities': async (store) => {
    const [turn] = withTurns(1).turns;
    const logprobs = new Float32Array(Uint32Array.of(0x80000000, 0x00000001, 0x807fffff, 0xff800000, 0x7fc00001).buffer);
    const sampledIds = Int32Array.of(0, -1, 2 ** 31 - 1, -(2 ** 31), 1);
    // Views that start in the middle of their buffer.
    const promptIds = new Int32Array(new ArrayBuffer(24), 8, 3).fill(7);
    await store.append(withTurns(1, { turns: [{ ...turn!, logprobs, sampledIds, promptIds }] }));
    const kept = (await store.read('rollout-1'))!.turns[0]!;
    assert.deepEqual(bits(kept.logprobs), bits(logprobs));
    assert.deepEqual(bits(kept.sampledIds), bits(sampledIds));
    assert.deepEqual([...kept.promptIds], [7, 7, 7]);
  },
  'keeps every limit that can cut a rollout': async (store) => {
    const cut = LIMIT_NAMES.map((limit, seed) => randomTrajectory(seed, { outcome: { kind: 'truncated', limit } }));
    for (const trajectory of cut) await store.append(trajectory);
    assert.deepEqual(await store.query(), cut);
  },
  'keeps a trajectory without turns and one with an empty prompt': async (store) => {
    const none = randomTrajectory(1, { turns: [] });
    const empty = withTurns(2, { turns: [{ ...withTurns(2).turns[0]!, promptIds: new Int32Array(0) }] });
    await Promise.all([store.append(none), store.append(empty)]);
    assert.deepEqual(await store.query(), [none, empty]);
  },
  'keeps keys named like parts of an object as ordinary keys': async (store) => {
    const output = JSON.parse('{"__proto__":{"polluted":true},"constructor":1}');
    await store.append(randomTrajectory(1, { output }));
    const kept = await store.read('rollout-1');
    assert.deepEqual(JSON.parse(JSON.stringify(kept?.output)), output);
    assert.equal(({} as { polluted?: boolean }).polluted, undefined);
  },
  'does not let callers change what is kept': async (store) => {
    const given = withTurns(1);
    const expected = structuredClone(given);
    const appended = store.append(given);
    given.turns[0]!.sampledIds.fill(0);
    await appended;
    given.turns[0]!.logprobs.fill(0);
    const received = await store.read('rollout-1');
    received!.turns[0]!.promptIds.fill(-1);
    (received!.turns as unknown[]).length = 0;
    assert.deepEqual(await store.read('rollout-1'), expected);
  },
  'lists rollouts in short, in append order, from any place on': async (store) => {
    const call = { thread: 'main', role: 'policy', promptTokens: 1, sampledTokens: 0, turnsBefore: 0, startedAt: 1, endedAt: 2 };
    const unanswered = [call, { ...call, failure: { code: 'ENGINE_BUSY', message: 'too many' } }];
    const [turn] = withTurns(41).turns as [Turn];
    const forked = { ...turn, fork: { cause: 'compaction', also: ['changed_tools'], from: 0 } } as const;
    const counted = { ...turn, usage: { promptTokens: 7, completionTokens: 9 } };
    const trajectories = [
      ...seeds(40).map((seed) => randomTrajectory(seed)),
      withTurns(41, { turns: [forked, counted], unanswered }),
    ];
    for (const trajectory of trajectories) await store.append(trajectory);
    const all = await store.summaries();
    for (const [place, { seq }] of all.entries()) assert.deepEqual(all[place], summaryOf(trajectories[place]!, seq));
    assert.deepEqual(await store.summaries(all[9]!.seq, 5), all.slice(10, 15));
    await rejectsWith('USAGE', store.summaries(0, -1));
  },
  'knows nothing under an id that was never appended': async (store) => {
    assert.equal(await store.read('nobody'), undefined);
    assert.deepEqual(await store.query(), []);
    assert.deepEqual(await store.manifests(), []);
    assert.equal(await store.count(), 0);
  },

  'takes the same trajectory again as a no-op, whatever the order of its keys': async (store) => {
    const trajectory = withTurns(1);
    const reordered = Object.fromEntries(Object.entries(structuredClone(trajectory)).reverse()) as unknown as Trajectory;
    await Promise.all([store.append(trajectory), store.append(trajectory)]);
    await store.append(reordered);
    assert.deepEqual(await store.query(), [trajectory]);
  },
  'refuses another trajectory under a kept id and keeps the first': async (store) => {
    const first = withTurns(1);
    const oneBitOff = structuredClone(first);
    const { buffer, byteOffset } = oneBitOff.turns[0]!.logprobs;
    new Uint32Array(buffer, byteOffset, 1)[0]! ^= 1;
    await store.append(first);
    await rejectsWith('STORE_CONFLICT', store.append(oneBitOff), /rollout-1/);
    await rejectsWith('STORE_CONFLICT', store.append({ ...first, endedAt: first.endedAt + 1 }));
    assert.deepEqual(await store.query(), [first]);
  },
  'refuses only the conflicting one of many appended at once': async (store) => {
    const trajectories = seeds(20).map((seed) => randomTrajectory(seed));
    const impostor = randomTrajectory(999, { rolloutId: 'rollout-7' });
    const asked = [...trajectories.slice(0, 10), impostor, ...trajectories.slice(10)];
    const results = await Promise.allSettled(asked.map((trajectory) => store.append(trajectory)));
    const refused = asked.filter((_, position) => results[position]!.status === 'rejected');
    assert.deepEqual(refused, [impostor]);
    assert.deepEqual(await store.query(), trajectories);
  },
  'refuses what it could not give back, and stays usable': async (store) => {
    const turn = withTurns(1).turns[0]!;
    const cyclic: { self?: unknown } = {};
    cyclic.self = cyclic;
    const unfit: readonly Partial<Trajectory>[] = [
      { grade: { kind: 'graded', reward: { value: Number.NaN } } },
      { output: { score: Number.POSITIVE_INFINITY } },
      { output: new Date(0) as never },
      { output: cyclic as never },
      { turns: [{ ...turn, logprobs: new Float32Array(turn.sampledIds.length + 1) }] },
      { turns: [{ ...turn, sampledIds: [...turn.sampledIds] as never }] },
      { rolloutId: '' },
      { rolloutId: '\ud800' },
    ];
    for (const overrides of unfit) await rejectsWith('STORE_FAILED', store.append(randomTrajectory(1, overrides)));
    assert.equal(await store.count(), 0);
    await store.append(withTurns(1));
    assert.equal(await store.count(), 1);
  },

  'answers queries in the order of appending': async (store) => {
    const order = [5, 3, 9, 1, 7];
    for (const seed of order) await store.append(randomTrajectory(seed));
    assert.deepEqual(idsOf(await store.query()), ids(order));
    assert.deepEqual(idsOf(await store.query({ limit: 2 })), ids([5, 3]));
  },
  'filters by every field, alone and together': async (store) => {
    const all = seeds(60).map((seed) => randomTrajectory(seed));
    await Promise.all(all.map((trajectory) => store.append(trajectory)));
    const expectations = [
      [{ purpose: 'eval' }, (t: Trajectory) => t.purpose === 'eval'],
      [{ groupId: 'group-1' }, (t: Trajectory) => t.groupId === 'group-1'],
      [{ taskId: 'task-2' }, (t: Trajectory) => t.taskId === 'task-2'],
      [{ outcome: 'failed' }, (t: Trajectory) => t.outcome.kind === 'failed'],
      [{ purpose: 'train', groupId: 'group-0' }, (t: Trajectory) => t.purpose === 'train' && t.groupId === 'group-0'],
      [{ groupId: 'nobody' }, () => false],
    ] as const;
    for (const [filter, accepts] of expectations) {
      const expected = all.filter(accepts);
      assert.deepEqual(await store.query(filter), expected);
      assert.equal(await store.count(filter), expected.length);
      assert.deepEqual(await store.groupIds(filter), [...new Set(expected.map(({ groupId }) => groupId))]);
    }
  },
  'tells trained from untrained trajectories': async (store) => {
    for (const seed of [1, 2, 3]) await store.append(randomTrajectory(seed));
    await store.commit(manifestOf(1, ids([3, 1])));
    assert.deepEqual(idsOf(await store.query({ trained: true })), ids([1, 3]));
    assert.deepEqual(idsOf(await store.query({ trained: false })), ids([2]));
    assert.equal(await store.count({ trained: true }), 2);
  },
  'counts as many as a query would return, and refuses a senseless limit': async (store) => {
    for (const seed of [1, 2, 3]) await store.append(randomTrajectory(seed));
    assert.equal(await store.count({ limit: 2 }), 2);
    assert.equal(await store.count({ limit: 9 }), 3);
    assert.deepEqual(await store.query({ limit: 0 }), []);
    await rejectsWith('USAGE', store.query({ limit: -1 }));
    await rejectsWith('USAGE', store.count({ limit: 1.5 }));
  },
  'treats ids as data, never as part of a query': async (store) => {
    const groupId = `'; DROP TABLE trajectories; --`;
    const trajectory = randomTrajectory(1, { groupId, rolloutId: 'a%_\u0000"é' });
    await store.append(trajectory);
    assert.deepEqual(await store.query({ groupId }), [trajectory]);
    assert.deepEqual(await store.read('a%_\u0000"é'), trajectory);
    assert.equal(await store.read('a%_'), undefined);
  },

  'commits steps one after another and gives the manifests back': async (store) => {
    for (const seed of seeds(4)) await store.append(randomTrajectory(seed));
    const manifests = [manifestOf(1, ids([2, 1]), { policyVersion: 5 }), manifestOf(2, [], { policyVersion: 6 })];
    for (const manifest of manifests) await store.commit(manifest);
    assert.deepEqual(await store.manifests(), manifests);
  },
  'refuses a step or version that does not follow the last': async (store) => {
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, [])), /found step 2, expected 1/);
    await store.commit(manifestOf(1, []));
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(1, [])), /expected 2/);
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(3, [], { policyVersion: 2 })), /expected 2/);
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, [], { policyVersion: 1 })), /version 1, expected 2/);
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, [], { policyVersion: 3 })), /version 3, expected 2/);
    assert.deepEqual(await store.manifests(), [manifestOf(1, [])]);
  },
  'lets a trajectory enter at most one step, and writes nothing of a refused one': async (store) => {
    for (const seed of seeds(3)) await store.append(randomTrajectory(seed));
    await store.commit(manifestOf(1, ids([1])));
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, ids([2, 1]))), /already trained: "rollout-1"/);
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, ids([2, 77]))), /not in the store: "rollout-77"/);
    await rejectsWith('STORE_CONFLICT', store.commit(manifestOf(2, ids([2, 2]))), /listed twice: "rollout-2"/);
    assert.deepEqual(idsOf(await store.query({ trained: false })), ids([2, 3]));
    await store.commit(manifestOf(2, ids([3, 2])));
    assert.equal(await store.count({ trained: false }), 0);
  },
  'lets only one of several simultaneous commits of a step win': async (store) => {
    for (const seed of seeds(4)) await store.append(randomTrajectory(seed));
    const results = await Promise.allSettled(seeds(4).map((seed) => store.commit(manifestOf(1, ids([seed])))));
    assert.equal(results.filter((result) => result.status === 'fulfilled').length, 1);
    assert.equal(await store.count({ trained: true }), 1);
  },
  'refuses a manifest with a metric that is not a number': async (store) => {
    await rejectsWith('STORE_FAILED', store.commit(manifestOf(1, [], { metrics: { loss: Number.NaN } })), /loss is NaN/);
    assert.deepEqual(await store.manifests(), []);
  },

  'gives back every mark in the order they were made, taken back or not': async (store) => {
    const { rolloutId } = await appended(store);
    const marks = [mark(rolloutId), mark(rolloutId, { turn: 0 }), mark(rolloutId, { excluded: false, reason: 'it does not' })];
    await store.mark(marks.slice(0, 2));
    await store.mark(marks.slice(2));
    assert.deepEqual(await store.marks(), marks);
  },
  'leaves trajectories and manifests as they are when something of them is marked': async (store) => {
    const trajectory = await appended(store);
    const { rolloutId } = trajectory;
    await store.commit(manifestOf(1, [rolloutId]));
    await store.mark([mark(rolloutId), mark(rolloutId, { turn: 0 })]);
    assert.deepEqual(await store.read(rolloutId), trajectory);
    assert.deepEqual(await store.manifests(), [manifestOf(1, [rolloutId])]);
    await store.append(trajectory);
  },
  'refuses a mark for a rollout or a turn that is not kept, and then writes none of those asked for together': async (store) => {
    const { rolloutId, turns } = await appended(store);
    await rejectsWith('STORE_CONFLICT', store.mark([mark(rolloutId), mark('nobody')]), /no rollout "nobody"/);
    await rejectsWith('STORE_CONFLICT', store.mark([mark(rolloutId, { turn: turns.length })]), /has no turn/);
    assert.deepEqual(await store.marks(), []);
  },
  'refuses a mark without a reason, or with what is no turn': async (store) => {
    const { rolloutId } = await appended(store);
    const unfit = [{ reason: '' }, { reason: 'x'.repeat(2001) }, { turn: -1 }, { turn: 0.5 }, { excluded: 1 as never }];
    for (const one of unfit) await rejectsWith('STORE_FAILED', store.mark([mark(rolloutId, one)]));
    assert.deepEqual(await store.marks(), []);
  },
  'keeps what a step left out with its manifest, and refuses one that trains what it leaves out': async (store) => {
    for (const seed of [1, 2]) await store.append(randomTrajectory(seed));
    const bad = manifestOf(1, ['rollout-1'], { excluded: [{ rolloutId: 'rollout-1' }] });
    await rejectsWith('STORE_CONFLICT', store.commit(bad), /left out at once: "rollout-1"/);
    const good = manifestOf(1, ['rollout-1'], { excluded: [{ rolloutId: 'rollout-1', turn: 0 }, { rolloutId: 'rollout-2' }] });
    await store.commit(good);
    assert.deepEqual(await store.manifests(), [good]);
  },

  'acknowledges what was asked for before closing, and refuses everything after': async (store) => {
    const asked = seeds(5).map((seed) => store.append(randomTrajectory(seed)));
    await store[Symbol.asyncDispose]();
    await Promise.all(asked);
    await store[Symbol.asyncDispose]();
    const calls = [
      () => store.append(randomTrajectory(9)),
      () => store.commit(manifestOf(1, [])),
      () => store.mark([]),
      () => store.read('rollout-1'),
      () => store.query(),
      () => store.count(),
      () => store.manifests(),
      () => store.marks(),
    ];
    for (const call of calls) await rejectsWith('STORE_FAILED', call(), /closed/);
  },
};

async function survivesReopening(open: () => Promise<Store>, reopen: (closed: Store) => Promise<Store>): Promise<void> {
  const trajectories = seeds(20).map((seed) => randomTrajectory(seed));
  const first = await open();
  const appended = trajectories.map((trajectory) => first.append(trajectory));
  const committed = first.commit(manifestOf(1, ids([3, 4])));
  const marked = first.mark([mark('rollout-5')]);
  await first[Symbol.asyncDispose]();
  await Promise.all([...appended, committed, marked]);

  const second = await reopen(first);
  assert.deepEqual(await second.query(), trajectories);
  assert.deepEqual(await second.manifests(), [manifestOf(1, ids([3, 4]))]);
  assert.deepEqual(idsOf(await second.query({ trained: true })), ids([3, 4]));
  assert.deepEqual(await second.marks(), [mark('rollout-5')]);
  await second.append(trajectories[0]!);
  await rejectsWith('STORE_CONFLICT', second.append({ ...trajectories[0]!, groupId: 'another' }));
  await rejectsWith('STORE_CONFLICT', second.commit(manifestOf(2, ids([3]))), /already trained/);
  await second.commit(manifestOf(2, ids([5])));
  await second[Symbol.asyncDispose]();
}

/** A trajectory that always has turns. */
function withTurns(seed: number, overrides: Partial<Trajectory> = {}): Trajectory {
  const source = seeds(100).map((other) => randomTrajectory(seed * 1_000 + other));
  const { turns } = source.find((candidate) => candidate.turns.length >= 2)!;
  return randomTrajectory(seed, { turns, ...overrides });
}

async function appended(store: Store): Promise<Trajectory> {
  const trajectory = withTurns(1);
  await store.append(trajectory);
  return trajectory;
}

const seeds = (n: number): readonly number[] => Array.from({ length: n }, (_, position) => position + 1);
const ids = (of: readonly number[]): readonly string[] => of.map((seed) => `rollout-${seed}`);
const idsOf = (trajectories: readonly Trajectory[]): readonly string[] => trajectories.map(({ rolloutId }) => rolloutId);
const bits = (values: Int32Array | Float32Array): readonly number[] => [...new Uint32Array(values.slice().buffer)];

function mark(rolloutId: string, more: Partial<Mark> = {}): Mark {
  return { rolloutId, excluded: true, reason: 'it leaks the answer', at: 1_700_000_000_000, ...more };
}
