/**
 * What the database holds for workers, and what their role may do with it: the tables of coordinator and workers, pg-boss's, and one table of
 * rights over both schemas. Each coordinator brings all of it to this state when it starts, in one transaction, so that no right that an older
 * version granted is left. What a worker could write, nothing executes. Makes no role.
 */
import type { PoolClient } from 'pg';
import { inTransaction } from '../../store/postgres-connection.ts';

/** Of pg-boss: other applications in the database may have one of their own. */
export const SCHEMA = 'trainyard_queue';
/** Of pg-boss's tables in the release that package.json has; another one does not start on them. */
const SCHEMA_VERSION = 43;
/** The role that may run workers, if the database has it. */
export const WORKER_ROLE = 'trainyard_worker';
const BOTH = `trainyard, ${SCHEMA}`;
const LOCK = 0x54726e79;

/** What pg-boss writes of a job when it is taken, renewed or completed, and what a worker does when it gives one back. */
const STATE = 'state, retry_limit, retry_count, started_on, completed_on, output, heartbeat_on, blocked, pending_dependencies';

/**
 * All that the worker's role may do, by what is there; it is named where it may do nothing, too. It cannot read rollouts, answers or rewards,
 * nor write a task, a queue or anything that pg-boss makes SQL of.
 */
export const RIGHTS: Readonly<Record<string, string>> = {
  'TABLE trainyard.worker_runs': 'SELECT',
  'TABLE trainyard.weights': 'SELECT',
  'TABLE trainyard.results': 'INSERT',
  'TABLE trainyard.result_files': 'INSERT',
  'TABLE trainyard.attempts': 'INSERT (run, job, attempt, worker)',
  'TABLE trainyard.schema_version': '',
  'TABLE trainyard.runs': '',
  'SEQUENCE trainyard.runs_id_seq': '',
  'TABLE trainyard.trajectories': '',
  'TABLE trainyard.turns': '',
  'TABLE trainyard.manifests': '',
  'TABLE trainyard.manifest_rollouts': '',
  'TABLE trainyard.marks': '',
  'SEQUENCE trainyard.marks_seq_seq': '',
  [`TABLE ${SCHEMA}.version`]: 'SELECT (version)',
  [`TABLE ${SCHEMA}.queue`]: 'SELECT',
  [`TABLE ${SCHEMA}.job`]: '',
  [`TABLE ${SCHEMA}.job_common`]: `SELECT, UPDATE (${STATE})`,
  [`TABLE ${SCHEMA}.job_dependency`]: '',
  [`TABLE ${SCHEMA}.bam`]: '',
  [`TABLE ${SCHEMA}.schedule`]: '',
  [`TABLE ${SCHEMA}.subscription`]: '',
  [`TABLE ${SCHEMA}.warning`]: '',
  [`TABLE ${SCHEMA}.queue_stats`]: '',
  [`FUNCTION ${SCHEMA}.job_now()`]: 'EXECUTE',
  [`FUNCTION ${SCHEMA}.create_queue(text, jsonb)`]: '',
  [`FUNCTION ${SCHEMA}.delete_queue(text)`]: '',
  [`FUNCTION ${SCHEMA}.job_table_format(text, text)`]: '',
  [`FUNCTION ${SCHEMA}.job_table_run(text, text, text)`]: '',
  [`FUNCTION ${SCHEMA}.job_table_run_async(text, integer, text, text, text)`]: '',
};

