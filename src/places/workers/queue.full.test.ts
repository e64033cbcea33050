/** What coordinator and workers share, without either: attempts, results, and a database that is away. */
import { mkdir } from 'node:fs/promises';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { randomTrajectory } from '../../../packages/testing/src/trajectories.ts';
import { databaseFor, needsPostgres } from '../../../test/postgres/server.ts';
import { until } from '../../../test/workers/site.ts';
import { openPostgresStore } from '../../store/postgres.ts';
import { Connections } from '../../store/postgres-connection.ts';
import { Coordinator } from './coordinator.ts';
import { ATTEMPTS, type ClaimedJob, jobIdOf, type RolloutJob, type RunSpec, WorkQueue } from './queue.ts';

const SPEC: RunSpec = { release: '0', entry: 'agent.ts', settings: {}, sources: {}, kernels: 'simd' };
const jobOf = (rolloutId: string): RolloutJob => ({
  identity: { rolloutId, groupId: 'g', taskId: 't', purpose: 'train' },
  task: { id: 't', prompt: [] },
  sampling: { temperature: 1, maxTokens: 1 } as unknown as RolloutJob['sampling'],
  version: 0,
  weights: '',
});
const finished = (claimed: ClaimedJob, output: string) => {
  const grade = { kind: 'ungraded', why: 'completed' } as const;
  return { ...claimed, trajectory: randomTrajectory(1, { ...claimed.job.identity, output, grade }), files: [] };
};

/** Of these results, none has a turn. */
const CHECKS = { policy: { model: () => '' }, limits: { turns: 9, tokens: 9, deadlineMs: 9 }, isTrained: () => true };

const FORGED = `INSERT INTO trainyard.results (run, job, attempt, record, digest, words, prompt_ids, sampled_ids, logprobs)
  VALUES ($1, $2, 1, '{}', 'x', '{}', '{}', '{}', '{}')`;

