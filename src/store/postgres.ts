/**
 * The store of a run in PostgreSQL, for runs that several machines work on. Many runs share one database; each has its own row and its own
 * append order. The encoding and the digests are those of the SQLite store. Nothing is updated or deleted but the counter of a run.
 *
 * Writes of one store go one after another. Appends that arrive while one is under way share the next statement, which is a transaction of
 * its own. It takes the lock on the run's row before it gives out places in the order, and holds it until it has committed: who has seen a
 * place will never see a new rollout before it. After a lost connection nobody knows whether a write was committed, so it is written again:
 * appends are recognised by their digest, steps by theirs, marks by the id of the request.
 */
import { randomUUID } from 'node:crypto';
import type { PoolClient } from 'pg';
import type { Store, TrajectoryFilter } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { type Summarised, summaryOf } from '../core/turns.ts';
import type { BatchManifest, Mark, RolloutSummary, Trajectory } from '../core/types.ts';
import { BYTEA, binaryArray, Connections, inTransaction, TEXT } from './postgres-connection.ts';
import { cell, idIn, prepareSchema } from './postgres-schema.ts';
import {
  checkFilter,
  DecodeError,
  decodeManifest,
  decodeMark,
  decodeTrajectory,
  type EncodedRecord,
  type EncodedTrajectory,
  type EncodedTurn,
  encodeRecord,
  encodeTrajectory,
  keepManifest,
  keepMark,
  sameBytes,
} from './records.ts';
import { checkManifest, closedError, conflictError, unmarkable } from './store-errors.ts';

export interface PostgresStoreOptions {
  /** How long a call tries again while the server cannot be reached. */
  readonly patienceMs?: number;
  /** Throws FILE_NOT_FOUND, and creates nothing, if the database has no such run. */
  readonly isKnown?: boolean;
}

const PATIENCE_MS = 30_000;
/** To open: a wrong address should be told soon. */
const OPENING_MS = 5_000;
/** Of one statement. */
const BATCH_BYTES = 16_000_000;
/** PostgreSQL indexes at most about 2,700 bytes. */
const LONGEST_ID = 2_000;

/** Creates what is missing. Throws STORE_FORMAT if the database holds something else, STORE_FAILED if it cannot be used. */
export async function openPostgresStore(url: string, run: string, options: PostgresStoreOptions = {}): Promise<Store> {
  const connections = await Connections.to(url);
  const { patienceMs = PATIENCE_MS, isKnown = false } = options;
  try {
    const id = await connections.use('open the store', Math.min(patienceMs, OPENING_MS), (client) =>
      inTransaction(client, () => prepareSchema(client, connections.shown, run, isKnown)),
    );
    return new PostgresStore(connections, id, patienceMs);
  } catch (thrown) {
    await connections.close();
    throw thrown;
  }
}

interface PendingAppend {
  readonly id: string;
  readonly columns: readonly string[];
  readonly encoded: EncodedTrajectory;
  readonly bytes: number;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

class PostgresStore implements Store {
  readonly #connections: Connections;
  readonly #run: number;
  readonly #patienceMs: number;
  /** Appends that no statement carries yet, and the last write that was asked for. */
  #pending: PendingAppend[] = [];
  #last: Promise<unknown> = Promise.resolve();
  #closing: Promise<void> | undefined;

  constructor(connections: Connections, run: number, patienceMs: number) {
    this.#connections = connections;
    this.#run = run;
    this.#patienceMs = patienceMs;
  }

