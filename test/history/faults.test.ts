/** The history checker against stores, engines and runs that break their promises on purpose, one at a time. */
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/core/contracts.ts';
import type { Trajectory, Turn } from '../../src/core/types.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { checkHistory, FAULTS, type Fault, type HistoryReport } from '../../src/testing/check-history.ts';
import { recordHistory } from '../../src/testing/record-history.ts';
import { manifestOf } from '../../src/testing/trajectories.ts';
import { carelessStore, type Place, playRun } from '../fixtures/history-run.ts';

async function report(place: Partial<Place> = {}, staleness = 0): Promise<HistoryReport> {
  const lines: string[] = [];
  const store = place.store ?? memoryStore();
  const sink = (text: string): void => void lines.push(text);
  await playRun({ ...place, store, sink });
  return checkHistory({
    history: lines.join(''),
    trajectories: await store.query(),
    manifests: await store.manifests(),
    staleness,
  });
}

/** The faults that were found, and of which ids. */
function faultsIn(found: HistoryReport): Partial<Record<Fault, readonly string[]>> {
  const kinds = FAULTS.filter((kind) => found[kind].length > 0);
  return Object.fromEntries(kinds.map((kind) => [kind, found[kind].map(({ id }) => id)]));
}

const only = (rolloutId: string, change: (trajectory: Trajectory) => Trajectory) => (trajectory: Trajectory) =>
  trajectory.rolloutId === rolloutId ? change(trajectory) : trajectory;
const firstTurn = (change: (turn: Turn) => Partial<Turn>) => (trajectory: Trajectory) => ({
  ...trajectory,
  turns: trajectory.turns.with(0, { ...trajectory.turns[0]!, ...change(trajectory.turns[0]!) }),
});

/** A store that does something else with one trajectory or step than it says. */
function storeThat(acts: Partial<Pick<Store, 'append' | 'commit'>>): (about: ReturnType<typeof carelessStore>) => Store {
  return (careless) => ({ ...careless, ...acts });
}

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
    const lines: string[] = [];
    const store = memoryStore();
    const recorded = recordHistory((text) => void lines.push(text)).store(store);
    await expect(recorded.commit(manifestOf(7, []))).rejects.toMatchObject({ code: 'STORE_CONFLICT' });
    const found = checkHistory({ history: lines.join(''), trajectories: [], manifests: await store.manifests(), staleness: 0 });
    expect(found).toMatchObject({ clean: true, counts: { ok: 0, failed: 1 } });
  });
});

