/** The scripts of deploy/ by themselves, without Docker: roles are made with their passwords, and the program gets one from a file. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WorkQueue } from '../../src/places/workers/queue.ts';
import { openPostgresStore } from '../../src/store/postgres.ts';
import { useScratch } from '../cli/command.ts';
import { repository } from '../house/sources.ts';
import { binaries, needsPostgresServer, type PostgresServer, startPostgres } from '../postgres/server.ts';

const run = promisify(execFile);
const home = useScratch();
const script = (name: string): string => join(repository, 'deploy', name);

describe('in a database of its own', needsPostgresServer, () => {
  let server: PostgresServer;
  const psql = (...args: readonly string[]) =>
    run(join(binaries()!, 'psql'), ['-U', 'postgres', '-h', '127.0.0.1', '-p', String(server.port), ...args]);
  const url = (user: string, password: string, database: string): string => {
    const [name, secret] = [user, password].map(encodeURIComponent);
    return `postgres://${name}:${secret}@127.0.0.1:${server.port}/${database}`;
  };
  /** Opens the database as a coordinator and a worker do. Returns the warnings. */
  const opened = async (coordinator: string, worker: string): Promise<readonly string[]> => {
    const warnings: string[] = [];
    await (await openPostgresStore(coordinator, 'any'))[Symbol.asyncDispose]();
    await using _queue = await WorkQueue.create(coordinator, (_code, message) => warnings.push(message));
    await using joined = await WorkQueue.join(worker, new AbortController().signal);
    expect(await joined?.openedRun()).toBeUndefined();
    return warnings;
  };
  beforeAll(async () => {
    server = await startPostgres();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  it('roles.sh makes a role that owns it and is no superuser, and one for workers, with the passwords of the files', async () => {
    const [owner, worker] = ["it's \\ a $(secret)", 'another "secret"'];
    const files = {
      DATABASE_PASSWORD_FILE: await home.write('owner', `${owner}\n`),
      WORKER_PASSWORD_FILE: await home.write('worker', `${worker}\n`),
    };
    const env = {
      ...{ ...process.env, PATH: `${binaries()}:${process.env['PATH']}`, PGHOST: '127.0.0.1', PGPORT: String(server.port) },
      ...{ POSTGRES_USER: 'postgres', POSTGRES_DB: 'a-database', ...files },
    };
    await psql('-c', 'CREATE DATABASE "a-database"');
    await run(script('roles.sh'), [], { env });
    // Until here the server trusts everyone.
    const rules = 'host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n';
    await writeFile(join(server.dir, 'data/pg_hba.conf'), rules);
    await psql('-c', 'SELECT pg_reload_conf()');
    const [coordinator, own] = [url('trainyard', owner, 'a-database'), url('trainyard_worker', worker, 'a-database')];
    expect(await opened(coordinator, own)).toEqual([]);
    for (const user of ['trainyard', 'trainyard_worker']) {
      const other = new pg.Client({ connectionString: url(user, 'wrong', 'a-database') });
      await expect(other.connect()).rejects.toThrow('password authentication failed');
    }
  });

  it('hand-over.sql hands one over that belonged to a superuser', async () => {
    await psql('-c', 'CREATE DATABASE trainyard');
    const [superuser, worker] = [url('postgres', '', 'trainyard'), url('trainyard_worker', 'another "secret"', 'trainyard')];
    expect(await opened(superuser, worker)).toEqual([expect.stringContaining('postgres, is a superuser')]);
    await psql('-d', 'trainyard', '-v', 'ON_ERROR_STOP=1', '-f', script('hand-over.sql'));
    await psql('-c', "ALTER ROLE me PASSWORD 'mine'");
    expect(await opened(url('me', 'mine', 'trainyard'), worker)).toEqual([]);
  });
});

it('entrypoint.sh gives the program the password of the file, and its arguments as they are', async () => {
  const file = await home.write('database', 'a secret\n');
  const program = await home.write('program.sh', '#!/bin/sh\nprintf "%s|" "$PGPASSWORD" "$@"\n');
  await run('chmod', ['+x', program]);
  const env = { ...process.env, PGPASSWORD_FILE: file, TRAINYARD: program };
  const { stdout } = await run(script('entrypoint.sh'), ['train', 'an agent.ts'], { env });
  expect(stdout).toBe('a secret|train|an agent.ts|');
});
