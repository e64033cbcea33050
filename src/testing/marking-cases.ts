/** What every store must do with marks, as cases of its conformance suite. */
import assert from 'node:assert/strict';
import type { Store } from '../core/contracts.ts';
import type { Mark } from '../core/types.ts';
import { rejectsWith } from './conformance-case.ts';
import { manifestOf, randomTrajectory } from './trajectories.ts';

const LEAKS = 'it leaks the answer';

function mark(rolloutId: string, more: Partial<Mark> = {}): Mark {
  return { rolloutId, excluded: true, reason: LEAKS, at: 1_700_000_000_000, ...more };
}

/** The first of the random trajectories that has a turn. */
function withTurn(): ReturnType<typeof randomTrajectory> {
  return Array.from({ length: 100 }, (_, seed) => randomTrajectory(seed)).find(({ turns }) => turns.length > 0)!;
}

export const markingCases: Readonly<Record<string, (store: Store) => Promise<void>>> = {
  'gives back every mark in the order they were made, taken back or not': async (store) => {
    const trajectory = withTurn();
    const { rolloutId } = trajectory;
    await store.append(trajectory);
    const marks = [mark(rolloutId), mark(rolloutId, { turn: 0 }), mark(rolloutId, { excluded: false, reason: 'it does not' })];
    await store.mark(marks.slice(0, 2));
    await store.mark(marks.slice(2));
    assert.deepEqual(await store.marks(), marks);
  },
  'leaves trajectories and manifests as they are when something of them is marked': async (store) => {
    const trajectory = withTurn();
    const { rolloutId } = trajectory;
    await store.append(trajectory);
    await store.commit(manifestOf(1, [rolloutId]));
    await store.mark([mark(rolloutId), mark(rolloutId, { turn: 0 })]);
    assert.deepEqual(await store.read(rolloutId), trajectory);
    assert.deepEqual(await store.manifests(), [manifestOf(1, [rolloutId])]);
    await store.append(trajectory);
  },
  'refuses a mark for a rollout or a turn that is not kept, and then writes none of those asked for together': async (store) => {
    const trajectory = withTurn();
    const { rolloutId, turns } = trajectory;
    await store.append(trajectory);
    await rejectsWith('STORE_CONFLICT', store.mark([mark(rolloutId), mark('nobody')]), /no rollout "nobody"/);
    await rejectsWith('STORE_CONFLICT', store.mark([mark(rolloutId, { turn: turns.length })]), /has no turn/);
    assert.deepEqual(await store.marks(), []);
  },
  'refuses a mark without a reason, or with what is no turn': async (store) => {
    const trajectory = withTurn();
    await store.append(trajectory);
    const unfit = [{ reason: '' }, { reason: 'x'.repeat(2001) }, { turn: -1 }, { turn: 0.5 }, { excluded: 1 as never }];
    for (const one of unfit) await rejectsWith('STORE_FAILED', store.mark([mark(trajectory.rolloutId, one)]));
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
};
