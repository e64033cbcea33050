/**
 * Opens or creates the store's file. Rejects, and leaves untouched, anything that is not a store of this format version, identified by
 * SQLite's application id and user version. There is no migration: another version is an error.
 */
import { statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout } from 'node:timers/promises';
import { TrainyardError } from '../core/errors.ts';
import { damageError, formatError, isBusy, sqliteError } from './store-errors.ts';

/** A store that is gone when it is closed: nothing of it is on disk. SQLite's own name for it. */
export const IN_MEMORY = ':memory:';

/** "Trny" in ASCII. */
const APPLICATION_ID = 0x54726e79;
const FORMAT_VERSION = 3;

/** How long a statement waits for another process's transaction. */
const BUSY_TIMEOUT_MS = 5_000;
const BUSY_RETRY_MS = 10;

/** `seq` is the append order. `record` holds everything but the turns, including what also has a column. */
const TABLES = `
  CREATE TABLE trajectories (
    seq INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL UNIQUE,
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    purpose TEXT NOT NULL,
    outcome TEXT NOT NULL,
    record TEXT NOT NULL,
    digest BLOB NOT NULL
  ) STRICT;
  CREATE INDEX trajectories_by_group ON trajectories (group_id);
  CREATE INDEX trajectories_by_task ON trajectories (task_id);
  CREATE TABLE turns (
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    position INTEGER NOT NULL,
    words TEXT NOT NULL,
    prompt_ids BLOB NOT NULL,
    sampled_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    PRIMARY KEY (trajectory, position)
  ) STRICT;
  CREATE TABLE manifests (
    step INTEGER PRIMARY KEY,
    record TEXT NOT NULL,
    digest BLOB NOT NULL
  ) STRICT;
  CREATE TABLE manifest_rollouts (
    rollout_id TEXT NOT NULL UNIQUE REFERENCES trajectories (rollout_id),
    step INTEGER NOT NULL REFERENCES manifests (step)
  ) STRICT;
  CREATE TABLE owner (run TEXT NOT NULL) STRICT;
  CREATE TABLE marks (
    seq INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL REFERENCES trajectories (rollout_id),
    record TEXT NOT NULL,
    digest BLOB NOT NULL
  ) STRICT;
`;

/** Throws STORE_FORMAT if the file is not a store of this version, STORE_FAILED if it cannot be used. */
export async function openStoreFile(path: string, run?: string): Promise<DatabaseSync> {
  const deadline = Date.now() + BUSY_TIMEOUT_MS;
  while (true) {
    try {
      return tryOpen(path, run);
    } catch (cause) {
      // SQLite does not wait by itself when two processes switch the same new file to WAL mode.
      if (!isBusy(cause) || Date.now() > deadline) throw sqliteError(path, 'open the store', cause);
      await setTimeout(BUSY_RETRY_MS);
    }
  }
}

function tryOpen(path: string, run: string | undefined): DatabaseSync {
  refuseLostFile(path);
  const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
  try {
    // Checks before any write, so that a foreign file stays unchanged.
    const isNew = inTransaction(database, 'DEFERRED', () => checkFormat(path, database));
    // A rollout is tens of kilobytes: larger pages are fewer to write.
    if (isNew) database.exec('PRAGMA page_size = 16384');
    if (path !== IN_MEMORY) makeDurable(path, database);
    if (isNew) inTransaction(database, 'IMMEDIATE', () => createTables(path, database));
    if (run !== undefined) inTransaction(database, 'IMMEDIATE', () => checkOwner(path, database, run));
    return database;
  } catch (cause) {
    database.close();
    throw cause;
  }
}

/** DEFERRED gives several reads a consistent view of the file. */
function inTransaction<T>(database: DatabaseSync, kind: 'DEFERRED' | 'IMMEDIATE', fn: () => T): T {
  database.exec(`BEGIN ${kind}`);
  const result = fn();
  database.exec('COMMIT');
  return result;
}

/**
 * SQLite deletes the write-ahead log of an empty file, and with it everything acknowledged since the last checkpoint. Looks at the log
 * first, because a process that creates a store writes the data file before the log.
 */
function refuseLostFile(path: string): void {
  if (sizeOf(`${path}-wal`) === 0 || sizeOf(path) > 0) return;
  throw damageError(path, `found a write-ahead log (${path}-wal) but no data file, expected both`);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/** Returns whether the file is empty. Throws STORE_FORMAT if it is neither empty nor ours. */
function checkFormat(path: string, database: DatabaseSync): boolean {
  const application = numberOf(database, 'PRAGMA application_id');
  const version = numberOf(database, 'PRAGMA user_version');
  if (application === APPLICATION_ID && version === FORMAT_VERSION) return false;
  if (application === APPLICATION_ID) {
    const hint = 'use the release of Trainyard that wrote it, or start a new run directory; the file was not changed';
    throw formatError(path, `found store format version ${version}, expected ${FORMAT_VERSION}`, hint);
  }
  const tables = numberOf(database, 'SELECT count(*) FROM sqlite_schema');
  if (application === 0 && version === 0 && tables === 0) return true;
  const found = `a SQLite database of another application (id ${application}, version ${version}, ${tables} tables and indexes)`;
  throw formatError(path, `found ${found}, expected a Trainyard store`, 'give another path; the file was not changed');
}

/** NORMAL leaves syncing the log after a commit to us (`GroupCommit`). SQLite does all other syncs, past the drive's cache on macOS. */
function makeDurable(path: string, database: DatabaseSync): void {
  const mode = Object.values(database.prepare('PRAGMA journal_mode = WAL').get() ?? {})[0];
  if (mode !== 'wal') {
    throw new TrainyardError(
      'STORE_FAILED',
      `${path}: found journal mode ${mode}, expected wal`,
      'put the run directory on a local disk; network file systems cannot share a write-ahead log',
    );
  }
  database.exec('PRAGMA synchronous = NORMAL; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON');
}

function createTables(path: string, database: DatabaseSync): void {
  // Another process may have created the tables since the first check.
  if (!checkFormat(path, database)) return;
  database.exec(`${TABLES} PRAGMA application_id = ${APPLICATION_ID}; PRAGMA user_version = ${FORMAT_VERSION}`);
}

/** A store belongs to the first run that opens it; otherwise a run would treat another's rollouts as its own. */
function checkOwner(path: string, database: DatabaseSync, run: string): void {
  const owner = Object.values(database.prepare('SELECT run FROM owner').get() ?? {})[0];
  if (owner === undefined) database.prepare('INSERT INTO owner VALUES (?)').run(run);
  else if (owner !== run)
    throw formatError(
      path,
      `found the store of run ${owner}, expected that of run ${run}`,
      'put back the store of this run.json',
    );
}

function numberOf(database: DatabaseSync, sql: string): number {
  return Number(Object.values(database.prepare(sql).get() ?? {})[0]);
}
