/**
 * The history checker against stores, engines and runs that break their promises on purpose, one at a time. What a store lost, changed or made
 * up is in kills.full.test.ts.
 */
import { describe, expect, it } from 'vitest';
import { checkHistory, FAULTS, type Fault, type HistoryReport } from '../../packages/testing/src/check-history.ts';
import { recordHistory } from '../../packages/testing/src/record-history.ts';
import { manifestOf } from '../../packages/testing/src/trajectories.ts';
import type { Store } from '../../src/core/contracts.ts';
import type { BatchManifest, Trajectory, Turn } from '../../src/core/types.ts';
import { carelessStore, type Place, playRun } from '../fixtures/history-run.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

/** What is found when this was written to a store, which then holds that. */
async function recorded(store: Store, write: (recording: Store) => Promise<unknown>, staleness = 0): Promise<HistoryReport> {
  const lines: string[] = [];
  await write(recordHistory((text) => void lines.push(text)).store(store));
  const [trajectories, manifests] = [await store.query(), await store.manifests()];
  return checkHistory({ history: lines.join(''), trajectories, manifests, staleness });
}

async function report({ store = memoryStore(), ...place }: Partial<Place> = {}, staleness = 0): Promise<HistoryReport> {
  const lines: string[] = [];
  await playRun({ ...place, store, sink: (text) => void lines.push(text) });
  const [trajectories, manifests] = [await store.query(), await store.manifests()];
  return checkHistory({ history: lines.join(''), trajectories, manifests, staleness });
}

/** The faults that were found, and of which ids. */
function faultsIn(found: HistoryReport): Partial<Record<Fault, readonly string[]>> {
  const kinds = FAULTS.filter((kind) => found[kind].length > 0);
  return Object.fromEntries(kinds.map((kind) => [kind, found[kind].map(({ id }) => id)]));
}

type Found = ReturnType<typeof faultsIn>;

const only = (rolloutId: string, change: (trajectory: Trajectory) => Trajectory) => (trajectory: Trajectory) =>
  trajectory.rolloutId === rolloutId ? change(trajectory) : trajectory;
const atStep = (step: number, change: (manifest: BatchManifest) => Partial<BatchManifest>) => (manifest: BatchManifest) =>
  manifest.step === step ? { ...manifest, ...change(manifest) } : manifest;
const firstTurn = (change: (turn: Turn) => Partial<Turn>) => (trajectory: Trajectory) => ({
  ...trajectory,
  turns: trajectory.turns.with(0, { ...trajectory.turns[0]!, ...change(trajectory.turns[0]!) }),
});
const also = (more: (manifest: BatchManifest) => string) => (manifest: BatchManifest) => ({
  ...manifest,
  rolloutIds: [...manifest.rolloutIds, more(manifest)],
});

describe('a history', () => {
  it('of an honest run is clean', async () => {
    const found = await report();
    expect(faultsIn(found)).toEqual({});
    expect(found).toMatchObject({
      clean: true,
      recovered: [],
      counts: { processes: 1, ok: 30, failed: 0, unknown: 0, trajectories: 9, steps: 3, turns: 18 },
    });
  });

  it('in which a refused operation is refused is clean', async () => {
    const found = await recorded(memoryStore(), (store) =>
      expect(store.commit(manifestOf(7, []))).rejects.toMatchObject({ code: 'STORE_CONFLICT' }),
    );
    expect(found).toMatchObject({ clean: true, counts: { ok: 0, failed: 1 } });
  });
});

