import { beforeEach, describe, expect, it } from 'vitest';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { memoryStore } from '../../test/fixtures/store/memory-store.ts';
import type { Store } from '../core/contracts.ts';
import { type CurationRequest, curate, curationIn } from './inspect.ts';

let store: Store;
const { turns } = Array.from({ length: 100 }, (_, seed) => randomTrajectory(seed)).find((one) => one.turns.length === 2)!;
beforeEach(async () => {
  store = memoryStore();
  for (const [seed, rolloutId] of ['a', 'b'].entries()) {
    await store.append(randomTrajectory(seed, { rolloutId, turns, purpose: 'train' }));
  }
});

const ask = (request: Partial<CurationRequest>) => curate(store, { rolloutIds: ['a'], ...request }, 7);

describe('curation', () => {
  it('leaves rollouts and turns out, says why and what was trained before, and takes it back', async () => {
    await store.commit(manifestOf(1, ['b']));
    await ask({ rolloutIds: ['a', 'b'], reason: ' leaks the answer ' });
    await ask({ turn: 1, reason: 'tool was down' });
    const reason = 'leaks the answer';
    expect(await curationIn(store)).toEqual([
      { rolloutId: 'a', excluded: true, reason, at: 7, step: null, purpose: 'train' },
      { rolloutId: 'a', turn: 1, excluded: true, reason: 'tool was down', at: 7, step: null, purpose: 'train' },
      { rolloutId: 'b', excluded: true, reason, at: 7, step: 1, purpose: 'train' },
    ]);
    await ask({ rolloutIds: ['a', 'b'], undo: true });
    expect(await curationIn(store)).toMatchObject([{ rolloutId: 'a', turn: 1 }]);
    await ask({ turn: 1, undo: true, reason: 'it was up' });
    expect(await curationIn(store)).toEqual([]);
    expect(await store.marks()).toHaveLength(6);
  });

  it('marks nothing again that is left out for the same reason, and a rollout that is named twice once', async () => {
    expect(await ask({ rolloutIds: ['a', 'a'], reason: 'x' })).toHaveLength(1);
    expect(await ask({ reason: 'x' })).toEqual([]);
    expect(await ask({ reason: 'y' })).toHaveLength(1);
    expect(await store.marks()).toHaveLength(2);
  });

  it.each<[string, Partial<CurationRequest>, RegExp]>([
    ['no reason', {}, /reason: expected 1 to 2000 characters, found none/],
    ['an empty reason', { reason: '  ' }, /found none/],
    ['an endless reason', { reason: 'x'.repeat(2001) }, /found 2001 characters/],
    ['rollouts that are not there', { rolloutIds: ['a', 'x', 'y'], reason: 'r' }, /no rollout "x" is kept; no rollout "y"/],
    ['a turn that is not there', { turn: 2, reason: 'r' }, /rollout "a" has no turn 2, it has 2, counted from 0/],
    ['undoing what is not excluded', { rolloutIds: ['a', 'b'], undo: true }, /"a" is not excluded; rollout "b" is not/],
    ['taking back a turn of a rollout that is excluded whole', { turn: 0, undo: true }, /turn 0 of rollout "a" is not excluded/],
  ])('refuses %s, and writes nothing', async (_, request, message) => {
    if (request.turn === 0) await ask({ reason: 'r' });
    const before = await store.marks();
    await expect(ask(request)).rejects.toMatchObject({ code: 'USAGE', message: expect.stringMatching(message) });
    expect(await store.marks()).toEqual(before);
  });
});
