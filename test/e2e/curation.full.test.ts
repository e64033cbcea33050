/** Marks made while a run is going: the next batch is made without them, and a step computed again is as it was. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/core/contracts.ts';
import type { RunEvent } from '../../src/core/events.ts';
import type { BatchManifest, Mark } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { resume, train } from '../../src/training/train.ts';
import { jsonLines, trainyard } from '../cli/command.ts';
import { storeWith, useSmallHome } from './small-run.ts';

const home = useSmallHome();
let run: string;
const events: RunEvent[] = [];
let manifests: readonly BatchManifest[];
/** What is marked as soon as the first step is committed, in groups that the second one may train. */
let marked: readonly Mark[];

/** Marks the first rollout that ends after step 1 whole, and the first turn of the second one: by the command, as somebody who looks on would. */
function marking(store: Store): Store {
  let [committed, ended] = [0, 0];
  /** One after the other: rollouts end at the same time, and the marks have an order. */
  let latest: Promise<unknown> = Promise.resolve();
  const mark = async (rolloutId: string): Promise<void> => {
    const place = ++ended === 1 ? [] : ended === 2 ? ['--turn', '0'] : undefined;
    if (place === undefined) return;
    latest = latest.then(() => trainyard('curate', run, rolloutId, ...place, '--reason', 'seen by hand'));
    expect(await latest).toMatchObject({ code: 0 });
  };
  return storeWith(store, {
    append: async (trajectory) => {
      await store.append(trajectory);
      if (committed === 1 && trajectory.purpose === 'train') await mark(trajectory.rolloutId);
    },
    commit: async (manifest) => {
      await store.commit(manifest);
      committed++;
    },
  });
}

beforeAll(async () => {
  run = join(home.dir, 'run');
  const settings = { steps: 3, group: 6, groupsPerStep: 2, checkpointEvery: 10, evalEvery: 0, concurrency: 6 };
  const files = { entry: home.entry, tasks: join(home.dir, 'train.jsonl'), heldOut: join(home.dir, 'held-out.jsonl') };
  await train({ ...files, run, ...settings }, (event) => events.push(event), { through: { store: marking } });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  [manifests, marked] = [await store.manifests(), await store.marks()];
});

describe('what is marked while a run is going', () => {
  it('is in no batch from then on, and each manifest says what was left out of it', () => {
    const [whole, turn] = marked;
    const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    expect(trained).not.toContain(whole!.rolloutId);
    const excluded = manifests.flatMap((manifest) => manifest.excluded ?? []);
    expect(manifests[0]).not.toHaveProperty('excluded');
    // Which of the two is named first depends on which of them ended first.
    expect(excluded).toHaveLength(2);
    expect(excluded).toEqual(expect.arrayContaining([{ rolloutId: whole!.rolloutId }, { rolloutId: turn!.rolloutId, turn: 0 }]));
    const reported = events.flatMap((event) => (event.type === 'step-end' ? [event.excludedRollouts] : []));
    expect(reported.reduce((sum, n) => sum + n, 0)).toBe(1);
  });

  it('is left out again when its step is computed again, also after it was taken back', async () => {
    const undone = await trainyard('curate', run, marked[0]!.rolloutId, '--undo');
    expect(undone).toMatchObject({ code: 0, stdout: expect.stringContaining('no longer excluded') });
    // Without a checkpoint all three steps are computed again.
    await rm(join(run, 'checkpoints'), { recursive: true });
    const again: RunEvent[] = [];
    await resume({ run, steps: 4 }, (event) => again.push(event));
    expect(again.filter(({ type }) => type === 'warning')).toEqual([]);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    expect((await store.manifests()).slice(0, 3)).toEqual(manifests);
  });
});

describe('trainyard curate', () => {
  it('lists what is excluded, and says of what was trained that it stays so', async () => {
    const [trained] = manifests[0]!.rolloutIds;
    const made = await trainyard('curate', run, trained!, '--reason', 'too \u001b[31mlate');
    expect(made.stdout).toMatch(new RegExp(`${trained} · excluded · too .*late · trained in step 1: that stays\n1 mark made`));
    expect(made.stdout).not.toContain('\u001b[31m');
    const list = await trainyard('curate', run, '--json');
    expect(jsonLines<Mark>(list.stdout).map(({ rolloutId }) => rolloutId)).toEqual([trained, marked[1]!.rolloutId]);
    expect((await trainyard('show', run, trained!)).stdout).toContain('excluded: too');
    expect((await trainyard('show', run, marked[1]!.rolloutId)).stdout).toMatch(/1 turn excluded[\s\S]*excluded: seen by hand/);
  });
});