describe('a lying store is found when it', () => {
  const trajectory = { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train', turns: [] } as unknown as Trajectory;

  it('acknowledges two different trajectories of one rollout, or a step twice', async () => {
    const careless = carelessStore();
    careless.kept.push(trajectory);
    careless.committed.push(manifestOf(1, []));
    const found = await recorded({ ...careless, append: async () => {}, commit: async () => {} }, async (store) => {
      await store.append(trajectory);
      await store.append({ ...trajectory, endedAt: 1 });
      await store.commit(manifestOf(1, []));
      await store.commit(manifestOf(1, []));
    });
    expect(faultsIn(found)).toEqual({ lost: ['r'], duplicated: ['r', 'step 1'] });
  });

  it('keeps what it said it could not keep', async () => {
    const careless = carelessStore();
    const append = async (one: Trajectory): Promise<void> => {
      careless.kept.push(one);
      throw new Error('disk full');
    };
    const found = await recorded({ ...careless, append }, (store) =>
      expect(store.append(trajectory)).rejects.toThrow('disk full'),
    );
    expect(faultsIn(found)).toEqual({ unexpected: ['r'] });
  });
});

describe('a run is found out when it', () => {
  const lying = (lies: Place['lies'] & object, staleness = 0) => report({ store: carelessStore(), lies }, staleness);
  const ofG2 = { foreign: ['g2-1 turn 0'] };
  const inG2 = (change: Parameters<typeof firstTurn>[0]) => ({ append: only('g2-1', firstTurn(change)) });

  it.each<[string, Place['lies'] & object, Found]>([
    [
      'trains a rollout in two steps',
      {
        commit: atStep(
          2,
          also(() => 'g1-0'),
        ),
      },
      // What was sampled by version 0 is also too old for the second step.
      { duplicated: ['g1-0'], stale: ['g1-0 turn 0', 'g1-0 turn 1'] },
    ],
    [
      'trains a rollout twice in one step',
      { commit: also(({ step }) => `g${step}-0`) },
      { duplicated: ['g1-0', 'g2-0', 'g3-0'] },
    ],
    [
      'trains a rollout that was never kept',
      { commit: (manifest) => ({ ...manifest, rolloutIds: [`nobody-${manifest.step}`] }) },
      { foreign: ['nobody-1', 'nobody-2', 'nobody-3'] },
    ],
    ['records ids that were not sampled', inG2(({ sampledIds }) => ({ sampledIds: sampledIds.with(0, 5) })), ofG2],
    ['records log-probabilities of other weights', inG2(({ logprobs }) => ({ logprobs: logprobs.with(1, -0.125) })), ofG2],
    [
      'records tokens without their first',
      inG2(({ sampledIds, logprobs }) => ({ sampledIds: sampledIds.slice(1), logprobs: logprobs.slice(1) })),
      ofG2,
    ],
    ['records another prompt than was asked', inG2(() => ({ promptIds: Int32Array.of(1, 2, 9) })), ofG2],
    ['records a seed that was not used', inG2(({ sampling }) => ({ sampling: { ...sampling, seed: 1 } })), ofG2],
    [
      'records a retry as an extra turn',
      { append: only('g1-0', (one) => ({ ...one, turns: [...one.turns, { ...one.turns[1]!, index: 2 }] })) },
      { foreign: ['g1-0 turn 2'] },
    ],
  ])('%s', async (_, lies, faults) => {
    expect(faultsIn(await lying(lies))).toEqual(faults);
  });

  it('makes a version twice', async () => {
    expect(faultsIn(await lying({ commit: atStep(3, () => ({ policyVersion: 2 })) }))).toMatchObject({
      duplicated: ['version 2'],
    });
  });

  it('records a turn of another rollout', async () => {
    let other: Trajectory | undefined;
    const append = (trajectory: Trajectory): Trajectory => {
      other ??= trajectory;
      return inG2(() => ({ ...other!.turns[0]!, policyVersion: 1 })).append(trajectory);
    };
    expect(faultsIn(await lying({ append }))).toEqual(ofG2);
  });

  it('records another version than sampled', async () => {
    const found = await lying(
      inG2(() => ({ policyVersion: 0 })),
      1,
    );
    expect(faultsIn(found)).toEqual({ mixedVersion: ['g2-1 turn 0'] });
  });

  it('publishes while a rollout is under way, where that is not allowed', async () => {
    const publishing = (rollout: string): Place['lies'] & object => ({
      afterTurn: (engine, id) => void (id === rollout && engine.policyVersion++),
    });
    expect(faultsIn(await lying(publishing('eval3-0'))).mixedVersion).toContain('eval3-0');
    expect(faultsIn(await lying(publishing('eval3-0'), 1)).mixedVersion ?? []).not.toContain('eval3-0');
    // Trained, it was sampled by a version that did not exist before the step.
    expect(faultsIn(await lying(publishing('g3-0'), 5)).mixedVersion).toContain('g3-0 turn 1');
  });

  it('trains what was sampled too many versions ago, counted from the version before the step', async () => {
    const lies: Place['lies'] = {
      commit: (manifest) => ({ ...manifest, rolloutIds: manifest.step === 3 ? ['g1-0', 'g2-0'] : [] }),
    };
    expect(faultsIn(await lying(lies, 0)).stale).toEqual(['g1-0 turn 0', 'g1-0 turn 1', 'g2-0 turn 0', 'g2-0 turn 1']);
    expect(faultsIn(await lying(lies, 1))).toEqual({ stale: ['g1-0 turn 0', 'g1-0 turn 1'] });
    expect(faultsIn(await lying(lies, 2))).toEqual({});
    const stale = { policyVersion: 2, most: 0, rule: 'keep' } as const;
    expect(faultsIn(await lying({ commit: (manifest) => ({ ...lies.commit!(manifest), stale }) }, 0)).stale).toBeUndefined();
  });
});

it('an engine is found out when it returns arrays that it writes the next answer into', async () => {
  const shared = new Float32Array(3);
  const engine: Place['engine'] = (inner) => ({
    vocabSize: inner.vocabSize,
    contextLength: inner.contextLength,
    policyVersion: inner.policyVersion,
    sample: async (request) => {
      const result = await inner.sample(request);
      shared.set(result.logprobs);
      return { ...result, logprobs: shared };
    },
  });
  expect(faultsIn(await report({ engine })).foreign).toContain('g1-0 turn 0');
});
