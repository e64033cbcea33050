/**
 * The store of a run on one machine: a SQLite file in WAL mode, synced at every commit, through Node's own `node:sqlite`. Several processes
 * may append to one file. Writes use group commit; reads see what was acknowledged and verify each record's digest, so damage is an error
 * and never a different trajectory. Nothing is updated or deleted. SQLite runs on the calling thread; only the disk sync does not.
 */
import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync, SQLOutputValue } from 'node:sqlite';
import { promisify } from 'node:util';
import type { Store, TrajectoryFilter } from '../core/contracts.ts';
import { defined } from '../core/json.ts';
import { summaryOf } from '../core/turns.ts';
import type { BatchManifest, Mark, RolloutSummary, Trajectory } from '../core/types.ts';
import {
  checkFilter,
  DecodeError,
  decodeManifest,
  decodeMark,
  decodeTrajectory,
  type EncodedRecord,
  type EncodedTrajectory,
  encodeRecord,
  encodeTrajectory,
  keepManifest,
  keepMark,
  RECORD_IN_SHORT,
  sameBytes,
  shortTrajectory,
  shortTurn,
  WORDS_IN_SHORT,
} from './records.ts';
import { IN_MEMORY, openStoreFile } from './sqlite-file.ts';
import { checkManifest, closedError, conflictError, damageError, sqliteError, unmarkable } from './store-errors.ts';

/**
 * Opens the store, or creates it; the folder must exist. `:memory:` keeps nothing on disk. Throws STORE_FORMAT if the store belongs to a run
 * other than `run`.
 */
export async function openSqliteStore(path: string, run?: string): Promise<Store> {
  return new SqliteStore(path, await openStoreFile(path, run));
}

class SqliteStore implements Store {
  readonly #path: string;
  readonly #database: DatabaseSync;
  readonly #statements: Statements;
  readonly #writes: GroupCommit;
  readonly #log: LogSync | undefined;
  #closed = false;

  constructor(path: string, database: DatabaseSync) {
    this.#path = path;
    this.#database = database;
    this.#statements = prepared(database);
    this.#log = path === IN_MEMORY ? undefined : new LogSync(path);
    this.#writes = new GroupCommit(database, this.#log);
  }

  async append(trajectory: Trajectory): Promise<void> {
    this.#checkOpen();
    const encoded = encodeTrajectory(trajectory);
    const { rolloutId, groupId, taskId, purpose, outcome } = trajectory;
    // Only what the closure needs: thousands of rollouts may end at once, and none should stay in memory until the transaction.
    const columns = [rolloutId, groupId, taskId, purpose, outcome.kind] as const;
    await this.#write(`append ${JSON.stringify(rolloutId)}`, () => this.#insertTrajectory(columns, encoded));
  }

