/**
 * The tables in PostgreSQL: one schema for all runs of a database, brought up to date by migrations that are only ever added to. All of them
 * run in one transaction under a lock, so that several processes may open a new database at once. Refuses a schema that is newer or not ours.
 *
 * Ids are kept escaped (`cell`), because text in PostgreSQL cannot hold U+0000, and compared as bytes. `short` is what a list needs of a
 * rollout, as JSON. It is written rather than extracted on reading, because PostgreSQL cannot look into JSON that contains \u0000. Neither
 * compressed nor checked by foreign keys is what every rollout writes much of: the digest of a trajectory covers its turns.
 */
import type { ClientBase, QueryResult } from 'pg';
import { TrainyardError } from '../core/errors.ts';
import { formatError } from './store-errors.ts';

/** "Trny" in ASCII. */
const MIGRATION_LOCK = 0x54726e79;

/** The version of a database is the number of those it has. */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE trainyard.runs (
     id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
     name text COLLATE "C" NOT NULL UNIQUE,
     last_seq bigint NOT NULL DEFAULT 0,
     created_at timestamptz NOT NULL DEFAULT now()
   );
   CREATE TABLE trainyard.trajectories (
     run bigint NOT NULL,
     seq bigint NOT NULL,
     rollout_id text COLLATE "C" NOT NULL,
     group_id text COLLATE "C" NOT NULL,
     task_id text COLLATE "C" NOT NULL,
     purpose text NOT NULL,
     outcome text NOT NULL,
     short text NOT NULL,
     record text NOT NULL,
     digest bytea NOT NULL,
     PRIMARY KEY (run, seq),
     UNIQUE (run, rollout_id)
   );
   CREATE INDEX trajectories_by_group ON trainyard.trajectories (run, group_id);
   CREATE INDEX trajectories_by_task ON trainyard.trajectories (run, task_id);
   CREATE TABLE trainyard.turns (
     run bigint NOT NULL,
     seq bigint NOT NULL,
     position integer NOT NULL,
     words text NOT NULL,
     prompt_ids bytea NOT NULL,
     sampled_ids bytea NOT NULL,
     logprobs bytea NOT NULL,
     PRIMARY KEY (run, seq, position)
   );
   ALTER TABLE trainyard.trajectories ALTER record SET STORAGE EXTERNAL;
   ALTER TABLE trainyard.turns ALTER words SET STORAGE EXTERNAL, ALTER prompt_ids SET STORAGE EXTERNAL,
     ALTER sampled_ids SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL;
   CREATE TABLE trainyard.manifests (
     run bigint NOT NULL REFERENCES trainyard.runs (id),
     step bigint NOT NULL,
     record text NOT NULL,
     digest bytea NOT NULL,
     PRIMARY KEY (run, step)
   );
   CREATE TABLE trainyard.manifest_rollouts (
     run bigint NOT NULL,
     rollout_id text COLLATE "C" NOT NULL,
     step bigint NOT NULL,
     PRIMARY KEY (run, rollout_id),
     FOREIGN KEY (run, rollout_id) REFERENCES trainyard.trajectories (run, rollout_id),
     FOREIGN KEY (run, step) REFERENCES trainyard.manifests (run, step)
   );
   CREATE TABLE trainyard.marks (
     run bigint NOT NULL,
     seq bigint GENERATED ALWAYS AS IDENTITY,
     request uuid NOT NULL,
     rollout_id text COLLATE "C" NOT NULL,
     record text NOT NULL,
     digest bytea NOT NULL,
     PRIMARY KEY (run, seq),
     FOREIGN KEY (run, rollout_id) REFERENCES trainyard.trajectories (run, rollout_id)
   );`,
];

/** Inside a transaction of the caller. Returns the id of the run of this name. Throws STORE_FORMAT for tables that are not ours. */
export async function prepareSchema(client: ClientBase, shown: string, run: string, isKnown = false): Promise<number> {
  await client.query('SELECT pg_advisory_xact_lock($1)', [MIGRATION_LOCK]);
  const version = await versionOf(client, shown);
  if (version === undefined) {
    await client.query('CREATE SCHEMA trainyard; CREATE TABLE trainyard.schema_version (version integer NOT NULL)');
    await client.query('INSERT INTO trainyard.schema_version VALUES (0)');
  }
  if (version !== MIGRATIONS.length) {
    for (const migration of MIGRATIONS.slice(version ?? 0)) await client.query(migration);
    await client.query('UPDATE trainyard.schema_version SET version = $1', [MIGRATIONS.length]);
  }
  const known = (): Promise<QueryResult> => client.query('SELECT id FROM trainyard.runs WHERE name = $1', [cell(run)]);
  const { rows } = await known();
  if (rows.length > 0) return rows[0].id;
  if (isKnown) {
    const hint = 'give the directory of the run, or its id as its run.json has it; or --store the database that has it';
    throw new TrainyardError('FILE_NOT_FOUND', `${shown} holds no run ${JSON.stringify(run)}`, hint);
  }
  await client.query('INSERT INTO trainyard.runs (name) VALUES ($1)', [cell(run)]);
  return (await known()).rows[0].id;
}

/** Undefined if there is no schema yet. */
async function versionOf(client: ClientBase, shown: string): Promise<number | undefined> {
  const { rows } = await client.query(
    `SELECT to_regnamespace('trainyard') IS NOT NULL AS schema, to_regclass('trainyard.schema_version') IS NOT NULL AS versioned,
       current_setting('server_encoding') AS encoding`,
  );
  const [{ schema, versioned, encoding }] = rows;
  // SQL_ASCII keeps bytes as they are.
  if (encoding !== 'UTF8' && encoding !== 'SQL_ASCII') {
    throw formatError(
      shown,
      `found a database in ${encoding}, expected UTF8`,
      "create it with: CREATE DATABASE … ENCODING 'UTF8'",
    );
  }
  if (!schema) return undefined;
  const hint = 'give another database; nothing was changed';
  if (!versioned) throw formatError(shown, 'found a schema "trainyard" of another application, expected none or ours', hint);
  const version: unknown = (await client.query('SELECT version FROM trainyard.schema_version')).rows[0]?.version;
  if (typeof version === 'number' && version >= 0 && version <= MIGRATIONS.length) return version;
  const newer = 'use the release of Trainyard that wrote it, or give another database; nothing was changed';
  throw formatError(shown, `found store format version ${String(version)}, expected at most ${MIGRATIONS.length}`, newer);
}

export function cell(id: string): string {
  return id.replaceAll('\\', '\\\\').replaceAll('\0', '\\0');
}

export function idIn(text: string): string {
  return text.replaceAll(/\\(.)/g, (_, escaped: string) => (escaped === '0' ? '\0' : escaped));
}
