/** Many thousands of trajectories and sessions that end: what is in memory is what is open, not what was. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { type LiveSession, SessionTable } from '../../src/gateway/sessions.ts';
import { OpenRollouts } from '../../src/serve/open-rollouts.ts';
import { GroupPool } from '../../src/shapes/flows/group-pool.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { temporaryFolder } from '../fixtures/folder.ts';

const MANY = 6000;
const { turns } = Array.from({ length: 100 }, (_, seed) => randomTrajectory(seed)).find((one) => one.turns.length > 0)!;
const ended = (i: number): Trajectory => ({
  ...{ rolloutId: `r${i}`, groupId: `g${i}`, taskId: 't', purpose: 'train', outcome: { kind: 'completed' } },
  ...{ startedAt: 0, endedAt: 0 },
  ...{ grade: { kind: 'graded', reward: { value: 1 } }, turns: turns.map((turn) => ({ ...turn, trainable: true })) },
});

it('a pool that handed out thousands of groups holds the last thousand batches, also when opened again', async () => {
  await using store = await openSqliteStore(join(temporaryFolder(), 'store.sqlite'));
  const options = { store, clock: { now: () => 0 }, group: 1 };
  const pool = await GroupPool.open(options);
  const patience = new AbortController().signal;
  for (let i = 0; i < MANY; i += 300) {
    await Promise.all(Array.from({ length: 300 }, (_, j) => pool.keep(ended(i + j))));
    for (let j = 0; j < 300; j += 3) await pool.fetch({ purpose: 'train', groups: 3, batchId: `b${i + j}` }, patience);
  }
  expect(pool.sizes).toEqual({ waiting: 0, batches: 1000 });
  const again = await GroupPool.open(options);
  expect(again.sizes).toEqual({ waiting: 0, batches: 1000 });
  expect(again.counts('train')).toMatchObject({ kept: MANY, served: MANY, servedGroups: MANY, waiting: 0 });
  // What left the memory is still known: nothing is taken twice, and no closed group opens again.
  await again.keep(ended(0));
  await expect(again.keep({ ...ended(1), rolloutId: 'late' })).rejects.toMatchObject({ row: { code: 'group_closed' } });
  expect(again.counts('train')).toMatchObject({ kept: MANY, late: 1, waiting: 0 });
});

it('a journal of open rollouts holds those that are open, in memory and on disk', async () => {
  const dir = join(temporaryFolder(), 'open');
  const journal = await OpenRollouts.open(dir, 'policy');
  const table = new SessionTable({ clock: { now: () => 0 }, idleMs: 1e9, journal, handle: () => ({}) as never });
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 9 };
  const limits = { turns: 100, tokens: 1000, deadlineMs: 1e9 };
  const open = async (i: number): Promise<LiveSession> => {
    const identity = { rolloutId: `r${i}`, groupId: 'g', taskId: 't', purpose: 'train' } as const;
    const session = table.open({ identity, roles: {}, sampling, limits, seed: 1, signal: new AbortController().signal }, true);
    await journal.opened(session);
    return session;
  };
  for (let i = 0; i < 3000; i += 100) {
    const sessions = await Promise.all(Array.from({ length: 100 }, (_, j) => open(i + j)));
    await Promise.all(
      sessions.map((session) => {
        session.seal();
        return journal.remove(session.number);
      }),
    );
  }
  await open(3000);
  expect([journal.size, table.size, (await readdir(dir)).length]).toEqual([1, 1, 2]);
});
