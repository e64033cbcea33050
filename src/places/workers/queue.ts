/**
 * What coordinator and workers share in PostgreSQL: the queue of rollouts (pg-boss), their results, and the policy's weights by version.
 *
 * A job is one rollout. pg-boss leases it: a worker's heartbeat renews the lease, a lost one gives the job to another worker as the next
 * attempt, and after three attempts it is parked as failed. A result is written in the transaction that completes its job, and only by the
 * attempt that holds the lease, so there is at most one for a rollout. Jobs hold tasks without their answers; results hold no rewards.
 */
import { hash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { PoolClient, QueryResultRow } from 'pg';
import type { PgBoss as Boss } from 'pg-boss';
import { messageOf, TrainyardError, tried } from '../../core/errors.ts';
import type { Warn } from '../../core/events.ts';
import type { SamplingSettings, TaskView, Trajectory } from '../../core/types.ts';
import { BYTEA, binaryArray, Connections, inTransaction, TEXT } from '../../store/postgres-connection.ts';
import { decodeTrajectory, type EncodedRecord, type EncodedTurn, encodeTrajectory } from '../../store/records.ts';
import { MOST, MOST_FILES, type RolloutFile } from './files.ts';
import { prepareTables, SCHEMA, WORKER_ROLE } from './rights.ts';

/** A rollout for a worker: everything but the answer. */
export interface RolloutJob {
  readonly identity: Pick<Trajectory, 'rolloutId' | 'groupId' | 'taskId' | 'purpose'>;
  readonly task: TaskView;
  readonly sampling: SamplingSettings;
  /** The policy must be at this version, or a later one. */
  readonly version: number;
  /** Digest of that version's weights; empty for an API. */
  readonly weights: string;
}

/** pg-boss's fence: a call for an attempt leaves the job alone once another one has begun. */
export interface JobAttempt {
  readonly id: string;
  readonly retryCount: number;
}

export interface ClaimedJob extends JobAttempt {
  readonly job: RolloutJob;
}

export interface FinishedJob extends ClaimedJob {
  readonly trajectory: Trajectory;
  readonly files: readonly RolloutFile[];
}

/** What a worker must know of a run, and check: code and settings. */
export interface RunSpec {
  readonly release: string;
  /** Relative to the folder that the coordinator was started in. */
  readonly entry: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly sources: Readonly<Record<string, string>>;
  readonly beside?: { readonly folder: string; readonly files: RunSpec['sources'] };
  readonly kernels: string;
}

/** An attempt that no worker finished, for the log of a parked rollout. */
export interface LostAttempt {
  readonly attempt: number;
  readonly worker: string;
  readonly at: Date;
}

export const ATTEMPTS = 3;
/** Seconds without a heartbeat after which a worker is lost: pg-boss's least. */
const LEASE = 10;
/** Seconds. A rollout ends at its deadline, which downtime extends; the lease notices dead workers long before. */
const LONGEST = 86_000;
/** Milliseconds between a coordinator's signs of life, and seconds without one after which workers look for another run. */
export const SEEN_MS = 1_000;
const ABSENT = 30;
/** A rollout may wait for workers for a year. */
const WAITING = { retentionSeconds: 31_536_000 };
/** Seconds that pg-boss keeps a finished job. */
const KEPT = 3_600;
const MORE = `this worker’s database user can read and change rewards; give it a URL with the role ${WORKER_ROLE}: trainyard help many-machines`;

/** Milliseconds that a database may be away: for a coordinator, and when a worker begins. */
const PATIENCE = 60_000;

export class WorkQueue implements AsyncDisposable {
  readonly #database: Connections;
  readonly #boss: Boss;
  /** As the database has it: whose run it is. */
  #openedAt = '';
  /** How long a database may be away: milliseconds, or until the signal. */
  patience: number | AbortSignal;

  private constructor(database: Connections, boss: Boss, patience: number | AbortSignal) {
    this.#database = database;
    this.#boss = boss;
    this.patience = patience;
  }

  /** As coordinator: creates what is missing. The store must have been opened before. */
  static async create(url: string, warn?: Warn): Promise<WorkQueue> {
    const database = await Connections.to(url);
    const surplus = await database.use('prepare the queue', PATIENCE, prepareTables).finally(() => database.close());
    for (const found of surplus) warn?.('DATABASE_RIGHTS', found);
    return await WorkQueue.#open(url, PATIENCE);
  }

  /**
   * As worker: with the rights of one, on tables that a coordinator has made; with more, it warns. Undefined if none has been there yet. From
   * then on, it waits for a database that is away until `stop`.
   */
  static async join(url: string, stop: AbortSignal, warn?: Warn): Promise<WorkQueue | undefined> {
    const database = await Connections.to(url);
    const sql = `SELECT relname, has_table_privilege(oid, 'SELECT') AS "isRead" FROM pg_class
      WHERE relname IN ('worker_runs', 'trajectories') AND relnamespace = to_regnamespace('trainyard')`;
    const { rows } = await database
      .use('look for a coordinator', PATIENCE, (client) => client.query(sql))
      .finally(() => database.close());
    if (!rows.some(({ relname }) => relname === 'worker_runs')) return undefined;
    if (rows.some(({ relname, isRead }) => relname === 'trajectories' && isRead)) warn?.('DATABASE_RIGHTS', MORE);
    return await WorkQueue.#open(url, stop);
  }

  static async #open(url: string, patience: number | AbortSignal): Promise<WorkQueue> {
    const database = await Connections.to(url);
    const { PgBoss } = await import('pg-boss');
    const executeSql = (text: string, values?: unknown[]) =>
      database.use('use the queue of rollouts', patience, (client) => client.query(text, values));
    const off = { migrate: false, schedule: false, supervise: false };
    const boss = new PgBoss({ db: { executeSql }, schema: SCHEMA, monitorIntervalSeconds: 1, ...off });
    // Without a listener, a lost connection would end the process; the next call tries again.
    boss.on('error', () => {});
    try {
      await boss.start();
    } catch (cause) {
      await database.close();
      if (cause instanceof TrainyardError) throw cause;
      throw new TrainyardError(
        'STORE_FAILED',
        `${database.shown}: the queue cannot be used: ${messageOf(cause)}`,
        "a worker's role needs the rights that the coordinator grants to trainyard_worker when it starts",
      );
    }
    return new WorkQueue(database, boss, patience);
  }

  async query<Row extends QueryResultRow>(doing: string, sql: string, values: unknown[]): Promise<readonly Row[]> {
    return (await this.#database.use(doing, this.patience, (client) => client.query<Row>(sql, values))).rows;
  }

  transaction<T>(doing: string, work: (client: PoolClient) => Promise<T>): Promise<T> {
    return this.#database.use(doing, this.patience, (client) => inTransaction(client, () => work(client)));
  }

  // As coordinator.

  /** When a coordinator was last seen, asked so early that a living one is seen again before this resolves. Undefined if none was lately. */
  async lastSeen(run: string): Promise<string | undefined> {
    const sql = `SELECT seen_at::text AS at FROM trainyard.worker_runs
      WHERE name = $1 AND closed_at IS NULL AND seen_at > now() - interval '${ABSENT} seconds'`;
    const [before] = await this.query<{ at: string }>('look for another coordinator', sql, [run]);
    if (before !== undefined) await sleep(2 * SEEN_MS + 500);
    return before?.at;
  }

  /**
   * Opens the run for workers. `before`: of `lastSeen`. `lease`: seconds, for tests. Throws RUN_LOCKED if another coordinator has been seen
   * since. One that comes later takes the run over.
   */
  async openRun(run: string, spec: RunSpec, lease = LEASE, before?: string): Promise<void> {
    const options = {
      retryLimit: ATTEMPTS - 1,
      heartbeatSeconds: LEASE,
      expireInSeconds: LONGEST,
      deleteAfterSeconds: KEPT,
      ...WAITING,
    };
    await this.#boss.createQueue(queueOf(run), options);
    const shorter = 'UPDATE trainyard_queue.queue SET heartbeat_seconds = $2 WHERE name = $1';
    if (lease !== LEASE) await this.query('shorten the lease', shorter, [queueOf(run), lease]);
    const sql = `INSERT INTO trainyard.worker_runs AS known (name, spec) VALUES ($1, $2)
      ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, opened_at = now(), seen_at = now(), closed_at = NULL
      WHERE known.closed_at IS NOT NULL OR known.seen_at < now() - interval '${ABSENT} seconds' OR known.seen_at::text = $3
      RETURNING opened_at::text AS at`;
    const [opened] = await this.query<{ at: string }>('open the run for workers', sql, [run, JSON.stringify(spec), before]);
    if (opened === undefined) throw taken(run);
    this.#openedAt = opened.at;
    // Attempts that were used up before a resume count no more, and what no worker will end is queued again.
    await this.query('forget jobs that nobody ends', `DELETE FROM ${SCHEMA}.job_common WHERE name = $1 AND NOT (${ALIVE})`, [
      queueOf(run),
      run,
    ]);
  }

  /** Throws RUN_LOCKED if another coordinator has taken the run over. */
  async seen(run: string): Promise<void> {
    if (!(await this.#own('say that the run goes on', 'seen_at', run))) throw taken(run);
  }

  async #own(doing: string, time: 'seen_at' | 'closed_at', run: string): Promise<boolean> {
    const sql = `UPDATE trainyard.worker_runs SET ${time} = now() WHERE name = $1 AND opened_at::text = $2 RETURNING name`;
    return (await this.query(doing, sql, [run, this.#openedAt])).length > 0;
  }

  /** Gives rollouts whose lease has lapsed to others, or parks them. */
  async watch(run: string): Promise<void> {
    await this.#boss.supervise(queueOf(run));
  }

  /** Takes back what no worker has begun, unless another coordinator has the run. What they have begun still gives results, for a resumed run. */
  async closeRun(run: string, isDone: boolean): Promise<void> {
    if (!(await this.#own('close the run', 'closed_at', run))) return;
    await this.#boss.deleteQueuedJobs(queueOf(run));
    if (!isDone) return;
    for (const table of ['weights', 'attempts', 'result_files', 'results']) {
      await this.query('clear the run', `DELETE FROM trainyard.${table} WHERE run = $1`, [run]);
    }
    await this.#boss.deleteQueue(queueOf(run));
    await this.query('forget the run', 'DELETE FROM trainyard.worker_runs WHERE name = $1', [run]);
  }

  /** A job that is there already stays as it is: a resumed run waits for what workers have in hand. */
  async send(run: string, jobs: readonly RolloutJob[]): Promise<void> {
    if (jobs.length === 0) return;
    // As text, because JSON in PostgreSQL cannot hold U+0000.
    const wanted = jobs.map((job) => ({ id: jobIdOf(run, job), data: { job: JSON.stringify(job) } }));
    await this.#boss.insert(queueOf(run), wanted);
  }

  /** By job; undefined for one that cannot be read. */
  async results(run: string, jobs: readonly string[]): Promise<ReadonlyMap<string, Trajectory | undefined>> {
    const doing = 'read results of workers';
    const rows = await this.query<EncodedRecord & { readonly job: string }>(doing, RESULTS, [run, jobs, MOST_BYTES]);
    if (rows.length === 0) return new Map();
    const ids = rows.map(({ job }) => job);
    const turns = await this.query<EncodedTurn & { readonly job: string }>(doing, TURNS, [run, ids]);
    const turnsOf = Map.groupBy(turns, ({ job }) => job);
    const decoded = rows.map((row) => tried(() => decodeTrajectory({ ...row, turns: turnsOf.get(row.job) ?? [] })));
    return new Map(ids.map((job, place) => [job, decoded[place]]));
  }

  async files(run: string, job: string): Promise<readonly RolloutFile[]> {
    const of = 'FROM trainyard.result_files WHERE run = $1 AND job = $2';
    const sizes = `SELECT coalesce(sum(octet_length(bytes)), 0)::bigint AS bytes, count(*) AS files ${of}`;
    const [size] = await this.query<Record<'bytes' | 'files', number>>('read files of workers', sizes, [run, job]);
    if (size!.bytes > MOST || size!.files > MOST_FILES) {
      throw new TrainyardError('RESULT_REFUSED', `with ${size!.files} files of ${Math.round(size!.bytes / 2 ** 20)} MB in all`);
    }
    return await this.query<RolloutFile>('read files of workers', `SELECT path, mode, bytes ${of} ORDER BY number`, [run, job]);
  }

  /** Of rollouts that are in the store, or with `again` of those that a resumed run shall queue again. */
  async forget(run: string, jobs: readonly string[], again = false): Promise<void> {
    if (again) await this.#boss.deleteJob(queueOf(run), [...jobs]);
    for (const table of ['result_files', 'results']) {
      const sql = `DELETE FROM trainyard.${table} WHERE run = $1 AND job = ANY($2)`;
      await this.query('remove results of workers', sql, [run, jobs]);
    }
  }

  /** Jobs whose attempts are used up, with what became of them. */
  async parked(
    run: string,
  ): Promise<ReadonlyMap<string, { readonly reason: string; readonly attempts: readonly LostAttempt[] }>> {
    const failed = `SELECT id, left(coalesce(output->'value'->>'message', output->>'message', 'unknown'), 500) AS reason
      FROM trainyard_queue.job WHERE name = $1 AND state = 'failed'`;
    const rows = await this.query<Record<'id' | 'reason', string>>('read failed jobs', failed, [queueOf(run)]);
    if (rows.length === 0) return new Map();
    const begun =
      'SELECT job, attempt, left(worker, 200) AS worker, at FROM trainyard.attempts WHERE run = $1 AND job = ANY($2) ORDER BY attempt LIMIT 10000';
    const ids = rows.map(({ id }) => id);
    const attempts = await this.query<LostAttempt & { readonly job: string }>('read attempts', begun, [run, ids]);
    const byId = Map.groupBy(attempts, (row) => row.job);
    return new Map(rows.map(({ id, reason }) => [id, { reason, attempts: byId.get(id) ?? [] }]));
  }

  // As worker.

  /** The run that has been open for longest; a named one if it is open. */
  async openedRun(name?: string): Promise<{ readonly run: string; readonly spec: RunSpec } | undefined> {
    const sql = `SELECT name AS run, spec FROM trainyard.worker_runs
      WHERE closed_at IS NULL AND seen_at > now() - interval '${ABSENT} seconds' AND ($1::text IS NULL OR name = $1)
      ORDER BY opened_at LIMIT 1`;
    return (await this.query<{ readonly run: string; readonly spec: RunSpec }>('look for a run', sql, [name ?? null]))[0];
  }

  /** A job that cannot be read is failed by itself, and claimed by nobody after its last attempt. */
  async claim(run: string, most: number, worker: string): Promise<readonly ClaimedJob[]> {
    return await this.transaction('claim rollouts', async (client) => {
      const db = { executeSql: (text: string, values?: unknown[]) => client.query(text, values) };
      const fetched = await this.#boss.fetch<unknown>(queueOf(run), { batchSize: most, db });
      if (fetched.length === 0) return [];
      const sql = `INSERT INTO trainyard.attempts (run, job, attempt, worker)
      SELECT $1, job, attempt, $4 FROM unnest($2::uuid[], $3::int[]) AS claimed (job, attempt)`;
      const attempts = fetched.map(attemptOf);
      await client.query(sql, [run, attempts.map(({ id }) => id), attempts.map(({ retryCount }) => retryCount + 1), worker]);
      const unread = fetched.filter(({ data }) => jobIn(data) === undefined);
      if (unread.length > 0) await client.query(FAIL, [...valuesOf(run, unread), 'its job in the queue cannot be read']);
      return fetched.flatMap(({ data, ...attempt }) => {
        const job = jobIn(data);
        return job === undefined ? [] : [{ ...attemptOf(attempt), job }];
      });
    });
  }

  /** Renews the leases. Returns the attempts that have lost theirs. */
  async renew(run: string, held: readonly JobAttempt[]): Promise<readonly JobAttempt[]> {
    if (held.length === 0) return [];
    return lostOf(held, await this.#boss.touch(queueOf(run), held.map(attemptOf)));
  }

  /** Writes the results of those that still hold their lease, in one transaction. Returns the others, of which nothing is written. */
  async finish(run: string, ended: readonly FinishedJob[]): Promise<readonly JobAttempt[]> {
    return await this.transaction('write results', async (client) => {
      const db = { executeSql: (text: string, values?: unknown[]) => client.query(text, values) };
      const lost = lostOf(ended, await this.#boss.complete(queueOf(run), ended.map(attemptOf), null, { db }));
      const late = new Set(lost.map(({ id }) => id));
      const inTime = ended.filter(({ id }) => !late.has(id));
      for (let from = 0; from < inTime.length; from += ROWS) await insertResults(client, run, inTime.slice(from, from + ROWS));
      return lost;
    });
  }

  /** For jobs that failed here, to be run elsewhere. Counts as one of their attempts. */
  async fail(run: string, held: readonly JobAttempt[], reason: string): Promise<void> {
    if (held.length > 0) await this.query('return rollouts', FAIL, [...valuesOf(run, held), reason]);
  }

  /** For jobs that are not to blame. The next attempt has a number of its own, so they may have one more. */
  async giveBack(run: string, held: readonly JobAttempt[]): Promise<void> {
    if (held.length > 0) await this.query('give rollouts back', GIVE_BACK, valuesOf(run, held));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#boss.stop({ graceful: false, close: false }).catch(() => {});
    await this.#database.close();
  }
}

/** Queued, or begun in the past, or completed with its result: a worker may have written anything else. */
const ALIVE = `NOT coalesce(blocked, false) AND (state IN ('created', 'retry')
  OR state = 'active' AND started_on <= now() AND coalesce(heartbeat_on <= now(), true)
  OR state = 'completed' AND EXISTS (SELECT FROM trainyard.results WHERE results.run = $2 AND results.job = job_common.id))`;

const HELD = "name = $1 AND state = 'active' AND (id, retry_count) IN (SELECT * FROM unnest($2::uuid[], $3::int[]))";

const GIVE_BACK = `UPDATE ${SCHEMA}.job_common SET state = 'retry', retry_limit = retry_limit + 1, heartbeat_on = NULL WHERE ${HELD}`;

/** As pg-boss would, which deletes the job and inserts it anew: rights that no worker needs. */
const FAIL = `
  UPDATE ${SCHEMA}.job_common SET heartbeat_on = NULL, output = jsonb_build_object('message', $4::text),
    state = (CASE WHEN retry_count < retry_limit THEN 'retry' ELSE 'failed' END)::${SCHEMA}.job_state,
    completed_on = CASE WHEN retry_count < retry_limit THEN NULL ELSE now() END
  WHERE ${HELD}`;

/** Of results that are read at once; one that is larger is read alone. */
const MOST_BYTES = 32 * 1024 * 1024;

const RESULTS = `
  SELECT job, record, digest FROM trainyard.results JOIN (
    SELECT job, sum(bytes) OVER (ORDER BY job) - bytes AS before FROM trainyard.results, LATERAL (
      SELECT (pg_column_size(record) + pg_column_size(words) + pg_column_size(prompt_ids))::bigint AS bytes) AS size
    WHERE run = $1 AND job = ANY($2) ORDER BY job LIMIT 100
  ) AS found USING (job) WHERE run = $1 AND before < $3`;

/** One row for each turn: the driver takes minutes for large arrays. */
const TURNS = `
  SELECT job, turn.* FROM trainyard.results,
    unnest(words, prompt_ids, sampled_ids, logprobs) WITH ORDINALITY AS turn (words, "promptIds", "sampledIds", logprobs, n)
  WHERE run = $1 AND job = ANY($2) ORDER BY n`;

/** Of one statement: values that are bound have a limit of 65,535. */
const ROWS = 500;

async function insertResults(client: PoolClient, run: string, ended: readonly FinishedJob[]): Promise<void> {
  const values: unknown[] = [run];
  const bound = (value: unknown): string => `$${values.push(value)}`;
  const rows = ended.map(({ id, retryCount, trajectory }) => {
    const { record, digest, turns } = encodeTrajectory(trajectory);
    const column = (name: 'promptIds' | 'sampledIds' | 'logprobs') => binaryArray(BYTEA, turns, (turn) => turn[name]);
    const row = [id, retryCount + 1, record, digest, binaryArray(TEXT, turns, ({ words }) => Buffer.from(words))];
    return `($1, ${[...row, column('promptIds'), column('sampledIds'), column('logprobs')].map(bound)})`;
  });
  const columns = 'run, job, attempt, record, digest, words, prompt_ids, sampled_ids, logprobs';
  await client.query(`INSERT INTO trainyard.results (${columns}) VALUES ${rows} ON CONFLICT DO NOTHING`, values);
  const file = 'run, job, number, path, mode, bytes';
  const sql = `INSERT INTO trainyard.result_files (${file}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`;
  for (const { id, files } of ended) {
    for (const [i, { path, mode, bytes }] of files.entries()) await client.query(sql, [run, id, i, path, mode, bytes]);
  }
}

function taken(run: string): TrainyardError {
  const hint = 'stop it first, or wait until it has ended';
  return new TrainyardError('RUN_LOCKED', `another process, perhaps on another machine, goes on with run ${run}`, hint);
}

function attemptOf({ id, retryCount }: JobAttempt): JobAttempt {
  return { id, retryCount };
}

function valuesOf(run: string, held: readonly JobAttempt[]): unknown[] {
  return [queueOf(run), held.map(({ id }) => id), held.map(({ retryCount }) => retryCount)];
}

/** Undefined if it is not one that `send` wrote. */
function jobIn(data: unknown): RolloutJob | undefined {
  const job = tried(() => JSON.parse((data as { readonly job: string }).job) as RolloutJob | null);
  return typeof job?.identity?.rolloutId === 'string' ? job : undefined;
}

/** pg-boss leaves attempts alone whose lease has lapsed, and says which it touched. */
function lostOf(held: readonly JobAttempt[], answer: object): readonly JobAttempt[] {
  const { settled } = answer as { readonly settled?: readonly string[] };
  const touched = new Set(settled ?? []);
  return held.filter(({ id }) => !touched.has(id));
}

function queueOf(run: string): string {
  return `rollouts-${run}`;
}

/** The same whenever a rollout is asked for on a version, so that it is queued once, and not mistaken for one on another version. */
export function jobIdOf(run: string, { identity, version }: RolloutJob): string {
  const hex = hash('sha256', `${run}\n${identity.rolloutId}\n${version}`, 'hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
