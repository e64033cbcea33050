/** What the worker's role may do in the database: tried as the role, and as PostgreSQL's catalogue says; and what it could write where it may not. */
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { getRollbackPlans } from 'pg-boss';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { randomTrajectory } from '../../../packages/testing/src/trajectories.ts';
import { databaseFor, needsPostgres } from '../../../test/postgres/server.ts';
import { openPostgresStore } from '../../store/postgres.ts';
import { ATTEMPTS, type ClaimedJob, type RolloutJob, type RunSpec, WorkQueue } from './queue.ts';
import { RIGHTS } from './rights.ts';

const OWNER = 'trainyard_test_owner';
const WORKER = 'trainyard_worker';
const SPEC: RunSpec = { release: '0', entry: 'agent.ts', settings: {}, sources: {}, kernels: 'simd' };
const jobOf = (rolloutId: string): RolloutJob => ({
  identity: { rolloutId, groupId: 'g', taskId: 't', purpose: 'train' },
  task: { id: 't', prompt: [] },
  sampling: { temperature: 1, maxTokens: 1 } as unknown as RolloutJob['sampling'],
  version: 0,
  weights: '',
});

/** Of version 0.1.0, and what else people and other versions may have granted. */
const ONCE_GRANTED = `
  GRANT USAGE ON SCHEMA trainyard, trainyard_queue TO ${WORKER};
  GRANT SELECT ON trainyard.worker_runs, trainyard.weights TO ${WORKER};
  GRANT INSERT ON trainyard.results, trainyard.result_files, trainyard.attempts TO ${WORKER};
  GRANT SELECT ON ALL TABLES IN SCHEMA trainyard_queue TO ${WORKER};
  GRANT UPDATE, DELETE, INSERT ON ALL TABLES IN SCHEMA trainyard_queue TO ${WORKER};
  GRANT CREATE ON SCHEMA trainyard TO ${WORKER};
  GRANT SELECT (record), UPDATE (record) ON trainyard.trajectories TO ${WORKER};
  GRANT TRUNCATE, REFERENCES, TRIGGER ON trainyard.marks TO ${WORKER} WITH GRANT OPTION;
  GRANT ALL ON ALL SEQUENCES IN SCHEMA trainyard TO ${WORKER};
  GRANT SELECT ON trainyard.manifests TO PUBLIC;
  ALTER DEFAULT PRIVILEGES IN SCHEMA trainyard, trainyard_queue GRANT SELECT ON TABLES TO ${WORKER};
`;

/** Executed with the rights of a coordinator, lets the worker's role read rollouts. */
const OPENED = `GRANT ALL ON ALL TABLES IN SCHEMA trainyard TO ${WORKER}`;
/** The table of a queue, as pg-boss's SQL has it. */
const TABLE_NAME = `x')::bytea),'hex'))::bit(64)::bigint); ${OPENED}; COMMIT; SELECT $z$`;

const REFUSED = '42501';
const BY_COLUMN = ['SELECT', 'INSERT', 'UPDATE', 'REFERENCES'];
const KINDS = {
  TABLE: ['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'],
  SEQUENCE: ['USAGE', 'SELECT', 'UPDATE'],
  FUNCTION: ['EXECUTE'],
} as const;

interface Thing {
  readonly kind: keyof typeof KINDS;
  readonly name: string;
  /** As SQL has it. */
  readonly reference: string;
  readonly columns: readonly string[];
  /** With their types. */
  readonly primaryKey: readonly string[];
}

