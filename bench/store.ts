/**
 * Durable trajectories of 24 KB a second: `npm run bench -- store [--json]`. Each store beside the least that could be durable: SQLite beside a
 * file to which the same bytes are appended, with one `fdatasync` a batch; PostgreSQL beside `pgbench` with one plain INSERT of the same bytes
 * a row, one transaction each, from as many clients as a server handles well. The server is a fresh one with its own settings (fsync on).
 */
import { mkdtemp, open, rm } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { randomTrajectory } from '../packages/testing/src/trajectories.ts';
import type { Store } from '../src/core/contracts.ts';
import type { Trajectory } from '../src/core/types.ts';
import { openStore } from '../src/store/open.ts';
import { encodeTrajectory } from '../src/store/records.ts';
import { postgresMissing, startPostgres } from '../test/postgres/server.ts';
import { besideFloor, plainInserts } from './pgbench.ts';

const BYTES = 24_000;
const BATCH = 500;
const SECONDS = 6;

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-store-'));
  try {
    const bytes = sizeOf(rolloutOf(0));
    console.log(`${bytes} bytes a rollout, load ${loadavg()[0]!.toFixed(1)}`);
    const sqlite = besideFloor(
      'SQLite',
      await storing(join(folder, 'store.sqlite')),
      await segmentFile(join(folder, 'segment'), bytes),
    );
    if (postgresMissing !== undefined) return { bytes, sqlite, postgres: postgresMissing };
    await using server = await startPostgres();
    const floor = await plainInserts(server, bytes, SECONDS);
    return { bytes, sqlite, postgres: besideFloor('PostgreSQL', await storing(server.url()), floor) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Two batches are always under way: while one is written, the next is encoded. */
async function storing(where: string): Promise<number> {
  await using store: Store = await openStore(where, 'bench');
  let next = 0;
  const batches = async (until: number): Promise<void> => {
    while (performance.now() < until) await Promise.all(Array.from({ length: BATCH }, () => store.append(rolloutOf(next++))));
  };
  await batches(performance.now() + 500);
  const before = next;
  const started = performance.now();
  await Promise.all([0, 1].map(() => batches(started + 1_000 * SECONDS)));
  return (1_000 * (next - before)) / (performance.now() - started);
}

async function segmentFile(path: string, bytes: number): Promise<number> {
  const batch = Buffer.alloc(BATCH * bytes, 7);
  const file = await open(path, 'w');
  const started = performance.now();
  let n = 0;
  for (; performance.now() < started + 1_000 * SECONDS; n += BATCH) {
    await file.write(batch);
    await file.datasync();
  }
  const seconds = (performance.now() - started) / 1_000;
  await file.close();
  return n / seconds;
}

function sizeOf(trajectory: Trajectory): number {
  const { record, turns } = encodeTrajectory(trajectory);
  return turns.reduce(
    (sum, { words, promptIds, sampledIds, logprobs }) =>
      sum + Buffer.byteLength(words) + promptIds.length + sampledIds.length + logprobs.length,
    Buffer.byteLength(record),
  );
}

const [TURN] = [1, 2, 3, 4, 5].map((seed) => randomTrajectory(seed)).find(({ turns }) => turns.length > 0)!.turns;
const ids = (n: number): Int32Array => Int32Array.from({ length: n }, (_, i) => (i * 7919) % 50_000);

/** Four turns of 6 KB each: about half tokens, half words. Made once, so that making it is not measured. */
const request = { messages: [{ role: 'user' as const, content: 'What is left of it? '.repeat(BYTES / 4 / 2 / 20) }], tools: [] };
const tokens = { promptIds: ids(440), sampledIds: ids(120), logprobs: new Float32Array(120).fill(-0.5) };
const ROLLOUT = randomTrajectory(1, { turns: [0, 1, 2, 3].map((index) => ({ ...TURN!, index, request, ...tokens })) });

function rolloutOf(n: number): Trajectory {
  return { ...ROLLOUT, rolloutId: `rollout-${n}`, groupId: `group-${n >> 3}`, taskId: `task-${n % 500}` };
}
