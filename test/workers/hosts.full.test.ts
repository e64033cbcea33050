/** A run over three hosts: coordinator and PostgreSQL on one, workers on two others, of which one is cut off for longer than its lease. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { jsonLines, ROOT, trainyard } from '../cli/command.ts';
import { needs } from '../fixtures/needs.ts';
import { needsPostgresServer } from '../postgres/server.ts';
import { hostsMissing, makeHosts } from './hosts.ts';
import { rows, taken, until, WorkersSite } from './site.ts';

const hosts = hostsMissing();
const needsHosts = hosts === undefined ? needsPostgresServer : needs(hosts);

/** On the first host. `socket` reaches it from everywhere. */
async function databaseWithin(within: readonly string[], address: string) {
  const fixture = join(ROOT, 'test/fixtures/postgres-host.ts');
  const [program, ...args] = [...within, process.execPath, '--conditions=trainyard-source', fixture];
  const child = spawn(program!, args, { cwd: ROOT, stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string];
  const { port, dir } = JSON.parse(line) as { readonly port: number; readonly dir: string };
  return {
    url: `postgres://postgres@${address}:${port}/postgres`,
    socket: `postgres://postgres@${encodeURIComponent(dir)}:${port}/postgres`,
    [Symbol.asyncDispose]: async () => {
      child.stdin.end();
      await once(child, 'exit');
    },
  };
}

it(
  'a host that is cut off for longer than the lease loses its rollouts to others, and its late writes are refused',
  needsHosts,
  async () => {
    using hosts = makeHosts(3);
    await using database = await databaseWithin(hosts.within(0), hosts.address);
    await using site = await WorkersSite.open(database.url);
    const cut = site.worker({ within: hosts.within(1), env: { SLOW_MS: '1500' } });
    const run = site.train('hosts', { within: hosts.within(0) });
    await taken(4, database.socket);
    hosts.link(1, 'down');
    const other = site.worker({ within: hosts.within(2), env: { SLOW_MS: '3000' } });
    const again = 'SELECT FROM trainyard.attempts WHERE attempt = 2';
    await until(async () => (await rows(again, database.socket)).length > 0 || undefined);
    expect(cut.stdout()).not.toContain('LEASE_LOST');
    hosts.link(1, 'up');
    await cut.prints('LEASE_LOST');
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('hosts');
    for (const { child } of [cut, other]) child.kill('SIGTERM');
    const ends = await Promise.all([cut.ended, other.ended]);
    expect(ends).toMatchObject([{ code: 0 }, { code: 0 }]);
    const shown = await trainyard('show', site.at('hosts'), '--json', '--store', database.socket);
    const finished = ends.map(({ stdout }) => jsonLines<{ rollouts: number }>(stdout).at(-1)!.rollouts);
    expect(finished[0]! + finished[1]!).toBe(jsonLines(shown.stdout).length);
  },
);