const THINGS = `
  SELECT (CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END) AS kind, pg_class.oid::regclass::text AS reference,
    -- One of each day.
    regexp_replace(pg_class.oid::regclass::text, 'queue_stats_\\d+$', 'queue_stats') AS name,
    ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum) AS columns,
    ARRAY(SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_index, unnest(indkey) WITH ORDINALITY AS key (attnum, place)
      JOIN pg_attribute USING (attnum) WHERE indrelid = pg_class.oid AND indisprimary AND attrelid = pg_class.oid ORDER BY place) AS "primaryKey"
  FROM pg_class WHERE relnamespace::regnamespace::text IN ('trainyard', 'trainyard_queue') AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  UNION ALL
  SELECT 'FUNCTION', oid::regprocedure::text, replace(oid::regprocedure::text, ',', ', '), '{}', '{}'
  FROM pg_proc WHERE pronamespace::regnamespace::text IN ('trainyard', 'trainyard_queue')
  ORDER BY kind DESC, name`;

/** What the role would write to make use of a right. */
const USES: Readonly<Record<string, (thing: Thing, column: string) => string>> = {
  SELECT: ({ kind, reference }, column) => `SELECT ${kind === 'SEQUENCE' ? 'last_value' : column} FROM ${reference}`,
  INSERT: ({ reference }, column) => `INSERT INTO ${reference} (${column}) VALUES (DEFAULT)`,
  UPDATE: ({ kind, reference }, column) =>
    kind === 'SEQUENCE' ? `SELECT setval('${reference}', 1)` : `UPDATE ${reference} SET ${column} = DEFAULT WHERE false`,
  DELETE: ({ reference }) => `DELETE FROM ${reference} WHERE false`,
  TRUNCATE: ({ reference }) => `TRUNCATE ${reference}`,
  REFERENCES: ({ reference, primaryKey }) => {
    const names = primaryKey.map((column) => column.split(' ')[0]);
    return `CREATE TABLE attic.own (${primaryKey}, FOREIGN KEY (${names}) REFERENCES ${reference} (${names}))`;
  },
  TRIGGER: ({ reference }) =>
    `CREATE TRIGGER own BEFORE INSERT ON ${reference} FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
  USAGE: ({ reference }) => `SELECT nextval('${reference}')`,
  EXECUTE: ({ reference }) => `SELECT ${reference.replaceAll(/[a-z]+(?=[,)])/g, 'NULL')}`,
};

type May = (thing: Thing, verb: string, column?: string) => Promise<boolean>;

/** In the words of the table of rights. */
async function rightsOf(things: readonly Thing[], may: May): Promise<Readonly<Record<string, string>>> {
  const found: Record<string, string> = {};
  for (const thing of things) {
    const rights: string[] = [];
    for (const verb of KINDS[thing.kind]) {
      const columns = thing.kind === 'TABLE' && BY_COLUMN.includes(verb) ? thing.columns : [];
      const own: string[] = [];
      for (const column of columns) if (await may(thing, verb, column)) own.push(column);
      if (columns.length === 0 && (await may(thing, verb))) rights.push(verb);
      if (own.length > 0) rights.push(own.length === columns.length ? verb : `${verb} (${own.join(', ')})`);
    }
    const key = `${thing.kind} ${thing.name}`;
    found[key] = [...new Set([found[key], rights.join(', ')])].filter(Boolean).join(' | ');
  }
  return found;
}

describe("the worker's role", needsPostgres, () => {
  let database: Awaited<ReturnType<typeof databaseFor>>;
  let admin: pg.Client;
  let worker: pg.Client;
  const open: pg.Client[] = [];
  const as = (user: string): string => Object.assign(new URL(database.url), { username: user }).href;
  const client = async (url: string): Promise<pg.Client> => {
    const one = new pg.Client({ connectionString: url });
    one.on('error', () => {});
    await one.connect();
    open.push(one);
    return one;
  };
  const warnings: string[] = [];
  const coordinator = (user = OWNER): Promise<WorkQueue> =>
    WorkQueue.create(as(user), (code, message) => warnings.push(`${code}: ${message}`));
  const thingsHere = async (): Promise<readonly Thing[]> => (await admin.query<Thing>(THINGS)).rows;
  const catalogue: May = async ({ kind, reference }, verb, column) => {
    const [check, values] =
      column === undefined
        ? [`has_${kind.toLowerCase()}_privilege($1, $2, $3)`, [WORKER, reference, verb]]
        : ['has_column_privilege($1, $2, $4, $3)', [WORKER, reference, verb, column]];
    return (await admin.query(`SELECT ${check} AS may`, values)).rows[0].may;
  };
  /** Each in a transaction that is taken back. */
  const tried: May = async (thing, verb, column = 'none') => {
    await worker.query('BEGIN');
    const failure = await worker.query(USES[verb]!(thing, column)).then(
      () => undefined,
      (thrown) => thrown,
    );
    await worker.query('ROLLBACK');
    // What is no key cannot be referred to by anybody.
    return verb === 'REFERENCES' ? failure === undefined : failure?.code !== REFUSED;
  };

  beforeEach(async () => {
    warnings.length = 0;
    database = await databaseFor();
    admin = await client(database.url);
    for (const role of [OWNER, WORKER]) {
      const known = await admin.query('SELECT FROM pg_roles WHERE rolname = $1', [role]);
      if (known.rowCount === 0) await admin.query(`CREATE ROLE ${role} LOGIN`);
    }
    await admin.query(`ALTER DATABASE ${new URL(database.url).pathname.slice(1)} OWNER TO ${OWNER}`);
    await admin.query(`CREATE SCHEMA attic AUTHORIZATION ${WORKER}`);
    await (await openPostgresStore(as(OWNER), 'any'))[Symbol.asyncDispose]();
    worker = await client(as(WORKER));
  });
  afterEach(async () => {
    for (const one of open.splice(0)) await one.end();
    await database[Symbol.asyncDispose]();
  });

  it('may do what the table of rights says and nothing else, whatever was granted before', async () => {
    await (await coordinator())[Symbol.asyncDispose]();
    const owner = await client(as(OWNER));
    for (const before of ['', ONCE_GRANTED]) {
      await owner.query(before);
      if (before !== '') expect(await rightsOf(await thingsHere(), catalogue)).not.toEqual(RIGHTS);
      await (await coordinator())[Symbol.asyncDispose]();
      const things = await thingsHere();
      const found = await rightsOf(things, tried);
      expect(found, 'tried as the role').toEqual(RIGHTS);
      expect(await rightsOf(things, catalogue), 'as the catalogue says').toEqual(RIGHTS);
      const passedOn: May = (thing, verb, column) => catalogue(thing, `${verb} WITH GRANT OPTION`, column);
      expect(new Set(Object.values(await rightsOf(things, passedOn)))).toEqual(new Set(['']));
      const schemas = "SELECT has_schema_privilege($1, nspname, 'CREATE') AS may FROM pg_namespace WHERE nspname ~ '^trainyard'";
      expect((await admin.query(schemas, [WORKER])).rows).toEqual([{ may: false }, { may: false }]);
      expect((await admin.query('SELECT defaclacl FROM pg_default_acl')).rows.join()).not.toContain(WORKER);
      if (before !== '') {
        const lines = Object.entries(found).map(([name, rights]) => `${name.padEnd(78)} ${rights || '-'}`);
        process.stdout.write(`rights of ${WORKER}:\n${lines.join('\n')}\n`);
      }
    }
    expect(warnings).toEqual([]);
    // What nobody has decided about shows up.
    await owner.query('CREATE TABLE trainyard.undecided (id integer)');
    expect(Object.keys(await rightsOf(await thingsHere(), catalogue))).toContain('TABLE trainyard.undecided');
  });

  it('has all that a worker needs: it takes, renews, gives back, fails and finishes rollouts', async () => {
    await using queue = await coordinator();
    await queue.openRun('run', SPEC);
    await queue.send('run', ['a', 'b', 'c'].map(jobOf));
    await using joined = (await WorkQueue.join(as(WORKER), new AbortController().signal))!;
    expect(await joined.openedRun()).toMatchObject({ run: 'run' });
    const [first, second, third] = (await joined.claim('run', 3, 'worker')) as [ClaimedJob, ClaimedJob, ClaimedJob];
    expect(await joined.renew('run', [first, second, third])).toEqual([]);
    await joined.giveBack('run', [first]);
    await joined.fail('run', [second], 'it broke');
    const grade = { kind: 'ungraded', why: 'completed' } as const;
    const trajectory = randomTrajectory(1, { ...third.job.identity, grade });
    expect(
      await joined.finish('run', [{ ...third, trajectory, files: [{ path: 'a', mode: 0o644, bytes: Buffer.from('b') }] }]),
    ).toEqual([]);
    expect([...(await queue.results('run', [third.id])).values()]).toMatchObject([{ rolloutId: third.job.identity.rolloutId }]);
    for (let attempt = 2; attempt <= ATTEMPTS; attempt++) {
      expect(await queue.parked('run')).toEqual(new Map());
      for (const claimed of await joined.claim('run', 3, 'worker')) await joined.fail('run', [claimed], 'it broke');
    }
    await queue.watch('run');
    expect((await queue.parked('run')).get(second.id)).toMatchObject({ reason: 'it broke', attempts: [{}, {}, {}] });
    await queue.closeRun('run', true);
    const left =
      'SELECT FROM trainyard_queue.job UNION ALL SELECT FROM trainyard_queue.queue UNION ALL SELECT FROM trainyard.results';
    expect((await admin.query(left)).rowCount).toBe(0);
  });

  it('has nothing executed that it wrote where it may not any more: commands, and tables of queues', async () => {
    for (const run of ['mine', 'other']) {
      await using queue = await coordinator();
      await queue.openRun(run, SPEC);
      await queue.closeRun(run, false);
    }
    await (await client(as(OWNER))).query(
      `ALTER TABLE trainyard_queue.queue DROP CONSTRAINT IF EXISTS only_ours; ${ONCE_GRANTED}`,
    );
    await worker.query('UPDATE trainyard_queue.version SET bam_on = NULL');
    const command = "INSERT INTO trainyard_queue.bam (name, version, table_name, command) VALUES ('x', 37, 'job_common', $1)";
    await worker.query(command, [OPENED]);
    const due = "monitor_claim_on = NULL, monitor_on = now() + interval '1 day', maintain_on = NULL";
    await worker.query(`UPDATE trainyard_queue.queue SET ${due}, table_name = $1, partition = (name LIKE '%other')`, [
      TABLE_NAME,
    ]);
    await using other = await coordinator();
    await using queue = await coordinator();
    await other.openRun('other', SPEC);
    await queue.openRun('mine', SPEC);
    await queue.send('mine', [jobOf('a')]);
    for (const run of ['mine', 'other']) await queue.watch(run).catch(() => {});
    await queue.forget('mine', [crypto.randomUUID()], true);
    await other.closeRun('other', true).catch(() => {});
    // Commands were taken from their table as soon as a coordinator had started.
    await sleep(1_500);
    await expect(worker.query('SELECT FROM trainyard.trajectories')).rejects.toMatchObject({ code: REFUSED });
    expect((await admin.query('SELECT FROM trainyard_queue.bam')).rowCount).toBe(0);
    expect(await queue.claim('mine', 1, 'worker')).toHaveLength(1);
    const again = (): Promise<unknown> => admin.query('UPDATE trainyard_queue.queue SET table_name = $1', [TABLE_NAME]);
    await expect(again()).rejects.toThrow('only_ours');
  });

  it("has nothing executed by a migration, which is pg-boss's own, once, and leaves no commands for later", async () => {
    await (await coordinator())[Symbol.asyncDispose]();
    const owner = await client(as(OWNER));
    for (const version of [43, 42, 41, 40]) await owner.query(getRollbackPlans('trainyard_queue', version));
    await owner.query(`ALTER TABLE trainyard_queue.queue DROP CONSTRAINT IF EXISTS only_ours; ${ONCE_GRANTED}`);
    await worker.query(
      `INSERT INTO trainyard_queue.queue (name, policy, retry_limit, retry_delay, retry_backoff, expire_seconds, retention_seconds,
         deletion_seconds, partition, table_name) VALUES ('x', 'standard', 0, 0, false, 1, 1, 1, true, $1)`,
      [`job_common; ${OPENED}; --`],
    );
    await using queue = await coordinator();
    await queue.openRun('mine', SPEC);
    const now = 'SELECT version, (SELECT count(*) FROM trainyard_queue.bam)::int AS commands FROM trainyard_queue.version';
    expect((await admin.query(now)).rows).toEqual([{ version: 43, commands: 0 }]);
    const indexes = "SELECT indexname AS name FROM pg_indexes WHERE schemaname = 'trainyard_queue' ORDER BY name";
    const migrated = (await admin.query(indexes)).rows;
    await expect(worker.query('SELECT FROM trainyard.trajectories')).rejects.toMatchObject({ code: REFUSED });
    await owner.query('DROP SCHEMA trainyard_queue CASCADE');
    await (await coordinator())[Symbol.asyncDispose]();
    expect(migrated).toEqual((await admin.query(indexes)).rows);
  });

  it('has no function of its own called by a coordinator, where everybody may create some', async () => {
    await admin.query('GRANT CREATE, USAGE ON SCHEMA public TO PUBLIC');
    await worker.query(`
      CREATE FUNCTION public.pg_column_size(text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
        IF current_user = '${OWNER}' THEN EXECUTE '${OPENED}'; END IF;
        RETURN 1;
      END $$`);
    await using queue = await coordinator();
    await queue.openRun('run', SPEC);
    await queue.send('run', [jobOf('a')]);
    const [claimed] = await queue.claim('run', 1, 'worker');
    const trajectory = randomTrajectory(1, { ...claimed!.job.identity, grade: { kind: 'ungraded', why: 'completed' } });
    await queue.finish('run', [{ ...claimed!, trajectory, files: [] }]);
    expect((await queue.results('run', [claimed!.id])).size).toBe(1);
    await expect(worker.query('SELECT FROM trainyard.trajectories')).rejects.toMatchObject({ code: REFUSED });
  });

  it('is warned of where it may do more by others, and so is a coordinator that is a superuser; once', async () => {
    await (await coordinator())[Symbol.asyncDispose]();
    expect(warnings).toEqual([]);
    await admin.query(`
      GRANT USAGE ON SCHEMA trainyard TO pg_monitor;
      GRANT SELECT ON trainyard.marks TO pg_monitor WITH GRANT OPTION;
      SET ROLE pg_monitor; GRANT SELECT ON trainyard.marks TO ${WORKER}; RESET ROLE`);
    await (await coordinator())[Symbol.asyncDispose]();
    expect(warnings.splice(0)).toEqual([expect.stringContaining('SELECT ON TABLE trainyard.marks')]);
    await admin.query('REVOKE SELECT ON trainyard.marks FROM pg_monitor CASCADE');
    const { username } = new URL(database.url);
    await (await coordinator(username))[Symbol.asyncDispose]();
    expect(warnings).toEqual([expect.stringMatching(new RegExp(`^DATABASE_RIGHTS: .*${username}, is a superuser`))]);
    const told: string[] = [];
    const join = async (user: string): Promise<void> => {
      const queue = await WorkQueue.join(as(user), new AbortController().signal, (code) => void told.push(`${code} ${user}`));
      await queue![Symbol.asyncDispose]();
    };
    await join(WORKER);
    await join(username);
    expect(told).toEqual([`DATABASE_RIGHTS ${username}`]);
  });
});