describe('a lying store is found when it', () => {
  const lying = async (make: (careless: ReturnType<typeof carelessStore>) => Partial<Store>) => {
    const careless = carelessStore();
    return await report({ store: storeThat(make(careless))(careless) });
  };

  it('acknowledges a trajectory that it does not keep', async () => {
    const found = await lying((careless) => ({
      append: async (trajectory) => (trajectory.rolloutId === 'eval2-0' ? undefined : careless.append(trajectory)),
    }));
    expect(faultsIn(found)).toEqual({ lost: ['eval2-0'] });
    expect(found.clean).toBe(false);
  });

  it('acknowledges a step that it does not keep', async () => {
    const found = await lying((careless) => ({
      commit: async (manifest) => (manifest.step === 3 ? undefined : careless.commit(manifest)),
    }));
    expect(faultsIn(found)).toEqual({ lost: ['step 3'] });
  });

  it('keeps another reward than it was given', async () => {
    const found = await lying((careless) => ({
      append: (trajectory) =>
        careless.append(only('g1-1', (kept) => ({ ...kept, grade: { kind: 'graded', reward: { value: 1 } } }))(trajectory)),
    }));
    expect(faultsIn(found)).toEqual({ altered: ['g1-1'] });
  });

  it('keeps another step than it was given', async () => {
    const found = await lying((careless) => ({
      commit: (manifest) => careless.commit(manifest.step === 2 ? { ...manifest, rolloutIds: ['g2-0'] } : manifest),
    }));
    expect(faultsIn(found)).toEqual({ altered: ['step 2'] });
  });

  it('keeps a trajectory twice', async () => {
    const found = await lying((careless) => ({
      append: async (trajectory) => {
        await careless.append(trajectory);
        if (trajectory.rolloutId === 'g1-0') careless.kept.push({ ...trajectory, turns: [] });
      },
    }));
    expect(faultsIn(found)).toMatchObject({ duplicated: ['g1-0'] });
  });

  it('acknowledges two different trajectories of one rollout, or a step twice', async () => {
    const lines: string[] = [];
    const careless = carelessStore();
    const store = recordHistory((text) => void lines.push(text)).store({
      ...careless,
      append: async () => {},
      commit: async () => {},
    });
    const trajectory = { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train', turns: [] } as unknown as Trajectory;
    await store.append(trajectory);
    await store.append({ ...trajectory, endedAt: 1 });
    await store.commit(manifestOf(1, []));
    await store.commit(manifestOf(1, []));
    const found = checkHistory({
      history: lines.join(''),
      trajectories: [trajectory],
      manifests: [manifestOf(1, [])],
      staleness: 0,
    });
    expect(faultsIn(found)).toEqual({ lost: ['r'], duplicated: ['r', 'step 1'] });
  });

  it('holds what nobody gave it', async () => {
    const found = await lying((careless) => ({
      query: async () => [...careless.kept, { ...careless.kept[0]!, rolloutId: 'nobody', turns: [] }],
      manifests: async () => (careless.committed.length < 3 ? careless.committed : [...careless.committed, manifestOf(4, [])]),
    }));
    expect(faultsIn(found)).toEqual({ unexpected: ['nobody', 'step 4'] });
  });

  it('keeps what it said it could not keep', async () => {
    const lines: string[] = [];
    const careless = carelessStore();
    const append = async (trajectory: Trajectory): Promise<void> => {
      careless.kept.push(trajectory);
      throw new Error('disk full');
    };
    const store = recordHistory((text) => void lines.push(text)).store({ ...careless, append });
    const trajectory = { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train', turns: [] } as unknown as Trajectory;
    await expect(store.append(trajectory)).rejects.toThrow('disk full');
    const found = checkHistory({ history: lines.join(''), trajectories: careless.kept, manifests: [], staleness: 0 });
    expect(faultsIn(found)).toEqual({ unexpected: ['r'] });
  });
});

describe('a run is found out when it', () => {
  const lying = (lies: Place['lies'] & object, staleness = 0) => report({ store: carelessStore(), lies }, staleness);

  it('trains a rollout in two steps, or twice in one', async () => {
    const twice = await lying({
      commit: (manifest) => (manifest.step === 2 ? { ...manifest, rolloutIds: [...manifest.rolloutIds, 'g1-0'] } : manifest),
    });
    // What was sampled by version 0 is also too old for the second step.
    expect(faultsIn(twice)).toEqual({ duplicated: ['g1-0'], stale: ['g1-0 turn 0', 'g1-0 turn 1'] });
    const inOne = await lying({
      commit: (manifest) => ({ ...manifest, rolloutIds: [...manifest.rolloutIds, `g${manifest.step}-0`] }),
    });
    expect(faultsIn(inOne)).toEqual({ duplicated: ['g1-0', 'g2-0', 'g3-0'] });
  });

  it('makes a version twice', async () => {
    const found = await lying({ commit: (manifest) => (manifest.step === 3 ? { ...manifest, policyVersion: 2 } : manifest) });
    expect(faultsIn(found)).toMatchObject({ duplicated: ['version 2'] });
  });

  it('trains an evaluation rollout, or one that was never kept', async () => {
    const found = await lying({
      commit: (manifest) => ({ ...manifest, rolloutIds: [...manifest.rolloutIds, `eval${manifest.step}-0`] }),
    });
    expect(faultsIn(found)).toEqual({ foreign: ['eval1-0', 'eval2-0', 'eval3-0'] });
    const unknown = await lying({ commit: (manifest) => ({ ...manifest, rolloutIds: [`nobody-${manifest.step}`] }) });
    expect(faultsIn(unknown)).toEqual({ foreign: ['nobody-1', 'nobody-2', 'nobody-3'] });
  });

  it.each([
    ['ids that were not sampled', firstTurn(({ sampledIds }) => ({ sampledIds: sampledIds.with(0, 5) }))],
    ['log-probabilities of other weights', firstTurn(({ logprobs }) => ({ logprobs: logprobs.with(1, -0.125) }))],
    [
      'tokens without their last',
      firstTurn((turn) => ({ sampledIds: turn.sampledIds.slice(1), logprobs: turn.logprobs.slice(1) })),
    ],
    ['another prompt than was asked', firstTurn(() => ({ promptIds: Int32Array.of(1, 2, 9) }))],
    ['a seed that was not used', firstTurn(({ sampling }) => ({ sampling: { ...sampling, seed: 1 } }))],
  ])('records %s', async (_, change) => {
    expect(faultsIn(await lying({ append: only('g2-1', change) }))).toEqual({ foreign: ['g2-1 turn 0'] });
  });

  it('records a turn of another rollout, or a retry as an extra turn', async () => {
    let other: Trajectory | undefined;
    const mixed = await lying({
      append: (trajectory) => {
        other ??= trajectory;
        return only(
          'g2-1',
          firstTurn(() => ({ ...other!.turns[0]!, policyVersion: 1 })),
        )(trajectory);
      },
    });
    expect(faultsIn(mixed)).toEqual({ foreign: ['g2-1 turn 0'] });
    const retried = await lying({
      append: only('g1-0', (trajectory) => ({
        ...trajectory,
        turns: [...trajectory.turns, { ...trajectory.turns[1]!, index: 2 }],
      })),
    });
    expect(faultsIn(retried)).toEqual({ foreign: ['g1-0 turn 2'] });
  });

  it('records another version than sampled', async () => {
    const found = await lying(
      {
        append: only(
          'g2-0',
          firstTurn(() => ({ policyVersion: 0 })),
        ),
      },
      1,
    );
    expect(faultsIn(found)).toEqual({ mixedVersion: ['g2-0 turn 0'] });
  });

  it('publishes while a rollout is under way, where that is not allowed', async () => {
    const lies = {
      afterTurn: (engine: { policyVersion: number }, id: string) => void (id === 'eval3-0' && engine.policyVersion++),
    };
    const mixed = (await lying(lies)).mixedVersion.map(({ id }) => id);
    expect(mixed).toContain('eval3-0');
    expect((await lying(lies, 1)).mixedVersion.map(({ id }) => id)).not.toContain('eval3-0');
  });

  it('trains what a version sampled that did not exist before the step', async () => {
    const found = await lying({ afterTurn: (engine, id) => void (id === 'g3-0' && engine.policyVersion++) }, 5);
    expect(faultsIn(found).mixedVersion).toContain('g3-0 turn 1');
  });

  it('trains what was sampled too many versions ago, counted from the version before the step', async () => {
    const lies: Place['lies'] = {
      commit: (manifest) => ({ ...manifest, rolloutIds: manifest.step === 3 ? ['g1-0', 'g2-0'] : [] }),
    };
    expect(faultsIn(await lying(lies, 0)).stale).toEqual(['g1-0 turn 0', 'g1-0 turn 1', 'g2-0 turn 0', 'g2-0 turn 1']);
    expect(faultsIn(await lying(lies, 1))).toEqual({ stale: ['g1-0 turn 0', 'g1-0 turn 1'] });
    expect(faultsIn(await lying(lies, 2))).toEqual({});
  });
});

describe('an engine is found out when it', () => {
  it('returns arrays that it writes the next answer into', async () => {
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
    const { foreign } = await report({ engine });
    expect(foreign.map(({ id }) => id)).toContain('g1-0 turn 0');
  });
});
