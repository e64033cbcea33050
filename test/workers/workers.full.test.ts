/** Rollouts on external workers: real processes that share a PostgreSQL, killed, stopped, and told to leave. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { jsonLines, ROOT, start, trainyard } from '../cli/command.ts';
import { CANARY, type Home, smallHome } from '../e2e/small-run.ts';
import { databaseFor, postgresMissing } from '../postgres/server.ts';

const STEPS = 2;
/** What differs between workers is in their environment: the code is the same everywhere. */
const ENTRY = `
import { setTimeout as sleep } from 'node:timers/promises';
import { defineWorkflow } from 'trainyard';
import inner, { grader as graded } from './agent.ts';
export default defineWorkflow(async (ctx) => {
  if (process.env['POISON'] === ctx.task.id) process.kill(process.pid, 'SIGKILL');
  await sleep(Number(process.env['SLOW_MS'] ?? 0));
  return await inner.run(ctx);
});
export const grader = graded;
`;

let home: Home;
let entry: string;
let database: Awaited<ReturnType<typeof databaseFor>>;
const at = (name: string): string => join(home.dir, name);
const weights = (run: string): Promise<Buffer> => readFile(at(`${run}/checkpoints/step-00000${STEPS}/model.safetensors`));
const flags = (run: string): string[] => [...home.flags(at(run), STEPS).toSpliced(1, 1, entry), '--eval-every', '0', '--json'];
const shared = (): string[] => ['--store', database.url, '--workers', 'external'];

type Started = ReturnType<typeof start>;
const workers: Started[] = [];
function worker(env: Readonly<Record<string, string>> = {}, url = database.url, ...more: readonly string[]): Started {
  const exports = Object.entries({ TRAINYARD_LEASE_SECONDS: '2', ...env }).map(([name, value]) => `export ${name}='${value}'`);
  const started = start(['worker', '--store', url, '--json', '--concurrency', '4', ...more], ROOT, exports.join('; ') || ':');
  workers.push(started);
  return started;
}
const coordinator = (args: readonly string[], lease = '2'): Started =>
  start(args, ROOT, `export TRAINYARD_LEASE_SECONDS=${lease}`);

async function rows<Row extends pg.QueryResultRow>(sql: string, url = database.url): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end();
  }
}

async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const found = await look().catch(() => undefined);
    if (found !== undefined) return found;
    await sleep(50);
  }
}

