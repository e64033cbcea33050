/** kill -9 while groups are kept and handed out: what was acknowledged is there, and nothing is handed out twice. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { GroupPool } from '../../src/shapes/flows/group-pool.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { jsonLines } from '../cli/command.ts';
import { temporaryFolder } from '../fixtures/folder.ts';

const FIXTURE = new URL('../fixtures/group-pool.ts', import.meta.url).pathname;
interface Said {
  readonly kept?: string;
  readonly asks?: string;
  readonly batchId?: string;
  readonly served?: readonly string[];
}

/** What it said, in whole lines, before it was killed: as soon as it has said this many. */
async function killedAfter(folder: string, life: number, lines: number): Promise<readonly Said[]> {
  const child = spawn(process.execPath, [FIXTURE, folder, String(life)], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  const closed = once(child, 'close');
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    text += chunk;
    if (text.split('\n').length > lines) child.kill('SIGKILL');
  });
  await closed;
  return jsonLines<Said>(text.slice(0, text.lastIndexOf('\n')));
}

it('loses nothing that was acknowledged and hands out nothing twice, over several lives', async () => {
  const folder = temporaryFolder();
  const said: Said[] = [];
  for (const [life, lines] of [7, 40, 23].entries()) said.push(...(await killedAfter(folder, life, lines)));
  await using store = await openSqliteStore(join(folder, 'store.sqlite'));
  const kept = said.flatMap((line) => line.kept ?? []);
  const inStore = new Set((await store.query()).map(({ rolloutId }) => rolloutId));
  expect(kept.length).toBeGreaterThan(10);
  expect(kept.filter((id) => !inStore.has(id))).toEqual([]);
  const served = said.flatMap((line) => line.served ?? []);
  expect(served.length).toBeGreaterThan(4);
  expect(new Set(served).size).toBe(served.length);

  // A batch whose answer was lost is had again by its id; everything else is handed out once, to the end.
  const pool = await GroupPool.open({ store, clock: { now: Date.now }, group: 1 });
  pool.close();
  const asked = said.flatMap((line) => line.asks ?? []);
  const answered = new Set(said.flatMap((line) => (line.served === undefined ? [] : [line.batchId])));
  const committed = new Set((await store.manifests()).flatMap(({ batchId }) => batchId ?? []));
  const lost = asked.filter((id) => committed.has(id) && !answered.has(id));
  const idsOf = async (batchId?: string): Promise<readonly string[]> => {
    const fetched = await pool.fetch({ purpose: 'train', groups: 1, batchId }, AbortSignal.timeout(5000));
    return fetched.kind === 'batch' ? [...new Set(fetched.steps.map(({ rolloutId }) => rolloutId))] : [];
  };
  for (const id of lost) served.push(...(await idsOf(id)));
  for (let more = await idsOf(); more.length > 0; more = await idsOf()) served.push(...more);
  expect(served.toSorted()).toEqual([...inStore].toSorted());
});
