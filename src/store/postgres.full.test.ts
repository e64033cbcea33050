/** The PostgreSQL store through the cases of every store, and what only a server can do to it: restarts, several writers, refusals. */
import { appendFile, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { rejectsWith } from '../../packages/testing/src/conformance.ts';
import { storeConformance } from '../../packages/testing/src/store-conformance.ts';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { faultProxy } from '../../test/chaos/fault-proxy.ts';
import {
  databaseFor,
  needsPostgres,
  needsPostgresServer,
  type PostgresServer,
  startPostgres,
} from '../../test/postgres/server.ts';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { openStore } from './open.ts';
import { openPostgresStore } from './postgres.ts';
import { withoutPassword } from './url.ts';

const SECRET = 'p@ss/word';

describe('the store in PostgreSQL', needsPostgres, () => {
  let database: Awaited<ReturnType<typeof databaseFor>>;
  let opened = 0;
  const runOf = new Map<Store, string>();
  const open = async (): Promise<Store> => {
    const run = `run-${opened++}`;
    const store = await openPostgresStore(database.url, run);
    runOf.set(store, run);
    return store;
  };
  beforeAll(async () => {
    database = await databaseFor();
  });
  afterAll(async () => await database?.[Symbol.asyncDispose]());

  const reopen = (closed: Store): Promise<Store> => openPostgresStore(database.url, runOf.get(closed)!);
  for (const { name, run } of storeConformance('postgres', open, { reopen })) it(name, run);

  it('keeps runs of one database apart', async () => {
    await using first = await open();
    await using second = await open();
    await first.append(randomTrajectory(1));
    await second.append({ ...randomTrajectory(1), endedAt: 1 });
    await first.commit(manifestOf(1, ['rollout-1']));
    expect([await first.count({ trained: true }), await second.count({ trained: true })]).toEqual([1, 0]);
    expect((await second.summaries()).map(({ seq }) => seq)).toEqual([1]);
  });

  it('shows a reader every rollout of several writers in order, and none late', async () => {
    await using first = await open();
    const run = runOf.get(first)!;
    await using second = await openPostgresStore(database.url, run);
    await using reader = await openPostgresStore(database.url, run);
    const seeds = Array.from({ length: 400 }, (_, seed) => seed);
    const writing = Promise.all(
      seeds.map(async (seed) => {
        await sleep(seed);
        // Some by both writers at once.
        const asked = seed % 10 === 0 ? [first, second] : [seed % 2 ? first : second];
        await Promise.all(asked.map((store) => store.append(randomTrajectory(seed))));
      }),
    );
    let isDone = false;
    const done = writing.then(() => {
      isDone = true;
    });
    const seen: { readonly seq: number; readonly rolloutId: string }[] = [];
    for (let isLast = false; !isLast; ) {
      isLast = isDone;
      seen.push(...(await reader.summaries(seen.at(-1)?.seq)));
    }
    await done;
    expect(new Set(seen.map(({ rolloutId }) => rolloutId)).size).toBe(400);
    expect(seen.length).toBe(400);
  });

  it('lets several processes create the same database and the same run', async () => {
    await using fresh = await databaseFor();
    const stores = await Promise.all(Array.from({ length: 6 }, () => openStore(fresh.url, 'one')));
    await Promise.all(stores.map((store) => store.append(randomTrajectory(1))));
    expect(await stores[0]!.count()).toBe(1);
    for (const store of stores) await store[Symbol.asyncDispose]();
  });

  it('says that a record was damaged, and gives no different one back', async () => {
    await using store = await open();
    const { turns } = [1, 2, 3, 4, 5].map((seed) => randomTrajectory(seed)).find(({ turns }) => turns.length > 0)!;
    await store.append(randomTrajectory(1, { turns }));
    await store.append(randomTrajectory(2));
    await sql(
      database.url,
      `UPDATE trainyard.turns SET prompt_ids = prompt_ids || '\\x01000000' FROM trainyard.runs WHERE runs.id = run AND name = '${runOf.get(store)}' AND seq = 1`,
    );
    await rejectsWith('STORE_FORMAT', store.read('rollout-1'), /does not match its digest/);
    expect(await store.read('rollout-2')).toEqual(randomTrajectory(2));
  });

  it('refuses a newer format, and a schema of another application, and changes neither', async () => {
    await using newer = await databaseFor();
    await (await openStore(newer.url, 'one'))[Symbol.asyncDispose]();
    await sql(newer.url, 'UPDATE trainyard.schema_version SET version = 99');
    await rejectsWith('STORE_FORMAT', openStore(newer.url, 'one'), /version 99, expected at most/);
    await using foreign = await databaseFor();
    await sql(foreign.url, 'CREATE SCHEMA trainyard; CREATE TABLE trainyard.trains (name text)');
    await rejectsWith('STORE_FORMAT', openStore(foreign.url, 'one'), /another application/);
    const tables = await sql(foreign.url, "SELECT tablename FROM pg_tables WHERE schemaname = 'trainyard'");
    expect(tables).toEqual([{ tablename: 'trains' }]);
  });

  it('refuses an id that PostgreSQL cannot index, alone', async () => {
    await using store = await open();
    const long = store.append(randomTrajectory(1, { rolloutId: 'x'.repeat(3_000) }));
    await Promise.all([rejectsWith('STORE_FAILED', long, /3000 bytes/), store.append(randomTrajectory(2))]);
  });

  it('needs the name of a run, and never shows a password', async () => {
    await rejectsWith('USAGE', openStore(`postgres://me:${encodeURIComponent(SECRET)}@host/db`), /no name of a run/);
    expect(withoutPassword('postgres://me:secret@host:1/db?password=secret&sslmode=require')).toBe(
      'postgres://me@host:1/db?sslmode=require',
    );
    for (const wrong of ['me:sec ret@[host', 'me:12/34@host/db', 'me:100%@host/db']) {
      expect(() => withoutPassword(`postgres://${wrong}`)).toThrow(/^the URL of the store is malformed$/);
    }
  });
});

describe('a PostgreSQL server of its own', needsPostgresServer, () => {
  let server: PostgresServer;
  beforeAll(async () => {
    server = await startPostgres();
  }, 60_000);
  afterAll(async () => await server?.[Symbol.asyncDispose]());

  it('loses nothing acknowledged, and keeps nothing twice, when it is killed in the middle of writes', async () => {
    await using store = await openPostgresStore(server.url(), 'killed');
    await store.append(randomTrajectory(0));
    const until = performance.now() + 4_000;
    let last = 0;
    const appending = Array.from({ length: 8 }, async () => {
      while (performance.now() < until) {
        last += 1;
        await store.append(randomTrajectory(last));
      }
    });
    const reasons: string[] = [];
    const marking = (async () => {
      while (performance.now() < until) {
        reasons.push(`reason ${reasons.length}`);
        await store.mark([{ rolloutId: 'rollout-0', excluded: true, reason: reasons.at(-1)!, at: 1 }]);
        await store.commit(manifestOf(reasons.length, []));
      }
    })();
    for (let kill = 0; kill < 2; kill++) {
      await sleep(700);
      await server.kill();
      await sleep(200);
      await server.start();
    }
    await Promise.all([...appending, marking]);
    const kept = await store.query();
    expect(kept.map(({ rolloutId }) => rolloutId).toSorted()).toEqual(
      Array.from({ length: last + 1 }, (_, seed) => `rollout-${seed}`).toSorted(),
    );
    expect((await store.marks()).map(({ reason }) => reason)).toEqual(reasons);
    expect((await store.manifests()).length).toBe(reasons.length);
  }, 60_000);

  it('outlasts the end of its idle connections', async () => {
    await using store = await openPostgresStore(server.url(), 'idle');
    await store.append(randomTrajectory(1));
    await sql(server.url(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trainyard'");
    await sleep(100);
    expect(await store.count()).toBe(1);
    await store.append(randomTrajectory(2));
  });

  it('is waited for when its line hangs for longer than a call waits for a connection', async () => {
    await using proxy = await faultProxy(server.port);
    const url = new URL(server.url());
    url.port = `${proxy.port}`;
    await using store = await openPostgresStore(url.href, 'hung');
    await store.append(randomTrajectory(1));
    proxy.set({ kind: 'hang' });
    const reading = Array.from({ length: 12 }, () => store.read('rollout-1'));
    const [found] = await Promise.all([Promise.all(reading), sleep(11_000).then(() => proxy.set({ kind: 'pass' }))]);
    expect(found.every((one) => one?.rolloutId === 'rollout-1')).toBe(true);
  }, 60_000);

  it('is told when it stays away, with what to do, and can be used again when it is back', async () => {
    await using store = await openPostgresStore(server.url(), 'away', { patienceMs: 500 });
    await server.kill();
    const failed = await rejected(store.append(randomTrajectory(1)));
    expect(failed.message).toMatch(/could not append rollouts: .*(ECONNREFUSED|terminated)/);
    expect(failed.hint).toMatch(/PostgreSQL runs there/);
    expect((await rejected(store.count())).code).toBe('STORE_FAILED');
    await server.start();
    await store.append(randomTrajectory(1));
    expect(await store.count()).toBe(1);
  }, 60_000);

  it('tells wrong passwords, databases, hosts and ports from each other, without the password', async () => {
    const hba = join(server.dir, 'data', 'pg_hba.conf');
    const before = await readFile(hba, 'utf8');
    await sql(server.url(), `CREATE USER me PASSWORD '${SECRET}'; CREATE USER powerless`);
    await sql(server.url(), 'CREATE DATABASE mine OWNER me');
    await writeFile(hba, 'host all me all scram-sha-256\n');
    await appendFile(hba, before);
    await sql(server.url(), 'SELECT pg_reload_conf()');
    await sleep(200);
    const url = (change: Partial<URL>): string =>
      Object.assign(new URL(server.url('mine')), { username: 'me', password: encodeURIComponent(SECRET), ...change }).href;
    await using _ = await openPostgresStore(url({}), 'with a password');
    const cases = [
      [url({ password: 'wrong-secret' }), /password authentication failed/, /user and password/],
      [url({ pathname: '/nowhere' }), /"nowhere" does not exist/, /createdb/],
      [url({ hostname: 'no-such-host.invalid' }), /ENOTFOUND|EAI_AGAIN/, /host/],
      [url({ port: '1' }), /ECONNREFUSED/, /PostgreSQL runs there/],
      [url({ username: 'powerless' }), /permission denied/, /GRANT/],
    ] as const;
    for (const [wrong, message, hint] of cases) {
      const error = await rejected(openPostgresStore(wrong, 'one', { patienceMs: 300 }));
      expect(error).toMatchObject({
        code: 'STORE_FAILED',
        message: expect.stringMatching(message),
        hint: expect.stringMatching(hint),
      });
      for (const secret of [SECRET, encodeURIComponent(SECRET), 'wrong-secret']) expect(inspect(error)).not.toContain(secret);
    }
  }, 60_000);
});

async function sql(url: string, text: string): Promise<readonly unknown[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

async function rejected(promise: Promise<unknown>): Promise<TrainyardError> {
  const error = await promise.catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(TrainyardError);
  return error as TrainyardError;
}