describe.skipIf(postgresMissing !== undefined)(
  'rollouts on external workers',
  () => {
    beforeAll(async () => {
      [home, database] = [await smallHome(), await databaseFor()];
      entry = await home.write('shared.ts', ENTRY);
      expect(await trainyard(...flags('alone'))).toMatchObject({ code: 0, stderr: '' });
    });
    afterAll(async () => {
      for (const { child } of workers) child.kill('SIGKILL');
      await database[Symbol.asyncDispose]();
      await home.remove();
    });

    it('give the bytes of one process, with a role that can read no rewards; answers are not in the database', async () => {
      const role = new URL(database.url);
      const have = await rows("SELECT FROM pg_roles WHERE rolname = 'trainyard_worker'");
      if (have.length === 0) await rows('CREATE ROLE trainyard_worker LOGIN');
      role.username = 'trainyard_worker';
      const early = worker({}, role.href);
      await early.prints('waiting');
      expect(await coordinator([...flags('many'), ...shared()]).ended).toMatchObject({ code: 0, stderr: '' });
      expect((await weights('many')).equals(await weights('alone'))).toBe(true);
      early.child.kill('SIGTERM');
      expect(await early.ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/"type":"left","rollouts":[1-9]/) });
      for (const sql of ['SELECT FROM trainyard.trajectories', 'SELECT FROM trainyard.results', 'DELETE FROM trainyard.marks']) {
        await expect(rows(sql, role.href)).rejects.toThrow('permission denied');
      }
      const jobs = await rows('SELECT 1 FROM pgboss.job UNION ALL SELECT 1 FROM trainyard.results');
      expect(jobs).toEqual([]);
    });

    it('lose a worker, which is killed, and gain another: its rollouts run elsewhere within 15 s, to the same bytes', async () => {
      const slow = worker({ SLOW_MS: '600000' });
      const run = coordinator([...flags('killed-worker'), ...shared()], '10');
      await until(async () => (await rows('SELECT FROM trainyard.attempts')).length >= 4 || undefined);
      expect(JSON.stringify(await rows('SELECT data FROM pgboss.job'))).not.toContain(CANARY);
      slow.child.kill('SIGKILL');
      const killedAt = Date.now();
      const rescuer = worker();
      const [second] = await until(async () => {
        const found = await rows<{ at: Date }>('SELECT at FROM trainyard.attempts WHERE attempt = 2 ORDER BY at DESC');
        return found.length >= 4 ? found : undefined;
      });
      expect(second!.at.getTime() - killedAt).toBeLessThan(15_000);
      expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
      expect((await weights('killed-worker')).equals(await weights('alone'))).toBe(true);
      rescuer.child.kill('SIGKILL');
    });

    it('refuse the writes of a worker that was away for longer than its lease', async () => {
      const stopped = worker({ SLOW_MS: '1000' });
      const run = coordinator([...flags('late'), ...shared()]);
      await until(async () => (await rows('SELECT FROM trainyard.attempts')).length >= 4 || undefined);
      stopped.child.kill('SIGSTOP');
      const other = worker();
      expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
      stopped.child.kill('SIGCONT');
      await stopped.prints('LEASE_LOST');
      expect((await weights('late')).equals(await weights('alone'))).toBe(true);
      for (const { child } of [stopped, other]) child.kill('SIGTERM');
      expect((await stopped.ended).stdout).toContain('"type":"left","rollouts":0');
      expect((await other.ended).code).toBe(0);
    });

    it('park a rollout that kills three workers, with its log, and finish the others', async () => {
      const run = coordinator(['eval', entry, '--held-out', at('train.jsonl'), '--run', at('poison'), '--json', ...shared()]);
      let isOver = false;
      void run.ended.then(() => {
        isOver = true;
      });
      let lost = 0;
      while (!isOver) {
        const { child, ended } = worker({ POISON: 't3' }, database.url, '--concurrency', '1');
        await Promise.race([ended, run.ended]);
        child.kill('SIGTERM');
        if ((await ended).signal === 'SIGKILL') lost++;
      }
      expect(lost).toBe(3);
      const shown = await trainyard('show', at('poison'), '--json');
      const rollouts = jsonLines<{ rolloutId: string; taskId: string; outcome: string }>(shown.stdout);
      expect(rollouts).toHaveLength(8);
      const failed = rollouts.filter(({ outcome }) => outcome === 'failed');
      expect(failed).toMatchObject([{ taskId: 't3' }]);
      const { stdout } = await trainyard('show', at('poison'), failed[0]!.rolloutId, '--json');
      for (const text of ['WORKER_LOST', 'attempt 1 of 3 began on', 'attempt 3 of 3 began on']) expect(stdout).toContain(text);
    });

    it('go on when the coordinator is killed and resumed, to the same bytes', async () => {
      const own = worker();
      const first = coordinator([...flags('resumed'), ...shared()]);
      await first.prints('"type":"step-end"');
      first.child.kill('SIGKILL');
      await first.ended;
      const resumed = await coordinator(['train', '--resume', at('resumed'), '--json', '--store', database.url]).ended;
      expect(resumed).toMatchObject({ code: 0, stderr: '' });
      expect((await weights('resumed')).equals(await weights('alone'))).toBe(true);
      own.child.kill('SIGTERM');
      expect((await own.ended).code).toBe(0);
    });

    it('refuse a run whose code is not theirs', async () => {
      const run = coordinator([...flags('mismatch'), ...shared()]);
      const other = join(home.dir, 'other');
      await mkdir(other);
      await writeFile(join(other, 'agent.ts'), `${await readFile(home.entry, 'utf8')}\n// changed\n`);
      await writeFile(join(other, 'shared.ts'), ENTRY);
      const ended = await start(['worker', join(other, 'shared.ts'), '--store', database.url, '--json']).ended;
      expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('WORKER_MISMATCH') });
      expect(ended.stderr).toContain('agent.ts');
      run.child.kill('SIGTERM');
      await run.ended;
    });
  },
  300_000,
);