  async append(trajectory: Trajectory): Promise<void> {
    this.#checkOpen();
    const encoded = encodeTrajectory(trajectory);
    const { rolloutId, groupId, taskId, purpose, outcome } = trajectory;
    const columns = [cell(rolloutId), cell(groupId), cell(taskId), purpose, outcome.kind, inShort(trajectory), encoded.record];
    checkLengths(columns.slice(0, 3));
    const bytes = encoded.turns.reduce((sum, turn) => sum + turn.words.length + 3 * turn.promptIds.length, encoded.record.length);
    await new Promise<void>((resolve, reject) => {
      this.#pending.push({ id: rolloutId, columns, encoded, bytes, resolve, reject });
      if (this.#pending.length === 1) void this.#inOrder(() => this.#appendPending());
    });
  }

  async read(rolloutId: string): Promise<Trajectory | undefined> {
    const found = await this.#trajectories(`read ${JSON.stringify(rolloutId)}`, 'AND rollout_id = $2', [cell(rolloutId)]);
    return found[0];
  }

  async query(filter: TrajectoryFilter = {}): Promise<readonly Trajectory[]> {
    const { where, limit, values } = selection(filter);
    return await this.#trajectories('query trajectories', `${where} ORDER BY seq ${limit}`, values);
  }

  async summaries(after = 0, limit?: number): Promise<readonly RolloutSummary[]> {
    checkFilter(defined({ limit }));
    const sql = 'SELECT seq, short FROM trainyard.trajectories WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3';
    const summary = ({ seq, short }: { readonly seq: number; readonly short: string }) => summaryOf(shortIn(short), seq);
    return await this.#rows('list rollouts', sql, [after, limit ?? null], summary);
  }

  async count(filter: TrajectoryFilter = {}): Promise<number> {
    const { where, limit, values } = selection(filter);
    const found = `SELECT 1 FROM trainyard.trajectories WHERE run = $1 ${where} ${limit}`;
    const sql = `SELECT count(*) AS n FROM (${found}) AS found`;
    return (await this.#rows('count trajectories', sql, values, ({ n }: { readonly n: number }) => n))[0]!;
  }

  async groupIds(filter: TrajectoryFilter = {}): Promise<readonly string[]> {
    const { where, limit, values } = selection(filter);
    const found = `SELECT seq, group_id FROM trainyard.trajectories WHERE run = $1 ${where} ORDER BY seq ${limit}`;
    const sql = `SELECT group_id AS id FROM (${found}) AS found GROUP BY group_id ORDER BY min(seq)`;
    return await this.#rows('list groups', sql, values, ({ id }: { readonly id: string }) => idIn(id));
  }

  async commit(manifest: BatchManifest): Promise<void> {
    this.#checkOpen();
    const kept = keepManifest(manifest);
    await this.#inOrder(() =>
      this.#using(`commit step ${kept.step}`, (client, isAgain) =>
        inTransaction(client, () => this.#insertManifest(client, kept, isAgain)),
      ),
    );
  }

  async manifests(after = 0): Promise<readonly BatchManifest[]> {
    const sql = 'SELECT record, digest FROM trainyard.manifests WHERE run = $1 AND step > $2 ORDER BY step';
    return await this.#rows('read manifests', sql, [after], decodeManifest);
  }

  async mark(marks: readonly Mark[]): Promise<void> {
    this.#checkOpen();
    const kept = marks.map(keepMark);
    const request = randomUUID();
    await this.#inOrder(() => this.#using('mark rollouts', (client) => this.#insertMarks(client, kept, request)));
  }

  async marks(): Promise<readonly Mark[]> {
    const sql = 'SELECT record, digest FROM trainyard.marks WHERE run = $1 ORDER BY seq';
    return await this.#rows('read marks', sql, [], decodeMark);
  }

  /** Waits for pending writes. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing ??= this.#last.then(() => this.#connections.close());
    await this.#closing;
  }

  /** One write after another, whatever becomes of those before. */
  async #inOrder<T>(write: () => Promise<T>): Promise<T> {
    const done = this.#last.then(write);
    this.#last = done.catch(() => {});
    return await done;
  }

  /** All that wait now, so that they are written before whatever is asked for later. Those that come meanwhile go with the next. */
  async #appendPending(): Promise<void> {
    const waiting = this.#pending;
    this.#pending = [];
    for (let from = 0, to = 0; from < waiting.length; from = to) {
      for (let bytes = 0; to < waiting.length && (to === from || bytes < BATCH_BYTES); to += 1) bytes += waiting[to]!.bytes;
      await this.#appendBatch(waiting.slice(from, to));
    }
  }

