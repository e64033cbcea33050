import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { databaseFor, needsPostgres } from '../postgres/server.ts';
import { checkStore, type StorePlace } from './store-model.ts';

const VERDICTS = [
  'append done',
  'append STORE_CONFLICT',
  'commit done',
  'commit STORE_CONFLICT',
  'mark done',
  'mark STORE_CONFLICT',
];

/** A kill copies the files as they are while appends are under way, as a dead process would leave them; the next one opens the copy. */
async function sqlitePlace(): Promise<StorePlace & AsyncDisposable> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-model-'));
  let life = 0;
  const path = (): string => join(folder, `${life}`, 'store.sqlite');
  await cp(import.meta.filename, join(folder, '0', 'beside'));
  return {
    open: () => openSqliteStore(path()),
    async kill(store) {
      const dead = join(folder, `${life++}`);
      await cp(dead, join(folder, `${life}`), { recursive: true });
      await store[Symbol.asyncDispose]();
    },
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true }),
  };
}

it('SQLite gives the verdicts of the in-memory store and holds the same, through repeats, conflicts, marks and kills', async () => {
  expect([...(await checkStore(sqlitePlace, 80))]).toEqual(expect.arrayContaining(VERDICTS));
});

/** A kill ends the store's connections at the server, in the middle of what they are doing. One database; each sequence is a run of its own. */
async function postgresPlace(url: string, run: string): Promise<StorePlace & AsyncDisposable> {
  return {
    open: () => openStore(url, run),
    async kill(store) {
      const client = new pg.Client({ connectionString: url });
      await client.connect();
      await client.query(
        'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
      );
      await client.end();
      await store[Symbol.asyncDispose]();
    },
    [Symbol.asyncDispose]: async () => {},
  };
}

describe('PostgreSQL', needsPostgres, () => {
  it('gives the verdicts of the in-memory store and holds the same, through repeats, conflicts, marks and kills', async () => {
    await using database = await databaseFor();
    let runs = 0;
    const seen = await checkStore(() => postgresPlace(database.url, `run-${++runs}`), 40);
    expect([...seen]).toEqual(expect.arrayContaining(VERDICTS));
  });
});