describe('the queue of rollouts', needsPostgres, () => {
  let database: Awaited<ReturnType<typeof databaseFor>>;
  let queue: WorkQueue;
  beforeAll(async () => {
    database = await databaseFor();
    await (await openPostgresStore(database.url, 'any'))[Symbol.asyncDispose]();
    queue = await WorkQueue.create(database.url);
  });
  afterAll(async () => {
    await queue[Symbol.asyncDispose]();
    await database[Symbol.asyncDispose]();
  });
  const claim = async (run: string): Promise<ClaimedJob> => (await queue.claim(run, 1, 'worker'))[0]!;

  it('counts failures of a rollout, and not how often it was given back; an attempt that was given back writes nothing', async () => {
    await queue.openRun('counts', SPEC);
    await queue.send('counts', [jobOf('a')]);
    const first = await claim('counts');
    await queue.giveBack('counts', [first]);
    for (let time = 0; time < ATTEMPTS; time++) await queue.giveBack('counts', [await claim('counts')]);
    expect(await queue.finish('counts', [finished(first, 'late')])).toHaveLength(1);
    for (let time = 0; time < ATTEMPTS; time++) {
      expect(await queue.parked('counts')).toEqual(new Map());
      await queue.fail('counts', [await claim('counts')], 'it broke');
    }
    expect([...(await queue.parked('counts'))]).toMatchObject([[first.id, { reason: 'it broke' }]]);
    expect(await queue.results('counts', [first.id])).toEqual(new Map());
  });

  it('fails a job that cannot be read by itself, and gives out the others', async () => {
    await queue.openRun('unread', SPEC);
    const jobs = ['a', 'b', 'c', 'd', 'e'].map(jobOf);
    await queue.send('unread', jobs);
    const [good, ...bad] = jobs.map((job) => jobIdOf('unread', job));
    const damaged = ['{"job":"not JSON"}', '{"job":"null"}', '{"job":"{}"}', 'null'];
    const damage = 'UPDATE trainyard_queue.job SET data = $2 WHERE id = $1';
    for (const [i, data] of damaged.entries()) await queue.query('damage a job', damage, [bad[i], data]);
    const claimed: string[] = [];
    for (let time = 0; time <= ATTEMPTS; time++) claimed.push(...(await queue.claim('unread', 8, 'worker')).map(({ id }) => id));
    expect(claimed).toEqual([good]);
    const parked = await queue.parked('unread');
    expect([...parked.keys()].toSorted()).toEqual(bad.toSorted());
    expect(parked.get(bad[0]!)).toMatchObject({ reason: 'its job in the queue cannot be read', attempts: [{}, {}, {}] });
  });

  it('queues again, when a run opens, whatever no worker will ever end', async () => {
    const told = [
      "state = 'failed'",
      "state = 'cancelled'",
      "state = 'completed'",
      "state = 'active', started_on = now(), heartbeat_on = 'infinity'",
      "state = 'active', started_on = 'infinity'",
      'blocked = true, pending_dependencies = 5',
    ];
    await queue.openRun('held', SPEC);
    const jobs = told.map((_, i) => jobOf(`held-${i}`));
    await queue.send('held', jobs);
    for (const [i, what] of told.entries()) {
      await queue.query('hold a job', `UPDATE trainyard_queue.job_common SET ${what} WHERE id = $1`, [jobIdOf('held', jobs[i]!)]);
    }
    await expect(queue.query('overflow', 'UPDATE trainyard_queue.job_common SET retry_count = 2147483647', [])).rejects.toThrow(
      'bounded',
    );
    await queue.closeRun('held', false);
    await queue.openRun('held', SPEC);
    await queue.send('held', jobs);
    const claimed = await queue.claim('held', 9, 'worker');
    expect(claimed.map(({ job }) => job.identity.rolloutId).toSorted()).toEqual(jobs.map((job) => job.identity.rolloutId));
    await queue.closeRun('held', false);
  });

  it('takes no row that a coordinator could not read', async () => {
    const result = "INSERT INTO trainyard.results VALUES ('r', gen_random_uuid(), 1, $1, '\\x00'";
    for (const [sql, value] of [
      [`${result}, array_fill(NULL::text, ARRAY[200000]), '{}', '{}', '{}')`, '{}'],
      [`${result}, '{a}', '{}', '{}', '{}')`, '{}'],
      ["INSERT INTO trainyard.attempts (run, job, attempt, worker) VALUES ('r', gen_random_uuid(), 1, repeat($1, 2000))", 'w'],
      ["INSERT INTO trainyard.result_files VALUES ('r', gen_random_uuid(), 1, repeat($1, 5000), 420, '')", 'p'],
    ] as const) {
      await expect(queue.query('write', sql, [value]), sql).rejects.toThrow('bounded');
    }
  });

  it('keeps the first result of a rollout that ran again because its job was forgotten', async () => {
    await queue.openRun('again', SPEC);
    for (const text of ['first', 'second']) {
      await queue.send('again', [jobOf('a')]);
      expect(await queue.finish('again', [finished(await claim('again'), text)])).toEqual([]);
      await queue.query('forget the job', "DELETE FROM trainyard_queue.job WHERE name LIKE '%again'", []);
    }
    const results = await queue.results('again', [jobIdOf('again', jobOf('a'))]);
    expect([...results.values()]).toMatchObject([{ output: 'first' }]);
  });

  it('reads results of many megabytes in time, some at once', async () => {
    await queue.openRun('giant', SPEC);
    const jobs = ['a', 'b', 'c'].map(jobOf);
    await queue.send('giant', jobs);
    const promptIds = Int32Array.from({ length: 70_000 }, (_, i) => i);
    for (const claimed of await queue.claim('giant', 3, 'worker')) {
      const ended = finished(claimed, 'long');
      const [turn] = randomTrajectory(1).turns;
      const turns = Array.from({ length: 70 }, (_, index) => ({ ...turn!, index, promptIds }));
      const trajectory = { ...ended.trajectory, turns };
      expect(await queue.finish('giant', [{ ...ended, trajectory }])).toEqual([]);
    }
    const wanted = jobs.map((job) => jobIdOf('giant', job));
    const found: unknown[] = [];
    while (wanted.length > 0) {
      const results = await queue.results('giant', wanted);
      expect(results.size).toBeLessThan(3);
      for (const [job, trajectory] of results) {
        wanted.splice(wanted.indexOf(job), 1);
        found.push(trajectory?.rolloutId);
        expect(isDeepStrictEqual(trajectory?.turns[69]?.promptIds, promptIds)).toBe(true);
      }
    }
    expect(found.toSorted()).toEqual(['a', 'b', 'c']);
  }, 90_000);

  it('gives no result of an older version of the policy for a rollout that is asked for again', async () => {
    await queue.openRun('older', SPEC);
    const [old, renewed] = [jobOf('a'), { ...jobOf('a'), version: 1 }];
    await queue.send('older', [old]);
    await queue.finish('older', [finished(await claim('older'), 'old')]);
    await queue.send('older', [old, renewed]);
    const [oldId, renewedId] = [jobIdOf('older', old), jobIdOf('older', renewed)];
    expect([...(await queue.results('older', [renewedId])).keys()]).toEqual([]);
    expect([...(await queue.results('older', [oldId, renewedId])).keys()]).toEqual([oldId]);
    expect((await queue.claim('older', 8, 'worker')).map(({ id }) => id)).toEqual([renewedId]);
  });

  it('has the first weights before workers learn of the run', async () => {
    const open = async (): Promise<unknown> => await queue.openedRun('order');
    const seen: unknown[] = [];
    const save = async (folder: string): Promise<void> => {
      seen.push(await open());
      await mkdir(folder);
    };
    const options = { url: database.url, run: 'order', spec: SPEC, staleness: 0, ...CHECKS, save, warn: () => {} };
    await using _coordinator = await Coordinator.open(options);
    expect(seen).toEqual([undefined]);
    expect(await open()).toMatchObject({ run: 'order' });
  });

  it('leaves a run alone that another coordinator has taken over, and says so', async () => {
    const options = { url: database.url, run: 'woken', spec: SPEC, staleness: 0, ...CHECKS, warn: () => {} };
    const first = await Coordinator.open(options);
    const { signal } = new AbortController();
    const waiting = first.run({ signal }, { ...jobOf('a'), task: { id: 't', prompt: [], answer: '' } } as never);
    waiting.catch(() => {});
    const sql = 'SELECT seen_at::text AS at FROM trainyard.worker_runs WHERE name = $1';
    // As if the first had been away for long: nobody has seen it since.
    await using second = await WorkQueue.create(database.url);
    await until(async () => {
      const [{ at }] = (await queue.query<{ at: string }>('look', sql, ['woken'])) as [{ at: string }];
      return await second.openRun('woken', SPEC, undefined, at).then(
        () => true,
        () => undefined,
      );
    });
    await expect(waiting).rejects.toMatchObject({ code: 'RUN_LOCKED' });
    await first[Symbol.asyncDispose]();
    expect(await queue.openedRun('woken')).toMatchObject({ run: 'woken' });
    expect(await queue.claim('woken', 1, 'worker')).toHaveLength(1);
    await expect(queue.openRun('woken', SPEC)).rejects.toMatchObject({ code: 'RUN_LOCKED' });
  });

  it('names a rollout whose result is damaged, and queues it again', async () => {
    const warnings: string[] = [];
    const warn = (...told: readonly string[]): void => void warnings.push(told.join(': '));
    await using coordinator = await Coordinator.open({
      ...{ url: database.url, run: 'damaged', spec: SPEC, staleness: 0, ...CHECKS, warn },
    });
    const spec = { ...jobOf('a'), task: { id: 't', prompt: [], answer: '' } } as never;
    const result = coordinator.run({ signal: new AbortController().signal }, spec);
    for (const attempt of [1, 2]) {
      const claimed = await until(async () => (await queue.claim('damaged', 1, 'worker'))[0]);
      const ended = finished(claimed, `attempt ${attempt}`);
      if (attempt === 1) await queue.query('forge a result', FORGED, ['damaged', claimed.id]);
      await queue.finish('damaged', [{ ...ended, trajectory: { ...ended.trajectory, turns: [] } }]);
    }
    expect(await result).toMatchObject({ result: { output: 'attempt 2' }, artifactsDir: null });
    expect(warnings).toContain('RESULT_REFUSED: worker worker returned rollout a damaged; it runs again');
  });

  it('frees what a cut-off worker holds in a transaction', async () => {
    await queue.openRun('held', SPEC);
    await queue.send('held', [jobOf('a')]);
    const connections = await Connections.to(database.url);
    const cut = connections.use('hold', 0, async (client) => {
      await client.query('BEGIN');
      await client.query("SELECT FROM trainyard_queue.job WHERE name LIKE '%held' FOR UPDATE");
      await sleep(8_000);
      await client.query('COMMIT');
    });
    cut.catch(() => {});
    await sleep(500);
    const since = performance.now();
    await queue.query('use it', "UPDATE trainyard_queue.job SET priority = 1 WHERE name LIKE '%held'", []);
    expect(performance.now() - since).toBeLessThan(7_000);
    await expect(cut).rejects.toThrow();
    await connections.close();
  });
});

it('a database that is away is waited for until the signal', async () => {
  const server = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { readonly port: number };
  const connections = await Connections.to(`postgres://nobody@127.0.0.1:${port}/none`);
  const stop = new AbortController();
  let hasEnded = false;
  const used = connections
    .use('ask', stop.signal, (client) => client.query('SELECT 1'))
    .finally(() => {
      hasEnded = true;
    });
  used.catch(() => {});
  await sleep(1_500);
  expect(hasEnded).toBe(false);
  stop.abort();
  await expect(used).rejects.toThrow('could not ask');
  await connections.close();
  server.close();
});