const TABLES = `
  CREATE TABLE IF NOT EXISTS trainyard.worker_runs (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz
  );
  CREATE TABLE IF NOT EXISTS trainyard.weights (
    run text NOT NULL,
    version integer NOT NULL,
    file text NOT NULL,
    part integer NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (run, version, file, part)
  );
  ALTER TABLE trainyard.weights ALTER COLUMN bytes SET STORAGE EXTERNAL;
  CREATE TABLE IF NOT EXISTS trainyard.results (
    run text NOT NULL,
    job uuid NOT NULL,
    attempt integer NOT NULL,
    record text NOT NULL,
    digest bytea NOT NULL,
    words text[] NOT NULL,
    prompt_ids bytea[] NOT NULL,
    sampled_ids bytea[] NOT NULL,
    logprobs bytea[] NOT NULL,
    PRIMARY KEY (run, job)
  );
  ALTER TABLE trainyard.results ALTER record SET STORAGE EXTERNAL, ALTER words SET STORAGE EXTERNAL,
    ALTER prompt_ids SET STORAGE EXTERNAL, ALTER sampled_ids SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL;
  CREATE TABLE IF NOT EXISTS trainyard.result_files (
    run text NOT NULL,
    job uuid NOT NULL,
    number integer NOT NULL,
    path text NOT NULL,
    mode integer NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (run, job, number)
  );
  CREATE TABLE IF NOT EXISTS trainyard.attempts (
    run text NOT NULL,
    job uuid NOT NULL,
    attempt integer NOT NULL,
    worker text NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
  );
  CREATE INDEX IF NOT EXISTS attempts_by_job ON trainyard.attempts (run, job);
`;

/** What a coordinator can read. Rows beyond it are of workers of older releases, and their rollouts run again. */
const BOUNDS: Readonly<Record<string, string>> = {
  'trainyard.results': `octet_length(record) <= 268435456 AND cardinality(words) <= 100000
    AND (cardinality(prompt_ids), cardinality(sampled_ids), cardinality(logprobs)) = (cardinality(words), cardinality(words), cardinality(words))
    AND pg_column_size(words)::bigint + pg_column_size(prompt_ids) + pg_column_size(sampled_ids) + pg_column_size(logprobs) <= 536870912`,
  'trainyard.result_files': 'octet_length(bytes) <= 209715200 AND length(path) <= 4000',
  'trainyard.attempts': 'length(worker) <= 1000',
  [`${SCHEMA}.job_common`]: 'retry_count BETWEEN 0 AND 100000 AND retry_limit BETWEEN 0 AND 100000',
};
const BOUNDED = Object.entries(BOUNDS)
  .map(
    ([table, bound]) =>
      `DELETE FROM ${table} WHERE NOT (${bound}); ALTER TABLE ${table} DROP CONSTRAINT IF EXISTS bounded, ADD CONSTRAINT bounded CHECK (${bound})`,
  )
  .join('; ');

/**
 * pg-boss makes SQL of `table_name` and `partition`, and executes whatever is in `bam`. Other rows than ours can be of an old database only,
 * whose workers could write them, and would be executed by whoever supervises, or migrates.
 */
const QUEUES = `
  UPDATE ${SCHEMA}.queue SET table_name = 'job_common', partition = false, policy = 'standard', dead_letter = NULL
    WHERE (table_name, partition, policy) <> ('job_common', false, 'standard') OR dead_letter IS NOT NULL;
  DELETE FROM ${SCHEMA}.bam;
  ALTER TABLE ${SCHEMA}.queue DROP CONSTRAINT IF EXISTS only_ours, ADD CONSTRAINT only_ours
    CHECK (table_name = 'job_common' AND NOT partition AND policy = 'standard' AND dead_letter IS NULL);
`;

/** With the columns' rights, and those that everyone has. */
const REVOKED = ['TABLES', 'SEQUENCES', 'ROUTINES']
  .flatMap((kind) => [
    `REVOKE ALL ON ALL ${kind} IN SCHEMA ${BOTH} FROM PUBLIC, ${WORKER_ROLE} CASCADE`,
    `ALTER DEFAULT PRIVILEGES IN SCHEMA ${BOTH} REVOKE ALL ON ${kind} FROM PUBLIC, ${WORKER_ROLE} CASCADE`,
  ])
  .concat(`REVOKE ALL ON SCHEMA ${BOTH} FROM PUBLIC, ${WORKER_ROLE} CASCADE`)
  .join('; ');