  async read(rolloutId: string): Promise<Trajectory | undefined> {
    return this.#reading(`read ${JSON.stringify(rolloutId)}`, () => {
      const row = this.#statements.trajectory.get(rolloutId);
      return row === undefined ? undefined : this.#trajectoryOf(row);
    });
  }

  async query(filter: TrajectoryFilter = {}): Promise<readonly Trajectory[]> {
    return this.#reading('query trajectories', () => {
      checkFilter(filter);
      const { where, limit, values } = selection(filter);
      const rows = this.#database
        .prepare(`SELECT seq, record, digest FROM trajectories ${where} ORDER BY seq ${limit}`)
        .all(...values);
      return rows.map((row) => this.#trajectoryOf(row));
    });
  }

  async summaries(after = 0, limit?: number): Promise<readonly RolloutSummary[]> {
    return this.#reading('list rollouts', () => {
      checkFilter(defined({ limit }));
      const rows = this.#statements.summaries.all(after, limit ?? -1);
      const last = rows.at(-1);
      if (last === undefined) return [];
      const turns = this.#statements.turnsInShort.all(after, integerIn(last, 'seq'));
      const bySeq = Map.groupBy(turns, (turn) => integerIn(turn, 'trajectory'));
      return rows.map((row) => {
        const seq = integerIn(row, 'seq');
        const short = (turn: Row) => shortTurn(textIn(turn, 'words'), integerIn(turn, 'sampled'));
        return summaryOf(shortTrajectory(textIn(row, 'record'), (bySeq.get(seq) ?? []).map(short)), seq);
      });
    });
  }

  async count(filter: TrajectoryFilter = {}): Promise<number> {
    return this.#reading('count trajectories', () => {
      checkFilter(filter);
      const { where, limit, values } = selection(filter);
      const row = this.#database
        .prepare(`SELECT count(*) AS n FROM (SELECT 1 FROM trajectories ${where} ${limit})`)
        .get(...values);
      return integerIn(row, 'n');
    });
  }

  async groupIds(filter: TrajectoryFilter = {}): Promise<readonly string[]> {
    return this.#reading('list groups', () => {
      checkFilter(filter);
      const { where, limit, values } = selection(filter);
      const found = `SELECT seq, group_id FROM trajectories ${where} ORDER BY seq ${limit}`;
      const rows = this.#database.prepare(`SELECT group_id FROM (${found}) GROUP BY group_id ORDER BY min(seq)`).all(...values);
      return rows.map((row) => textIn(row, 'group_id'));
    });
  }

  async commit(manifest: BatchManifest): Promise<void> {
    this.#checkOpen();
    const kept = keepManifest(manifest);
    await this.#write(`commit step ${kept.step}`, () => this.#insertManifest(kept));
  }

  async manifests(after = 0): Promise<readonly BatchManifest[]> {
    return this.#reading('read manifests', () => this.#statements.manifests.all(after).map(manifestOf));
  }

  async mark(marks: readonly Mark[]): Promise<void> {
    this.#checkOpen();
    const kept = marks.map(keepMark);
    await this.#write('mark rollouts', () => {
      for (const mark of kept) this.#insertMark(mark);
    });
  }

  async marks(): Promise<readonly Mark[]> {
    return this.#reading('read marks', () => this.#statements.marks.all().map((row) => decodeMark(recordIn(row))));
  }

  /** Waits for pending writes. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#writes.close();
    this.#log?.close();
    this.#database.close();
  }

  #insertTrajectory(columns: readonly [rolloutId: string, ...others: string[]], encoded: EncodedTrajectory): void {
    const [rolloutId] = columns;
    const present = this.#statements.trajectory.get(rolloutId);
    if (present !== undefined) {
      if (sameBytes(blobIn(present, 'digest'), encoded.digest)) return;
      throw conflictError(rolloutId);
    }
    const added = this.#statements.insertTrajectory.run(...columns, encoded.record, encoded.digest);
    encoded.turns.forEach((turn, position) => {
      const { words, promptIds, sampledIds, logprobs } = turn;
      this.#statements.insertTurn.run(added.lastInsertRowid, position, words, promptIds, sampledIds, logprobs);
    });
  }

  #insertManifest(kept: BatchManifest): void {
    const lastRow = this.#statements.lastManifest.get();
    checkManifest(kept, {
      last: lastRow === undefined ? undefined : manifestOf(lastRow),
      isKept: (id) => this.#statements.trajectory.get(id) !== undefined,
      stepOf: (id) => {
        const row = this.#statements.stepOf.get(id);
        return row === undefined ? undefined : integerIn(row, 'step');
      },
    });
    const { record, digest } = encodeRecord(kept);
    this.#statements.insertManifest.run(kept.step, record, digest);
    for (const id of kept.rolloutIds) this.#statements.insertMember.run(id, kept.step);
  }

  #insertMark(mark: Mark): void {
    const row = this.#statements.trajectory.get(mark.rolloutId);
    const isThere =
      row !== undefined &&
      (mark.turn === undefined || this.#statements.hasTurn.get(integerIn(row, 'seq'), mark.turn) !== undefined);
    if (!isThere) throw unmarkable(mark, row !== undefined);
    const { record, digest } = encodeRecord(mark);
    this.#statements.insertMark.run(mark.rolloutId, record, digest);
  }

  #trajectoryOf(row: Row): Trajectory {
    const turns = this.#statements.turns.all(integerIn(row, 'seq')).map((turn) => ({
      words: textIn(turn, 'words'),
      promptIds: blobIn(turn, 'prompt_ids'),
      sampledIds: blobIn(turn, 'sampled_ids'),
      logprobs: blobIn(turn, 'logprobs'),
    }));
    return decodeTrajectory({ record: textIn(row, 'record'), turns, digest: blobIn(row, 'digest') });
  }

  async #write(doing: string, apply: () => void): Promise<void> {
    try {
      await this.#writes.write(apply);
    } catch (cause) {
      throw this.#errorOf(doing, cause);
    }
  }

  #reading<T>(doing: string, fn: () => T): T {
    this.#checkOpen();
    try {
      return fn();
    } catch (cause) {
      throw this.#errorOf(doing, cause);
    }
  }

  #errorOf(doing: string, cause: unknown): Error {
    if (cause instanceof DecodeError) return damageError(this.#path, `could not ${doing}: ${cause.message}`, cause);
    return sqliteError(this.#path, doing, cause);
  }

  #checkOpen(): void {
    if (this.#closed) throw closedError(`the store ${this.#path}`);
  }
}

function manifestOf(row: Row): BatchManifest {
  return decodeManifest(recordIn(row));
}

function recordIn(row: Row): EncodedRecord {
  return { record: textIn(row, 'record'), digest: blobIn(row, 'digest') };
}

// SQL. Values are always bound, never interpolated.

type Row = Readonly<Record<string, SQLOutputValue>>;

type Statements = ReturnType<typeof prepared>;

function prepared(database: DatabaseSync) {
  const sql = (text: string) => database.prepare(text);
  return {
    trajectory: sql('SELECT seq, record, digest FROM trajectories WHERE rollout_id = ?'),
    turns: sql('SELECT words, prompt_ids, sampled_ids, logprobs FROM turns WHERE trajectory = ? ORDER BY position'),
    summaries: sql(
      `SELECT seq, json_extract(record, ${pathsOf(RECORD_IN_SHORT)}) AS record FROM trajectories WHERE seq > ? ORDER BY seq LIMIT ?`,
    ),
    turnsInShort: sql(
      `SELECT trajectory, json_extract(words, ${pathsOf(WORDS_IN_SHORT)}) AS words, length(sampled_ids) / 4 AS sampled
       FROM turns WHERE trajectory > ? AND trajectory <= ? ORDER BY trajectory, position`,
    ),
    insertTrajectory: sql(
      'INSERT INTO trajectories (rollout_id, group_id, task_id, purpose, outcome, record, digest) VALUES (?, ?, ?, ?, ?, ?, ?)',
    ),
    insertTurn: sql(
      'INSERT INTO turns (trajectory, position, words, prompt_ids, sampled_ids, logprobs) VALUES (?, ?, ?, ?, ?, ?)',
    ),
    manifests: sql('SELECT record, digest FROM manifests WHERE step > ? ORDER BY step'),
    lastManifest: sql('SELECT record, digest FROM manifests ORDER BY step DESC LIMIT 1'),
    stepOf: sql('SELECT step FROM manifest_rollouts WHERE rollout_id = ?'),
    insertManifest: sql('INSERT INTO manifests (step, record, digest) VALUES (?, ?, ?)'),
    insertMember: sql('INSERT INTO manifest_rollouts (rollout_id, step) VALUES (?, ?)'),
    hasTurn: sql("SELECT 1 FROM turns WHERE trajectory = ? AND json_extract(words, '$.index') = ?"),
    marks: sql('SELECT record, digest FROM marks ORDER BY seq'),
    insertMark: sql('INSERT INTO marks (rollout_id, record, digest) VALUES (?, ?, ?)'),
  };
}

/** With several paths, json_extract gives a list as text: it parses a record once, and rounds no number. */
function pathsOf(names: readonly string[]): string {
  return names.map((name) => `'$.${name}'`).join(', ');
}

