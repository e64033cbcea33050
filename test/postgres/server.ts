/**
 * A real PostgreSQL server for tests: Debian's, or any whose `initdb` is on the PATH, in a folder of its own on a free port of 127.0.0.1.
 * It can be killed and started again on the same data. `databaseFor` gives a test a database of its own: of the server that `DATABASE_URL`
 * names, else of one server per test process. Where there is no PostgreSQL, tests with the options `needsPostgres` are skipped.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { chmod, chown, mkdtemp, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';
import { needs } from '../fixtures/needs.ts';
import { freePort } from '../interop/child.ts';

const run = promisify(execFile);

export interface PostgresServer extends AsyncDisposable {
  readonly port: number;
  readonly dir: string;
  url(database?: string): string;
  /** SIGKILL to the server and all of its processes, as if the power had failed. */
  kill(): Promise<void>;
  /** Starts it again after a kill. Resolves when it accepts connections. */
  start(): Promise<void>;
}

const POSTGRES = 'PostgreSQL (apt-get install postgresql)';

/** What is missing where nothing can run that needs a database. */
export const postgresMissing: string | undefined =
  process.env['DATABASE_URL'] || binaries() ? undefined : `${POSTGRES}, or DATABASE_URL`;

/** Options of tests that need a database. */
export const needsPostgres = needs(postgresMissing);

/** Options of tests that need a server of their own, whatever `DATABASE_URL` names. */
export const needsPostgresServer = needs(binaries() ? undefined : POSTGRES);

export function binaries(): string | undefined {
  const debian = '/usr/lib/postgresql';
  const versions = existsSync(debian) ? readdirSync(debian).sort((a, b) => Number(b) - Number(a)) : [];
  const folders = [...versions.map((version) => join(debian, version, 'bin')), ...(process.env['PATH'] ?? '').split(delimiter)];
  return folders.find((folder) => existsSync(join(folder, 'initdb')) && existsSync(join(folder, 'postgres')));
}

/** PostgreSQL refuses to run as root. */
function owner(): { readonly uid: number; readonly gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const [, , uid, gid] =
    readFileSync('/etc/passwd', 'utf8')
      .match(/^postgres:[^:]*:.*$/m)?.[0]
      .split(':') ?? [];
  return uid === undefined ? undefined : { uid: Number(uid), gid: Number(gid) };
}

export async function startPostgres(settings: Readonly<Record<string, string>> = {}): Promise<PostgresServer> {
  const bin = binaries();
  if (bin === undefined) throw new Error(`no ${POSTGRES} here`);
  const user = owner();
  const dir = await mkdtemp(join(tmpdir(), 'trainyard-postgres-'));
  await chmod(dir, 0o700);
  if (user !== undefined) await chown(dir, user.uid, user.gid);
  const own = { ...user, cwd: dir };
  await run(join(bin, 'initdb'), ['-D', join(dir, 'data'), '-U', 'postgres', '--auth=trust', '--no-instructions', '-N'], own);
  const port = await freePort();
  const given = {
    listen_addresses: '127.0.0.1',
    port: String(port),
    unix_socket_directories: dir,
    max_connections: '200',
    ...settings,
  };
  let child: ChildProcess | undefined;
  const start = async (): Promise<void> => {
    const args = Object.entries(given).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
    child = spawn(join(bin, 'postgres'), ['-D', join(dir, 'data'), ...args], { ...own, stdio: 'ignore', detached: true });
    child.unref();
    await accepts(url());
  };
  const ended = async (signal: NodeJS.Signals): Promise<void> => {
    const [dying] = [child];
    child = undefined;
    if (dying?.pid === undefined || dying.exitCode !== null) return;
    dying.ref();
    const exit = new Promise((resolve) => dying.once('exit', resolve));
    process.kill(signal === 'SIGKILL' ? -dying.pid : dying.pid, signal);
    await exit;
  };
  const url = (database = 'postgres'): string => `postgres://postgres@127.0.0.1:${port}/${database}`;
  await start();
  return {
    ...{ port, dir, url, start },
    kill: () => ended('SIGKILL'),
    [Symbol.asyncDispose]: async () => {
      await ended('SIGINT');
      await rm(dir, { recursive: true, force: true });
    },
  };
}

async function accepts(url: string): Promise<void> {
  const until = performance.now() + 30_000;
  for (;;) {
    const client = new pg.Client({ connectionString: url });
    client.on('error', () => {});
    try {
      await client.connect();
      return await client.end();
    } catch (thrown) {
      if (performance.now() > until) throw thrown;
      await sleep(50);
    }
  }
}

let shared: Promise<PostgresServer> | undefined;

/** A new, empty database; disposing drops it. */
export async function databaseFor(): Promise<AsyncDisposable & { readonly url: string }> {
  if (!process.env['DATABASE_URL']) shared ??= sharedServer();
  const server = process.env['DATABASE_URL'] || (await shared!).url();
  const name = `trainyard_test_${randomBytes(6).toString('hex')}`;
  await command(server, `CREATE DATABASE ${name}`);
  const url = new URL(server);
  url.pathname = `/${name}`;
  return { url: url.href, [Symbol.asyncDispose]: () => command(server, `DROP DATABASE ${name} WITH (FORCE)`) };
}

/** Ends with the process, however that ends, without waiting: nothing of it is kept. */
async function sharedServer(): Promise<PostgresServer> {
  const server = await startPostgres({ fsync: 'off' });
  const pid = Number(readFileSync(join(server.dir, 'data', 'postmaster.pid'), 'utf8').split('\n')[0]);
  // Test runners end their processes with signals, so no handler here would do: this one sees its input close.
  const reaper = spawn('sh', ['-c', 'cat; kill -9 -- "-$1"; rm -rf "$2"', 'sh', `${pid}`, server.dir], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  reaper.unref();
  (reaper.stdin as Socket).unref();
  return server;
}

async function command(url: string, sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}
