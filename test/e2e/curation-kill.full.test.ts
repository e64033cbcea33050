/** kill -9 while rollouts are marked by two processes at once: what was acknowledged holds, all of a request or nothing of it. */
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { exclusionsIn } from '../../src/core/turns.ts';
import { curate, curationIn } from '../../src/run/inspect.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { randomTrajectory } from '../../src/testing/trajectories.ts';

const FIXTURE = new URL('../fixtures/marking.ts', import.meta.url).pathname;

/** How many requests were acknowledged before it was killed. */
async function killedAfter(folder: string, rolloutIds: readonly string[], lines: number): Promise<number> {
  const child = spawn(process.execPath, [FIXTURE, folder, ...rolloutIds], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  const closed = new Promise((resolve) => child.on('close', resolve));
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    text += chunk;
    if (text.split('\n').length > lines) child.kill('SIGKILL');
  });
  await closed;
  return text.split('\n').length - 1;
}

it('marks that were acknowledged are there, whole requests only, each process as it went', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-marks-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = join(folder, 'store.sqlite');
  const pairs = [
    ['a', 'b', 'c'],
    ['x', 'y', 'z'],
  ] as const;
  {
    await using store = await openSqliteStore(file);
    for (const rolloutId of pairs.flat()) await store.append(randomTrajectory(1, { rolloutId, purpose: 'train' }));
  }
  const acknowledged = await Promise.all(pairs.map((ids, i) => killedAfter(folder, ids, 20 + 7 * i)));
  await using store = await openSqliteStore(file);
  const marks = await store.marks();
  for (const [i, ids] of pairs.entries()) {
    const own = marks.filter(({ rolloutId }) => (ids as readonly string[]).includes(rolloutId));
    const requests = own.length / ids.length;
    // The last one may be there before it could be said.
    expect([acknowledged[i]!, acknowledged[i]! + 1]).toContain(requests);
    expect(own.map(({ rolloutId, at, excluded }) => [rolloutId, at, excluded])).toEqual(
      Array.from({ length: requests }, (_, at) => ids.map((id) => [id, at + 1, at % 2 === 0])).flat(),
    );
  }
  // What holds is what the last request of each said.
  const held = exclusionsIn(marks).map(({ rolloutId }) => rolloutId);
  const last = pairs.filter((ids) => marks.findLast(({ rolloutId }) => rolloutId === ids[0])!.excluded).flat();
  expect(held).toEqual(last.toSorted());
});

it('reasons are kept as they were given, whatever is in them', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-marks-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  await using store = await openSqliteStore(join(folder, 'store.sqlite'));
  await store.append(randomTrajectory(1, { rolloutId: 'a', purpose: 'train' }));
  for (const reason of ['a\u0000b', '\u001b[31mred\nrow two · no longer excluded', 'half \ud800', '"; drop table marks; --']) {
    await curate(store, { rolloutIds: ['a'], reason });
    expect((await curationIn(store))[0]?.reason).toBe(reason);
    expect(await curate(store, { rolloutIds: ['a'], reason })).toEqual([]);
  }
});