function selection(
  filter: TrajectoryFilter,
): Readonly<Record<'where' | 'limit', string>> & { readonly values: readonly (string | number)[] } {
  const conditions: string[] = [];
  const values: (string | number)[] = [];
  const columns = { purpose: filter.purpose, group_id: filter.groupId, task_id: filter.taskId, outcome: filter.outcome };
  for (const [column, value] of Object.entries(columns)) {
    if (value === undefined) continue;
    conditions.push(`${column} = ?`);
    values.push(value);
  }
  if (filter.trained !== undefined) {
    conditions.push(`rollout_id ${filter.trained ? '' : 'NOT '}IN (SELECT rollout_id FROM manifest_rollouts)`);
  }
  const where = conditions.length === 0 ? '' : `WHERE ${conditions.join(' AND ')}`;
  if (filter.limit === undefined) return { where, limit: '', values };
  return { where, limit: 'LIMIT ?', values: [...values, filter.limit] };
}

function textIn(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== 'string') throw new DecodeError(`column ${column} holds ${typeof value}, expected text`);
  return value;
}

function blobIn(row: Row, column: string): Uint8Array {
  const value = row[column];
  if (!(value instanceof Uint8Array)) throw new DecodeError(`column ${column} holds ${typeof value}, expected bytes`);
  return value;
}

function integerIn(row: Row | undefined, column: string): number {
  const value = row?.[column];
  if (typeof value !== 'number') throw new DecodeError(`column ${column} holds ${typeof value}, expected an integer`);
  return value;
}

// ── group commit ──────────────────────────────────────────────────────────────────────────────────────────────────────

// Group commit: concurrent writes share one transaction, and transactions share one disk sync. Writes apply in call order.
//
// A write is acknowledged only when it is on disk: after COMMIT and a sync that started later. The sync runs off the main thread; writes
// that arrive meanwhile are committed and join the next sync. A refused write is rolled back alone. If the transaction fails, every write
// in it fails. If a sync fails, the state of the disk is unknown and a later sync would not reveal it, so no write is acknowledged from
// then on. Writes of a batch in which one is refused are applied twice.

