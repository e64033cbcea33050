/** Training from the rollouts that a run kept: without marks it is the same training, with marks it is without what they exclude. */
import { cp, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { beforeAll, describe, expect, it } from 'vitest';
import { verify } from '../../src/audit/verify.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { masked } from '../../src/core/policy.ts';
import { curate } from '../../src/run/inspect.ts';
import { takeLock } from '../../src/store/files.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { resume, train } from '../../src/training/train.ts';
import { trainerLogprobsOf } from '../../src/training/trainer-logprobs.ts';
import { refusal } from '../fixtures/refusal.ts';
import { storeWith, useSmallHome } from './small-run.ts';

const STEPS = 3;
const home = useSmallHome();
let source: string;
const at = (name: string): string => join(home.dir, name);
const weights = (run: string): Promise<Buffer> => readFile(join(run, 'checkpoints', 'step-000003', 'model.safetensors'));
const storeOf = (run: string) => openSqliteStore(join(run, 'store.sqlite'));

beforeAll(async () => {
  source = at('source');
  const files = { entry: home.entry, tasks: at('train.jsonl'), heldOut: at('held-out.jsonl') };
  await train({ ...files, run: source, steps: STEPS, group: 4, groupsPerStep: 2, evalEvery: 0 });
});

describe('training from a run', () => {
  it('without marks is the training of that run again, bit for bit, also when it was interrupted and resumed', async () => {
    const run = at('again');
    const halfway = train({ from: source, run }, () => {}, {
      through: {
        store: (store) =>
          storeWith(store, {
            commit: async (manifest) => {
              if (manifest.step === 2) throw new Error('pulled the plug');
              await store.commit(manifest);
            },
          }),
      },
    });
    await expect(halfway).rejects.toThrow('pulled the plug');
    await resume({ run });
    expect((await weights(run)).equals(await weights(source))).toBe(true);
    const { different, steps, rewards, unchecked } = await verify({ run });
    expect({ different, steps }).toEqual({ different: 0, steps: STEPS });
    await using store = await storeOf(run);
    const compared = (await store.manifests()).map(({ metrics }) => metrics['comparedTokens']);
    expect(compared, 'of the policy that both runs began with').toEqual([expect.any(Number), undefined, undefined]);
    expect(rewards).toBeGreaterThan(0);
    expect(unchecked.join()).toContain('which made them');
  });

  it('is refused if the log-probabilities are not those of the model that both runs began with', async () => {
    const lying = at('lying');
    await cp(source, lying, { recursive: true });
    await using kept = await storeOf(source);
    await Promise.all(['', '-wal', '-shm'].map((end) => rm(join(lying, `store.sqlite${end}`), { force: true })));
    {
      await using store = await storeOf(lying);
      for (const trajectory of await kept.query({ purpose: 'train' })) {
        const turns = trajectory.turns.map((turn) => ({ ...turn, logprobs: turn.logprobs.map(() => -3) }));
        await store.append({ ...trajectory, turns });
      }
    }
    const run = at('from-false');
    await expect(train({ from: lying, run })).rejects.toThrow(
      refusal('POLICY_DISAGREES', undefined, `sampled by other weights than ${lying} began with`),
    );
    await using store = await storeOf(run);
    expect(await store.manifests()).toEqual([]);
  });

  it('trains nothing that is excluded, each rollout once, and ends when all are used', async () => {
    await using kept = await storeOf(source);
    const [first] = await kept.manifests();
    const [excluded = ''] = first!.rolloutIds;
    await curate(kept, { rolloutIds: [excluded], reason: 'a tool was down' });
    const events: RunEvent[] = [];
    const run = at('curated');
    await train({ from: source, run, steps: 50 }, (event) => events.push(event));
    expect(events.findLast(({ type }) => type === 'done')).toMatchObject({ ending: 'rollouts' });
    await using store = await storeOf(run);
    const trained = (await store.manifests()).flatMap(({ rolloutIds }) => rolloutIds);
    expect(trained).not.toContain(excluded);
    expect(new Set(trained).size).toBe(trained.length);
    expect(await store.read(excluded)).toEqual(await kept.read(excluded));
    await curate(kept, { rolloutIds: [excluded], undo: true });
  });

  it('never trains what is held out, and refuses what is no training run', async () => {
    const heldOut = [...(await readFile(at('train.jsonl'), 'utf8')).split('\n')].map((line) => JSON.parse(line) as object);
    const events: RunEvent[] = [];
    const asked = train({ from: source, run: at('leak'), heldOut }, (event) => events.push(event));
    await expect(asked).rejects.toMatchObject({ code: 'DATASET_INVALID' });
    expect(events).toContainEqual(expect.objectContaining({ code: 'LEFT_OUT' }));
    expect(events.some(({ type }) => type === 'eval-end')).toBe(false);
    await expect(train({ from: home.dir, run: at('none') })).rejects.toMatchObject({ code: 'FILE_NOT_FOUND' });
  });

  it('leaves out groups that the other run did not finish, and refuses one that goes on', async () => {
    const killed = at('killed');
    await cp(source, killed, { recursive: true });
    const store = new DatabaseSync(join(killed, 'store.sqlite'));
    const { group_id: group } = store.prepare("SELECT group_id FROM trajectories WHERE purpose = 'train' ORDER BY seq").get()!;
    store.exec(`PRAGMA foreign_keys = OFF; DELETE FROM trajectories WHERE rollout_id = '${group}-0'`);
    store.close();
    const events: RunEvent[] = [];
    const run = at('unfinished');
    await train({ from: killed, run, steps: 1 }, (event) => events.push(event));
    expect(events).toContainEqual(expect.objectContaining({ code: 'LEFT_OUT', message: expect.stringContaining('3 rollouts') }));
    await using kept = await storeOf(run);
    expect((await kept.query({ groupId: String(group) })).length).toBe(0);
    using _lock = takeLock(killed);
    await expect(train({ from: killed, run: at('locked') })).rejects.toMatchObject({ code: 'RUN_LOCKED' });
  });

  it('keeps what the trainer said of each trained token, which is what the embedded engine said', async () => {
    await using store = await storeOf(source);
    const { step, rolloutIds } = (await store.manifests())[0]!;
    for (const rolloutId of rolloutIds) {
      const { turns, groupId } = (await store.read(rolloutId))!;
      const samples = stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId, groupId });
      expect(trainerLogprobsOf(source, step, rolloutId)).toEqual(samples.map((sample) => masked(sample, sample.logprobs)));
    }
    expect(trainerLogprobsOf(source, STEPS + 1, rolloutIds[0]!)).toBeUndefined();
  });
});
