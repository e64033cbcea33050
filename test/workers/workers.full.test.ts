/** Rollouts on external workers: real processes that share a PostgreSQL, killed, stopped, and told to leave. */
import { cp, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { smallDisk } from '../chaos/small-disk.ts';
import { jsonLines, start, trainyard } from '../cli/command.ts';
import { CANARY } from '../e2e/small-run.ts';
import { databaseFor, needsPostgres, needsPostgresServer, startPostgres } from '../postgres/server.ts';
import { ENTRY, rows, taken, until, WorkersSite } from './site.ts';

let site: WorkersSite;
let database: Awaited<ReturnType<typeof databaseFor>>;

describe('rollouts on external workers', needsPostgres, () => {
  beforeAll(async () => {
    database = await databaseFor();
    site = await WorkersSite.open(database.url);
  });
  afterAll(async () => {
    await site[Symbol.asyncDispose]();
    await database[Symbol.asyncDispose]();
  });

  it('give the bytes of one process, with a role that can read no rewards; answers are not in the database', async () => {
    const role = new URL(site.url);
    const have = await rows("SELECT FROM pg_roles WHERE rolname = 'trainyard_worker'", site.url);
    if (have.length === 0) await rows('CREATE ROLE trainyard_worker LOGIN', site.url);
    role.username = 'trainyard_worker';
    const several = [site.worker({ url: role.href }), site.worker({ url: role.href }), site.worker({ url: role.href })];
    for (const one of several) await one.prints('waiting');
    expect(await site.train('many').ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('many');
    for (const { child } of several) child.kill('SIGTERM');
    const ends = await Promise.all(several.map(({ ended }) => ended));
    expect(ends).toMatchObject([{ code: 0 }, { code: 0 }, { code: 0 }]);
    expect(ends.map(({ stdout }) => stdout).join()).toMatch(/"type":"left","rollouts":[1-9]/);
    for (const sql of ['SELECT FROM trainyard.trajectories', 'SELECT FROM trainyard.results', 'DELETE FROM trainyard.marks']) {
      await expect(rows(sql, role.href)).rejects.toThrow('permission denied');
    }
    const left =
      'SELECT 1 FROM trainyard_queue.job UNION ALL SELECT 1 FROM trainyard.results UNION ALL SELECT 1 FROM trainyard.result_files';
    expect(await rows(left, site.url)).toEqual([]);
  });

  it('lose a worker, which is killed, and gain another: its rollouts run elsewhere within 15 s, to the same bytes', async () => {
    const slow = site.worker({ env: { SLOW_MS: '600000' } });
    const secret = new URL(site.url);
    secret.password = 'SECRET-5b21';
    const run = site.train('killed-worker', { url: secret.href, env: { TRAINYARD_LEASE_SECONDS: '10' } });
    await taken(4, site.url);
    const known = JSON.stringify([
      await rows('SELECT data FROM trainyard_queue.job', site.url),
      await rows('SELECT * FROM trainyard.worker_runs', site.url),
    ]);
    for (const hidden of [CANARY, secret.password]) expect(known).not.toContain(hidden);
    slow.child.kill('SIGKILL');
    const killedAt = Date.now();
    const rescuer = site.worker();
    const [second] = await until(async () => {
      const sql = 'SELECT at FROM trainyard.attempts WHERE attempt = 2 ORDER BY at DESC';
      const found = await rows<{ at: Date }>(sql, site.url);
      return found.length >= 4 ? found : undefined;
    });
    expect(second!.at.getTime() - killedAt).toBeLessThan(15_000);
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('killed-worker');
    rescuer.child.kill('SIGKILL');
  });

  it('refuse the writes of a worker that was away for longer than its lease', async () => {
    const stopped = site.worker({ env: { SLOW_MS: '1000' } });
    const run = site.train('late');
    await taken(4, site.url);
    stopped.child.kill('SIGSTOP');
    const other = site.worker();
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    stopped.child.kill('SIGCONT');
    await stopped.prints('LEASE_LOST');
    await site.expectSameAsAlone('late');
    for (const { child } of [stopped, other]) child.kill('SIGTERM');
    expect((await stopped.ended).stdout).toContain('"type":"left","rollouts":0');
    expect((await other.ended).code).toBe(0);
  });

  it('let a worker that was away take the same rollouts again, as new attempts', async () => {
    const only = site.worker({ env: { SLOW_MS: '1500' } });
    const run = site.train('again');
    await taken(4, site.url);
    only.child.kill('SIGSTOP');
    await until(
      async () => (await rows("SELECT FROM trainyard_queue.job WHERE state = 'retry'", site.url)).length >= 4 || undefined,
    );
    only.child.kill('SIGCONT');
    await only.prints('LEASE_LOST');
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('again');
    only.child.kill('SIGTERM');
    await only.ended;
  });

  it('park a rollout that kills three workers, with its log, and finish the others', async () => {
    const tasks = ['--held-out', site.at('train.jsonl')];
    const run = site.coordinator(['eval', site.entry, ...tasks, '--run', site.at('poison'), '--json', '--workers', 'external']);
    let isOver = false;
    void run.ended.then(() => {
      isOver = true;
    });
    let lost = 0;
    while (!isOver) {
      const { child, ended } = site.worker({ env: { POISON: 't3' }, flags: ['--concurrency', '1'] });
      await Promise.race([ended, run.ended]);
      child.kill('SIGTERM');
      if ((await ended).signal === 'SIGKILL') lost++;
    }
    expect(lost).toBe(3);
    const shown = await trainyard('show', site.at('poison'), '--json');
    const rollouts = jsonLines<{ rolloutId: string; taskId: string; outcome: string }>(shown.stdout);
    expect(rollouts).toHaveLength(8);
    const failed = rollouts.filter(({ outcome }) => outcome === 'failed');
    expect(failed).toMatchObject([{ taskId: 't3' }]);
    const { stdout } = await trainyard('show', site.at('poison'), failed[0]!.rolloutId, '--json');
    for (const text of ['WORKER_LOST', 'attempt 1 began on', 'attempt 3 began on']) expect(stdout).toContain(text);
  });

  it('do not park a rollout because workers that had it left', async () => {
    const run = site.train('left');
    for (let leaving = 1; leaving <= 4; leaving++) {
      const worker = site.worker({ env: { SLOW_MS: '600000' }, flags: ['--grace', '1'] });
      await taken(4 * leaving, site.url);
      worker.child.kill('SIGTERM');
      await worker.ended;
    }
    const last = site.worker();
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('left');
    last.child.kill('SIGKILL');
  });

  it('do not park rollouts because a worker could not load their weights', async ({ skip }) => {
    const disk = smallDisk();
    if (typeof disk === 'string') return skip(disk);
    try {
      const full = site.worker({ env: { TMPDIR: disk.dir, SLOW_MS: '1000' } });
      const run = site.train('full-disk');
      await taken(4, site.url);
      disk.fill();
      expect(await full.ended).toMatchObject({ code: 1, stderr: expect.stringContaining('ENOSPC') });
      const other = site.worker();
      expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
      await site.expectSameAsAlone('full-disk');
      other.child.kill('SIGKILL');
    } finally {
      disk[Symbol.dispose]();
    }
  });

  it('go on when the coordinator is killed, or ended, and resumed, to the same bytes', async () => {
    const own = site.worker();
    const first = site.train('resumed');
    await first.prints('"type":"run-start"');
    first.child.kill('SIGTERM');
    expect((await first.ended).stdout).toContain('"ending":"interrupted"');
    await until(async () => own.stdout().match(/"type":"waiting"/g)?.length === 2 || undefined);
    const resume = ['train', '--resume', site.at('resumed'), '--json'];
    const second = site.coordinator(resume);
    await second.prints('"type":"step-end"');
    second.child.kill('SIGKILL');
    await second.ended;
    expect(await site.coordinator(resume).ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('resumed');
    own.child.kill('SIGTERM');
    expect((await own.ended).code).toBe(0);
  });

  it('refuse a second coordinator of a run, here and where its directory was copied to', async () => {
    const run = site.train('twice');
    await run.prints('"type":"run-start"');
    await cp(site.at('twice'), site.at('copied'), { recursive: true });
    for (const name of ['twice', 'copied']) {
      const second = await site.coordinator(['train', '--resume', site.at(name)]).ended;
      expect(second).toMatchObject({ code: 1, stderr: expect.stringContaining('RUN_LOCKED') });
    }
    const worker = site.worker();
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('twice');
    worker.child.kill('SIGKILL');
  });

  it('keep what rollouts print and the files they leave, and the grader finds those', async () => {
    const entry = await site.home.write(
      'files.ts',
      `
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  console.log('printed', ctx.task.id);
  ctx.log('logged');
  mkdirSync(ctx.artifactsDir + '/in');
  writeFileSync(ctx.artifactsDir + '/in/note.txt', 'of ' + ctx.task.id);
  return 'done';
});
export const grader = defineGrader(({ task, artifactsDir }) =>
  readFileSync(artifactsDir + '/in/note.txt', 'utf8') === 'of ' + task.id ? 1 : 0);
`,
    );
    const args = ['eval', entry, '--held-out', site.at('train.jsonl'), '--json', '--run'];
    const worker = site.worker();
    const ended = await site.coordinator([...args, site.at('files'), '--workers', 'external']).ended;
    expect(ended.stderr).toBe('');
    expect(jsonLines(ended.stdout).at(-1)).toMatchObject({ type: 'done', meanReward: 1, n: 8 });
    expect((await trainyard(...args, site.at('files-here'))).code).toBe(0);
    const files = (run: string) => readdir(site.at(`${run}/artifacts`), { recursive: true });
    expect((await files('files')).toSorted()).toEqual((await files('files-here')).toSorted());
    for (const name of ['files', 'files-here']) {
      const { stdout } = await trainyard('show', site.at(name), '--json');
      const [{ rolloutId, taskId } = { rolloutId: '', taskId: '' }] = jsonLines<Record<'rolloutId' | 'taskId', string>>(stdout);
      const shown = (await trainyard('show', site.at(name), rolloutId, '--json')).stdout;
      for (const text of [`printed ${taskId}`, 'logged']) expect(shown).toContain(text);
    }
    worker.child.kill('SIGKILL');
  });

  it('run isolated workflows, and agent flows that are chosen by name, to the results of one process', async () => {
    const worker = site.worker({ flags: ['--threads', '1'] });
    const flow = ['--flow', 'single_step', '--flows', 'examples/agent-flow/flows.yaml'];
    const plain = `import { defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => ({ output: (await ctx.model().generate({ messages: ctx.prompt })).text, reward: 1 }));`;
    // It renders ids itself, with a tokenizer that a worker has among files that it hides.
    const ids = `import { episodeSample, RolloutWorkflow } from 'trainyard/areal';
export default class Ids extends RolloutWorkflow {
  async arunEpisode(engine, { messages }) {
    return episodeSample(await engine.agenerate({ inputIds: engine.applyChatTemplate(messages), gconfig: { maxNewTokens: 8 } }), 1);
  }
}`;
    const isolated = ['--isolation', 'process', '--workflow-workers', '2'];
    const evals = {
      isolated: [await site.home.write('plain.ts', plain), ...isolated],
      ids: [await site.home.write('ids.ts', ids), ...isolated],
      flow,
    };
    for (const [name, flags] of Object.entries(evals)) {
      const args = ['eval', ...flags, '--held-out', site.at('train.jsonl'), '--rows', '1-4', '--json', '--run'];
      expect(await site.coordinator([...args, site.at(name), '--workers', 'external']).ended).toMatchObject({
        code: 0,
        stderr: '',
      });
      expect((await trainyard(...args, site.at(`${name}-here`))).code).toBe(0);
      const shown = async (run: string) => {
        const rollouts = jsonLines<Record<string, unknown>>((await trainyard('show', site.at(run), '--json')).stdout);
        return new Set(
          rollouts.map(({ rolloutId, outcome, reward, turns }) => JSON.stringify([rolloutId, outcome, reward, turns])),
        );
      };
      expect(await shown(name)).toEqual(await shown(`${name}-here`));
    }
    worker.child.kill('SIGKILL');
  });

  it('refuse a run whose code is not theirs', async () => {
    const run = site.train('mismatch');
    const other = site.at('other');
    await mkdir(other);
    await writeFile(join(other, 'agent.ts'), `${await readFile(site.home.entry, 'utf8')}\n// changed\n`);
    await writeFile(join(other, 'shared.ts'), ENTRY);
    const ended = await start(['worker', join(other, 'shared.ts'), '--store', site.url, '--json']).ended;
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('WORKER_MISMATCH') });
    expect(ended.stderr).toContain('agent.ts');
    run.child.kill('SIGTERM');
    await run.ended;
  });

  it('refuse a run whose data beside the entry are not theirs, and take one though they lack its tasks', async () => {
    await site.home.write('catalog.json', '{"glove":81}');
    const run = site.train('data');
    const other = site.at('.data');
    await mkdir(other);
    for (const name of ['agent.ts', 'shared.ts']) await cp(site.at(name), join(other, name));
    const started = () => start(['worker', join(other, 'shared.ts'), '--store', site.url, '--json']);
    await writeFile(join(other, 'catalog.json'), '{"glove":80}');
    const ended = await started().ended;
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('WORKER_MISMATCH') });
    expect(ended.stderr).toMatch(/catalog\.json has changed$/m);
    await writeFile(join(other, 'catalog.json'), '{"glove":81}');
    const worker = started();
    expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
    await site.expectSameAsAlone('data');
    worker.child.kill('SIGKILL');
  });

  it('refuse a run whose code changed since they loaded it, though it is the same on disk', async () => {
    const staying = site.worker();
    const evaluated = (run: string) => {
      const flags = ['--held-out', site.at('train.jsonl'), '--run', site.at(run), '--json', '--workers', 'external'];
      return site.coordinator(['eval', site.entry, ...flags]);
    };
    expect(await evaluated('loaded').ended).toMatchObject({ code: 0 });
    await writeFile(site.home.entry, `${await readFile(site.home.entry, 'utf8')}\n// changed\n`);
    const again = evaluated('edited');
    expect(await staying.ended).toMatchObject({ code: 2, stderr: expect.stringContaining('start the worker again') });
    again.child.kill('SIGKILL');
  });
});

it('a database that is away for longer than the lease costs rollouts no attempt', needsPostgresServer, async () => {
  await using server = await startPostgres();
  await using own = await WorkersSite.open(server.url());
  const worker = own.worker({ env: { SLOW_MS: '12000' } });
  const tasks = ['--held-out', own.at('train.jsonl'), '--rows', '1-4'];
  const run = own.coordinator(['eval', own.entry, ...tasks, '--run', own.at('away'), '--json', '--workers', 'external']);
  await taken(4, own.url);
  for (let time = 0; time < 2; time++) {
    await server.kill();
    await sleep(3_000);
    await server.start();
    await sleep(1_500);
  }
  expect(await rows('SELECT attempt FROM trainyard.attempts', own.url)).toHaveLength(4);
  expect(await run.ended).toMatchObject({ code: 0, stderr: '' });
  expect(worker.stdout()).not.toContain('LEASE_LOST');
  worker.child.kill('SIGTERM');
  expect((await worker.ended).stdout).toContain('"type":"left","rollouts":4');
});
