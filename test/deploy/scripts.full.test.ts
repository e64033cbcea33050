/** The scripts of deploy/ by themselves, without Docker: the worker's role is made with its password, and the program gets one from a file. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { expect, it } from 'vitest';
import { useScratch } from '../cli/command.ts';
import { repository } from '../house/sources.ts';
import { binaries, startPostgres } from '../postgres/server.ts';

const run = promisify(execFile);
const home = useScratch();
const script = (name: string): string => join(repository, 'deploy', name);

it.skipIf(binaries() === undefined)('worker-role.sh makes a role that logs in with the password of the file', async () => {
  const password = "it's \\ a $(secret)";
  const file = await home.write('worker', `${password}\n`);
  await using server = await startPostgres();
  const env = {
    ...{ ...process.env, PATH: `${binaries()}:${process.env['PATH']}`, PGHOST: '127.0.0.1', PGPORT: String(server.port) },
    ...{ POSTGRES_USER: 'postgres', POSTGRES_DB: 'postgres', WORKER_PASSWORD_FILE: file },
  };
  await run(script('worker-role.sh'), [], { env });
  // Until here the server trusts everyone.
  await writeFile(join(server.dir, 'data/pg_hba.conf'), 'host all all 127.0.0.1/32 scram-sha-256\n');
  await run(join(binaries()!, 'psql'), [
    '-U',
    'postgres',
    '-h',
    '127.0.0.1',
    '-p',
    String(server.port),
    '-c',
    'SELECT pg_reload_conf()',
  ]);
  const logIn = async (given: string): Promise<void> => {
    const client = new pg.Client({
      host: '127.0.0.1',
      port: server.port,
      user: 'trainyard_worker',
      database: 'postgres',
      password: given,
    });
    await client.connect();
    await client.end();
  };
  await logIn(password);
  await expect(logIn('another')).rejects.toThrow('password authentication failed');
});

it('entrypoint.sh gives the program the password of the file, and its arguments as they are', async () => {
  const file = await home.write('database', 'a secret\n');
  const program = await home.write('program.sh', '#!/bin/sh\nprintf "%s|" "$PGPASSWORD" "$@"\n');
  await run('chmod', ['+x', program]);
  const env = { ...process.env, PGPASSWORD_FILE: file, TRAINYARD: program };
  const { stdout } = await run(script('entrypoint.sh'), ['train', 'an agent.ts'], { env });
  expect(stdout).toBe('a secret|train|an agent.ts|');
});
