/**
 * Rollouts a second through the queue of workers: `npm run bench -- queue [--json]`. Queued, claimed, and finished with a small result, which is
 * written in the transaction that completes the job; meanwhile the coordinator reads results and removes them, as in a run. Real PostgreSQL,
 * fresh, with its own settings (fsync on). Beside `pgbench` with one plain INSERT of the bytes of a job and its result, one transaction each.
 *
 * Counted is what was acknowledged to a worker. All parts share this process and the server's machine. Also: what looks cost that find nothing, for
 * a worker that is free and for a coordinator that waits for many.
 */
import { randomUUID } from 'node:crypto';
import { loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { randomTrajectory } from '../packages/testing/src/trajectories.ts';
import type { Trajectory } from '../src/core/types.ts';
import { jobIdOf, type RolloutJob, WorkQueue } from '../src/places/workers/queue.ts';
import { openStore } from '../src/store/open.ts';
import { encodeTrajectory } from '../src/store/records.ts';
import { postgresMissing, startPostgres } from '../test/postgres/server.ts';
import { besideFloor, type Measured, plainInserts } from './pgbench.ts';

const SECONDS = 5;
const ROUNDS = 3;
/** Jobs that a worker takes and finishes at once, and that the coordinator keeps queued. */
const BATCH = 200;
const AHEAD = 1_000;
const WORKERS = 2;
const RUN = 'bench';
/** Rollouts that a coordinator waits for: 32 places each on 1, 10, 100 and 1,000 machines. */
const WAITED = [32, 320, 3_200, 32_000];

/** One short turn. */
const [TURN] = [1, 2, 3, 4, 5].map((seed) => randomTrajectory(seed)).find(({ turns }) => turns.length > 0)!.turns;
const RESULT: Trajectory = { ...randomTrajectory(1), turns: [TURN!], grade: { kind: 'ungraded', why: 'not yet' } };

function jobOf(n: number): RolloutJob {
  const taskId = `task-${n % 500}`;
  const content = 'What do five items cost, and how many are left?';
  return {
    identity: { rolloutId: `rollout-${n}`, groupId: `group-${n >> 3}`, taskId, purpose: 'train' },
    task: { id: taskId, prompt: [{ role: 'user', content }] },
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 256 },
    version: 0,
    weights: '',
  };
}

class Line {
  readonly #coordinator: WorkQueue;
  readonly #workers: readonly WorkQueue[];
  readonly #waiting = new Set<string>();
  #sent = 0;
  /** Acknowledged to a worker. */
  finished = 0;

  constructor(coordinator: WorkQueue, workers: readonly WorkQueue[]) {
    this.#coordinator = coordinator;
    this.#workers = workers;
  }

  async until(end: number): Promise<void> {
    const workers = this.#workers.map((queue, place) => this.#work(queue, `worker-${place}`, end));
    await Promise.all([this.#coordinate(end), ...workers]);
  }

  /** In the order of a run's coordinator, one statement after another. */
  async #coordinate(end: number): Promise<void> {
    while (performance.now() < end) {
      const jobs = Array.from({ length: this.finished + AHEAD - this.#sent }, () => jobOf(this.#sent++));
      for (const job of jobs) this.#waiting.add(jobIdOf(RUN, job));
      await this.#coordinator.send(RUN, jobs);
      const results = await this.#coordinator.results(RUN, [...this.#waiting]);
      for (const job of results.keys()) this.#waiting.delete(job);
      await this.#coordinator.forget(RUN, [...results.keys()]);
      if (results.size === 0) await sleep(2);
    }
  }

  async #work(queue: WorkQueue, name: string, end: number): Promise<void> {
    while (performance.now() < end) {
      const claimed = await queue.claim(RUN, BATCH, name);
      if (claimed.length === 0) {
        await sleep(2);
        continue;
      }
      const ended = claimed.map((one) => ({ ...one, trajectory: { ...RESULT, ...one.job.identity }, files: [] }));
      const late = await queue.finish(RUN, ended);
      if (late.length > 0) throw new Error(`${late.length} of ${claimed.length} jobs lost their lease`);
      this.finished += claimed.length;
    }
  }
}

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  if (postgresMissing !== undefined) return { missing: postgresMissing };
  await using server = await startPostgres();
  const bytes = sizeOf();
  console.log(
    `${bytes} bytes a job with its result, ${WORKERS} workers that take ${BATCH} at once, load ${loadavg()[0]!.toFixed(1)}`,
  );
  // The queue's tables are beside the store's.
  await (await openStore(server.url(), RUN))[Symbol.asyncDispose]();
  await using coordinator = await WorkQueue.create(server.url());
  await coordinator.openRun(RUN, { release: '', entry: '', settings: {}, sources: {}, kernels: '' });
  const workers = await Promise.all(
    Array.from({ length: WORKERS }, async () => (await WorkQueue.join(server.url(), new AbortController().signal))!),
  );
  const line = new Line(coordinator, workers);
  const rounds: Measured[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const floor = await plainInserts(server, bytes, SECONDS);
    await line.until(performance.now() + 500);
    const before = line.finished;
    const started = performance.now();
    await line.until(started + 1_000 * SECONDS);
    rounds.push(besideFloor('queue', (1_000 * (line.finished - before)) / (performance.now() - started), floor));
  }
  const looks = await emptyLooks(coordinator, workers[0]!);
  for (const queue of workers) await queue[Symbol.asyncDispose]();
  const [, median] = rounds.toSorted((a, b) => a.perSecond - b.perSecond);
  return { ...median!, bytes, rounds, looks, load: Number(loadavg()[0]!.toFixed(1)) };
}

interface Look {
  readonly look: string;
  readonly ms: number;
}

/** The median of some. Nothing is queued, and no results are there. */
async function emptyLooks(coordinator: WorkQueue, worker: WorkQueue): Promise<readonly Look[]> {
  const timed = async (look: string, act: () => Promise<unknown>): Promise<Look> => {
    const times: number[] = [];
    for (let n = 0; n < 21; n++) {
      const started = performance.now();
      await act();
      times.push(performance.now() - started);
    }
    return { look, ms: Number(times.toSorted((a, b) => a - b)[10]!.toFixed(2)) };
  };
  const idle = 'idle';
  await coordinator.openRun(idle, { release: '', entry: '', settings: {}, sources: {}, kernels: '' });
  const looks = [await timed('a worker for a rollout', () => worker.claim(idle, 8, 'worker'))];
  for (const waited of WAITED) {
    const ids = Array.from({ length: waited }, () => randomUUID());
    looks.push(await timed(`the coordinator for ${waited} results`, () => coordinator.results(RUN, ids)));
  }
  for (const { look, ms } of looks) console.log(`${look}: ${ms} ms`);
  return looks;
}

function sizeOf(): number {
  const { record, turns } = encodeTrajectory(RESULT);
  const sizes = turns.map(({ words, ...ids }) => Buffer.byteLength(words) + 2 * ids.sampledIds.length + ids.promptIds.length);
  return sizes.reduce((sum, size) => sum + size, JSON.stringify(jobOf(0)).length + Buffer.byteLength(record));
}