  async #appendBatch(batch: readonly PendingAppend[]): Promise<void> {
    try {
      const kept = await this.#using('append rollouts', (client) => this.#insertTrajectories(client, batch));
      for (const { id, encoded, resolve, reject } of batch) {
        if (sameBytes(kept.get(id)!, encoded.digest)) resolve();
        else reject(conflictError(id));
      }
    } catch (thrown) {
      for (const { reject } of batch) reject(thrown);
    }
  }

  /** Returns the digest that is now kept under each id. */
  async #insertTrajectories(client: PoolClient, batch: readonly PendingAppend[]): Promise<ReadonlyMap<string, Uint8Array>> {
    const first = new Map(batch.toReversed().map((one) => [one.id, one]));
    const wanted = batch.filter((one) => first.get(one.id) === one);
    const turns = wanted.flatMap(({ encoded }, place) => encoded.turns.map((turn, position) => ({ ...turn, place, position })));
    const added = await client.query<{ place: number }>({
      name: 'append',
      text: APPEND,
      values: [
        this.#run,
        wanted.length,
        ...wanted[0]!.columns.map((_, column) => binaryArray(TEXT, wanted, ({ columns }) => Buffer.from(columns[column]!))),
        binaryArray(BYTEA, wanted, ({ encoded }) => encoded.digest),
        turns.map(({ place }) => place + 1),
        turns.map(({ position }) => position),
        binaryArray(TEXT, turns, ({ words }) => Buffer.from(words)),
        binaryArray(BYTEA, turns, ({ promptIds }) => promptIds),
        binaryArray(BYTEA, turns, ({ sampledIds }) => sampledIds),
        binaryArray(BYTEA, turns, ({ logprobs }) => logprobs),
      ],
    });
    const digests = new Map(wanted.map(({ id, encoded }) => [id, encoded.digest]));
    if (added.rows.length === wanted.length) return digests;
    const isAdded = new Set(added.rows.map(({ place }) => place - 1));
    const others = wanted.filter((_, place) => !isAdded.has(place)).map(({ id }) => cell(id));
    const sql = 'SELECT rollout_id AS id, digest FROM trainyard.trajectories WHERE run = $1 AND rollout_id = ANY($2)';
    const present = await client.query<{ id: string; digest: Uint8Array }>(sql, [this.#run, others]);
    for (const { id, digest } of present.rows) digests.set(idIn(id), digest);
    return digests;
  }

  async #insertManifest(client: PoolClient, kept: BatchManifest, isAgain: boolean): Promise<void> {
    await client.query('SELECT FROM trainyard.runs WHERE id = $1 FOR UPDATE', [this.#run]);
    const encoded = encodeRecord(kept);
    const lastSql = 'SELECT record, digest FROM trainyard.manifests WHERE run = $1 ORDER BY step DESC LIMIT 1';
    const last = (await client.query<EncodedRecord>(lastSql, [this.#run])).rows[0];
    if (isAgain && last !== undefined && sameBytes(last.digest, encoded.digest)) return;
    const members = kept.rolloutIds.map(cell);
    const factsSql = `SELECT rollout_id AS id, step FROM trainyard.trajectories LEFT JOIN trainyard.manifest_rollouts USING (run, rollout_id)
      WHERE run = $1 AND rollout_id = ANY($2)`;
    const facts = await client.query<{ id: string; step: number | null }>(factsSql, [this.#run, members]);
    const stepOf = new Map(facts.rows.map(({ id, step }) => [idIn(id), step]));
    checkManifest(kept, {
      last: last && decodeManifest(last),
      isKept: (id) => stepOf.has(id),
      stepOf: (id) => stepOf.get(id) ?? undefined,
    });
    await client.query('INSERT INTO trainyard.manifests (run, step, record, digest) VALUES ($1, $2, $3, $4)', [
      this.#run,
      kept.step,
      encoded.record,
      encoded.digest,
    ]);
    await client.query('INSERT INTO trainyard.manifest_rollouts (run, rollout_id, step) SELECT $1, unnest($2::text[]), $3', [
      this.#run,
      members,
      kept.step,
    ]);
  }

  async #insertMarks(client: PoolClient, kept: readonly Mark[], request: string): Promise<void> {
    const ids = kept.map(({ rolloutId }) => cell(rolloutId));
    const sql = 'SELECT rollout_id AS id, short FROM trainyard.trajectories WHERE run = $1 AND rollout_id = ANY($2)';
    const found = await client.query<{ id: string; short: string }>(sql, [this.#run, ids]);
    const turnsOf = new Map(found.rows.map(({ id, short }) => [idIn(id), shortIn(short).turns]));
    for (const mark of kept) {
      const turns = turnsOf.get(mark.rolloutId);
      const isThere = mark.turn === undefined || turns?.some(({ index }) => index === mark.turn);
      if (turns === undefined || !isThere) throw unmarkable(mark, turns !== undefined);
    }
    const encoded = kept.map(encodeRecord);
    await inTransaction(client, async () => {
      // A first attempt that still runs on the server ends before this lock is given.
      await client.query('SELECT FROM trainyard.runs WHERE id = $1 FOR UPDATE', [this.#run]);
      await client.query(
        `INSERT INTO trainyard.marks (run, request, rollout_id, record, digest) SELECT $1, $2, * FROM unnest($3::text[], $4::text[], $5::bytea[])
         WHERE NOT EXISTS (SELECT FROM trainyard.marks WHERE run = $1 AND request = $2)`,
        [this.#run, request, ids, encoded.map(({ record }) => record), encoded.map(({ digest }) => Buffer.from(digest))],
      );
    });
  }

  /** `rest` selects among those of the run, from $2 on. */
  async #trajectories(doing: string, rest: string, values: readonly unknown[]): Promise<readonly Trajectory[]> {
    this.#checkOpen();
    return await this.#using(doing, async (client) => {
      const sql = `SELECT seq, record, digest FROM trainyard.trajectories WHERE run = $1 ${rest}`;
      const { rows } = await client.query<EncodedRecord & { seq: number }>(sql, [this.#run, ...values]);
      const turns = await client.query<EncodedTurn & { seq: number }>(TURNS, [this.#run, rows.map(({ seq }) => seq)]);
      const turnsOf = Map.groupBy(turns.rows, ({ seq }) => seq);
      return rows.map(({ seq, record, digest }) => decodeTrajectory({ record, digest, turns: turnsOf.get(seq) ?? [] }));
    });
  }

  /** $1 is the run. */
  async #rows<Row extends object, T>(
    doing: string,
    sql: string,
    values: readonly unknown[],
    of: (row: Row) => T,
  ): Promise<readonly T[]> {
    this.#checkOpen();
    return await this.#using(doing, async (client) => (await client.query<Row>(sql, [this.#run, ...values])).rows.map(of));
  }

  async #using<T>(doing: string, attempt: (client: PoolClient, isAgain: boolean) => Promise<T>): Promise<T> {
    return await this.#connections.use(doing, this.#patienceMs, attempt);
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw closedError(`the store ${this.#connections.shown}`);
  }
}

// SQL. Values are always bound, never interpolated.

const APPEND = `
  WITH place AS (UPDATE trainyard.runs SET last_seq = last_seq + $2 WHERE id = $1 RETURNING last_seq - $2 AS before),
  added AS (
    INSERT INTO trainyard.trajectories (run, seq, rollout_id, group_id, task_id, purpose, outcome, short, record, digest)
    SELECT $1, before + n, rollout_id, group_id, task_id, purpose, outcome, short, record, digest
    FROM place, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bytea[])
      WITH ORDINALITY AS given (rollout_id, group_id, task_id, purpose, outcome, short, record, digest, n)
    ON CONFLICT (run, rollout_id) DO NOTHING RETURNING seq
  ),
  turns AS (
    INSERT INTO trainyard.turns (run, seq, position, words, prompt_ids, sampled_ids, logprobs)
    SELECT $1, seq, position, words, prompt_ids, sampled_ids, logprobs
    FROM place, added, unnest($11::integer[], $12::integer[], $13::text[], $14::bytea[], $15::bytea[], $16::bytea[])
      AS given (n, position, words, prompt_ids, sampled_ids, logprobs)
    WHERE seq = before + n
  )
  SELECT seq - before AS place FROM place, added`;

const TURNS = `
  SELECT seq, words, prompt_ids AS "promptIds", sampled_ids AS "sampledIds", logprobs
  FROM trainyard.turns WHERE run = $1 AND seq = ANY($2) ORDER BY seq, position`;

function selection(
  filter: TrajectoryFilter,
): Readonly<Record<'where' | 'limit', string>> & { readonly values: readonly (string | number)[] } {
  checkFilter(filter);
  const values: (string | number)[] = [];
  const bound = (value: string | number): string => `$${values.push(value) + 1}`;
  const { purpose, groupId, taskId, outcome, trained, limit } = filter;
  const columns = { purpose, group_id: groupId && cell(groupId), task_id: taskId && cell(taskId), outcome };
  const conditions = Object.entries(columns).flatMap(([name, value]) =>
    value === undefined ? [] : [`AND ${name} = ${bound(value)}`],
  );
  if (trained !== undefined) {
    conditions.push(`AND ${trained ? '' : 'NOT '}EXISTS (SELECT FROM trainyard.manifest_rollouts AS trained
      WHERE trained.run = trajectories.run AND trained.rollout_id = trajectories.rollout_id)`);
  }
  return { where: conditions.join(' '), limit: limit === undefined ? '' : `LIMIT ${bound(limit)}`, values };
}

type Short = Omit<Summarised, 'turns'> & {
  readonly turns: readonly (Summarised['turns'][number] & { readonly index: number })[];
};

function inShort({
  rolloutId,
  groupId,
  taskId,
  purpose,
  outcome,
  grade,
  unanswered,
  startedAt,
  endedAt,
  turns,
}: Trajectory): string {
  const shortTurns = turns.map(({ index, role, trainable, policyVersion, fork, usage, sampledIds, response }) => {
    const tool_calls = response.tool_calls?.map((call) => ({ function: { name: call.function.name } }));
    return {
      index,
      role,
      trainable,
      policyVersion,
      fork,
      usage,
      sampledIds: { length: sampledIds.length },
      response: { tool_calls },
    };
  });
  const rest = { rolloutId, groupId, taskId, purpose, outcome, grade, unanswered, startedAt, endedAt };
  return JSON.stringify({ ...rest, turns: shortTurns });
}

function shortIn(text: string): Short {
  try {
    return JSON.parse(text) as Short;
  } catch {
    throw new DecodeError('found text that is not JSON');
  }
}

function checkLengths(ids: readonly string[]): void {
  const long = ids.find((id) => Buffer.byteLength(id) > LONGEST_ID);
  if (long === undefined) return;
  const hint = `nothing was written; PostgreSQL keeps ids of up to ${LONGEST_ID} bytes`;
  throw new TrainyardError('STORE_FAILED', `found an id of ${Buffer.byteLength(long)} bytes: ${long.slice(0, 60)}…`, hint);
}
