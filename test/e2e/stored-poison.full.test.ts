/** What cannot be trained may be in a store, from an older version or another machine: the message names the way out, and that works. */
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';
import { TrainyardError } from '../../src/core/errors.ts';
import type { Turn } from '../../src/core/types.ts';
import { resume, type TrainOptions, train } from '../../src/training/train.ts';
import { trainyard } from '../cli/command.ts';
import { storeWith, useSmallHome } from './small-run.ts';

const home = useSmallHome();

const begin = (run: string, through: TrainOptions['through']) => {
  const settings = { steps: 1, group: 4, groupsPerStep: 2, evalEvery: 0, concurrency: 4 };
  return train({ entry: home.entry, tasks: join(home.dir, 'train.jsonl'), run, ...settings }, () => {}, { through: through! });
};
const refusalOf = async (work: Promise<unknown>): Promise<TrainyardError | undefined> => {
  const thrown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  if (thrown === undefined || thrown instanceof TrainyardError) return thrown;
  throw thrown;
};

/** Does what the hints say, until the run goes on. */
async function followHints(run: string, code: string): Promise<string[]> {
  const left: string[] = [];
  for (let times = 0; times < 9; times++) {
    const refused = await refusalOf(resume({ run }));
    if (refused === undefined) return left;
    expect(refused.code).toBe(code);
    const [command = ''] = /trainyard curate .*?--reason "why"/.exec(refused.hint ?? '') ?? [];
    expect(refused.hint).toContain(`then trainyard train --resume ${run}`);
    const args = command.replaceAll('"', '').split(' ').slice(1);
    left.push(...args.slice(2, -2));
    expect(await trainyard(...args)).toMatchObject({ code: 0 });
  }
  throw new Error('it never went on');
}

/** In the first group, as if a worker had returned it. */
const POISON: Record<string, [code: string, poison: (turn: Turn) => Partial<Turn>]> = {
  vocabulary: ['SAMPLE_REFUSED', ({ sampledIds }) => ({ sampledIds: sampledIds.map(() => 999_999) })],
  infinite: ['SAMPLE_REFUSED', ({ logprobs }) => ({ logprobs: logprobs.map(() => -Infinity) })],
  long: ['SAMPLE_REFUSED', () => ({ promptIds: new Int32Array(5_000).fill(5) })],
  truncated: [
    'SAMPLE_REFUSED',
    ({ sampling }) => ({ sampling: { ...sampling, effective: { ...sampling.effective, topP: 0.1 } } }),
  ],
  unlikely: ['POLICY_DISAGREES', ({ logprobs }) => ({ logprobs: logprobs.map(() => -19) })],
};

it.each(Object.entries(POISON))(
  'a rollout whose turns are poisoned (%s) is named at every resume, until it is left out',
  async (name, [code, poison]) => {
    const run = join(home.dir, name);
    const first = begin(run, {
      store: (store) =>
        storeWith(store, {
          append: (trajectory) => {
            const isFirst = trajectory.groupId === 'g000001';
            if (isFirst) Object.assign(trajectory, { turns: trajectory.turns.map((turn) => ({ ...turn, ...poison(turn) })) });
            return store.append(trajectory);
          },
        }),
    });
    expect(await refusalOf(first)).toMatchObject({ code, hint: expect.stringContaining('trainyard curate') });
    const left = await followHints(run, code);
    expect(left.length).toBeGreaterThan(0);
    expect(left.filter((id) => !id.startsWith('g000001-'))).toEqual([]);
  },
);

it('a rollout that is damaged on disk is named at every resume, until it is left out', async () => {
  const run = join(home.dir, 'damaged');
  const commit = (): Promise<void> => Promise.reject(new TrainyardError('STORE_FAILED', 'the disk is full'));
  expect(await refusalOf(begin(run, { store: (store) => storeWith(store, { commit }) }))).toMatchObject({ code: 'STORE_FAILED' });
  const file = new DatabaseSync(join(run, 'store.sqlite'));
  file.exec("UPDATE trajectories SET digest = x'00' WHERE rollout_id IN ('g000001-1', 'g000002-0')");
  file.close();
  expect((await followHints(run, 'STORE_FORMAT')).toSorted()).toEqual(['g000001-1', 'g000002-0']);
});