const GRANTED = Object.entries(RIGHTS)
  .filter(([, rights]) => rights !== '')
  .map(([what, rights]) => `GRANT ${rights} ON ${what} TO ${WORKER_ROLE}`)
  .concat(`GRANT USAGE ON SCHEMA ${BOTH} TO ${WORKER_ROLE}`)
  .join('; ');

const NO_ROLE = `there is no role ${WORKER_ROLE}: a worker that logs in as another one can change rewards. CREATE ROLE ${WORKER_ROLE} LOGIN PASSWORD '…', and start again`;

/** As coordinator, when the store's own tables are there. Returns what else its user, or the worker's role, could do. */
export async function prepareTables(client: PoolClient): Promise<readonly string[]> {
  // Of the session, which ends with what fails: scripts of pg-boss are transactions of their own.
  await client.query('SELECT pg_advisory_lock($1)', [LOCK]);
  const roles = await client.query('SELECT FROM pg_roles WHERE rolname = $1', [WORKER_ROLE]);
  const hasWorkers = roles.rowCount !== 0;
  await migrate(client, hasWorkers);
  await inTransaction(client, () =>
    client.query([TABLES, BOUNDED, QUEUES, ...(hasWorkers ? [REVOKED, GRANTED] : [])].join('; ')),
  );
  const found = [...(await superuser(client)), ...(hasWorkers ? await surplus(client) : [NO_ROLE])];
  await client.query('SELECT pg_advisory_unlock($1)', [LOCK]);
  return found;
}

/** Once, by pg-boss's own scripts, with indexes built here: it would keep commands for later in a table, and execute what it finds there. */
async function migrate(client: PoolClient, hasWorkers: boolean): Promise<void> {
  const { getConstructionPlans, getMigrationPlans } = await import('pg-boss');
  const { rows } = await client.query('SELECT to_regclass($1) IS NOT NULL AS known', [`${SCHEMA}.version`]);
  if (!rows[0].known) {
    await client.query(getConstructionPlans(SCHEMA));
    return;
  }
  const { version } = (await client.query(`SELECT version FROM ${SCHEMA}.version`)).rows[0];
  if (version >= SCHEMA_VERSION) return;
  // A migration makes SQL of queues as well.
  await inTransaction(client, () => client.query(hasWorkers ? `${REVOKED}; ${QUEUES}` : QUEUES));
  for (const script of getMigrationPlans(SCHEMA, version).split(/^-- inlined .*$/m)) await client.query(script);
}

async function superuser(client: PoolClient): Promise<readonly string[]> {
  const { rows } = await client.query("SELECT current_user AS name WHERE current_setting('is_superuser') = 'on'");
  const advice = 'so a mistake would reach the whole server. One that owns the database is enough: trainyard help many-machines';
  return rows.map(({ name }) => `the database user of this coordinator, ${name}, is a superuser, ${advice}`);
}

/** By other roles that it is in, or granted by others: only they can revoke it. */
async function surplus(client: PoolClient): Promise<readonly string[]> {
  const sql = `SELECT format('TABLE %I.%I', nspname, relname) AS what, verb FROM pg_class, pg_namespace,
      unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS verb
    WHERE relnamespace = pg_namespace.oid AND nspname IN ('trainyard', '${SCHEMA}') AND relkind IN ('r', 'p')
      AND has_table_privilege($1, pg_class.oid, verb) ORDER BY what, verb`;
  const { rows } = await client.query<Record<'what' | 'verb', string>>(sql, [WORKER_ROLE]);
  const more = rows.filter(({ what, verb }) => RIGHTS[what]?.split(/, (?![^(]*\))/).includes(verb) !== true);
  if (more.length === 0) return [];
  const named = more.slice(0, 3).map(({ what, verb }) => `${verb} ON ${what}`);
  const found = `the role ${WORKER_ROLE} may do more than a worker needs: ${named.join(', ')}${more.length > 3 ? ' …' : ''}`;
  return [`${found}; take it out of other roles, and revoke what others granted it or everyone`];
}