interface PendingWrite {
  readonly apply: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

export interface DiskSync {
  later(): Promise<void>;
  now(): void;
}

type Verdict = { readonly kind: 'written' } | { readonly kind: 'refused'; readonly cause: unknown };

export class GroupCommit {
  readonly #database: DatabaseSync;
  readonly #disk: DiskSync | undefined;
  #pending: PendingWrite[] = [];
  /** Committed, but not known to be on disk. */
  #committed: PendingWrite[] = [];
  #syncing: Promise<void> | undefined;
  #syncFailure: { readonly cause: unknown } | undefined;

  /** Without `disk`, a commit is all there is to wait for. */
  constructor(database: DatabaseSync, disk?: DiskSync) {
    this.#database = database;
    this.#disk = disk;
  }

  /** `apply` runs inside the transaction and throws to refuse the write. */
  write(apply: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ apply, resolve, reject });
      // Writes requested during this turn of the event loop join the same transaction.
      if (this.#pending.length === 1) setImmediate(() => this.#flush());
    });
  }

  /** Commits pending writes now. Resolves when no write waits for the disk. */
  async close(): Promise<void> {
    this.#commit();
    const left = this.#committed.splice(0);
    settle(left, () => {
      if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
      this.#disk?.now();
    });
    await this.#syncing;
  }

  #flush(): void {
    this.#commit();
    this.#syncing ??= this.#sync().finally(() => {
      this.#syncing = undefined;
    });
  }

  /** Syncs repeatedly while writes were committed during the last sync. */
  async #sync(): Promise<void> {
    while (this.#committed.length > 0) {
      const batch = this.#committed.splice(0);
      try {
        if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
        await this.#disk?.later();
        for (const write of batch) write.resolve();
      } catch (cause) {
        this.#syncFailure = { cause };
        for (const write of batch) write.reject(cause);
      }
    }
  }

  #commit(): void {
    const batch = this.#pending.splice(0);
    if (batch.length === 0) return;
    if (this.#syncFailure !== undefined) {
      for (const write of batch) write.reject(this.#syncFailure.cause);
      return;
    }
    let verdicts: readonly Verdict[];
    try {
      verdicts = this.#transaction(batch);
    } catch (cause) {
      for (const write of batch) write.reject(cause);
      return;
    }
    batch.forEach((write, position) => {
      const verdict = verdicts[position]!;
      if (verdict.kind === 'written') this.#committed.push(write);
      else write.reject(verdict.cause);
    });
  }

  /** Refusals are rare, and a savepoint copies each page that is touched after it: only a batch that had one is written again with them. */
  #transaction(batch: readonly PendingWrite[], isAgain = false): readonly Verdict[] {
    this.#database.exec('BEGIN IMMEDIATE');
    try {
      const verdicts = batch.map((write) => this.#applyOne(write, isAgain));
      this.#database.exec('COMMIT');
      return verdicts;
    } catch (cause) {
      const isRefused = this.#database.isTransaction && cause instanceof Refused;
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
      if (isRefused) return this.#transaction(batch, true);
      throw cause;
    }
  }

  #applyOne(write: PendingWrite, isAgain: boolean): Verdict {
    if (isAgain) this.#database.exec('SAVEPOINT one_write');
    try {
      write.apply();
    } catch (cause) {
      // On a full disk SQLite may roll back the whole transaction, including the other writes.
      if (!this.#database.isTransaction) throw cause;
      if (!isAgain) throw new Refused();
      this.#database.exec('ROLLBACK TO one_write; RELEASE one_write');
      return { kind: 'refused', cause };
    }
    if (isAgain) this.#database.exec('RELEASE one_write');
    return { kind: 'written' };
  }
}

class Refused extends Error {}

function settle(writes: readonly PendingWrite[], sync: () => void): void {
  if (writes.length === 0) return;
  try {
    sync();
    for (const write of writes) write.resolve();
  } catch (cause) {
    for (const write of writes) write.reject(cause);
  }
}

// In WAL mode a commit is durable once its frames in the log are synced. SQLite would sync inside COMMIT, on the calling thread, and stall
// every rollout of the process. The log is never locked, so our own handle on it is harmless. It stays open as long as the database does,
// and SQLite neither removes nor replaces the log in that time.

const sync = promisify(fdatasync);

export class LogSync implements DiskSync {
  readonly #path: string;
  #file: number | undefined;

  constructor(databasePath: string) {
    this.#path = `${databasePath}-wal`;
  }

  async later(): Promise<void> {
    await sync(this.#open());
  }

  now(): void {
    fdatasyncSync(this.#open());
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  /** Opens lazily, because the first commit creates the log. Writable, because Windows requires that for a sync. */
  #open(): number {
    this.#file ??= openSync(this.#path, 'r+');
    return this.#file;
  }
}
