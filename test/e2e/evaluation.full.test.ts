/** Evaluations kept on disk: stopped and taken up again, refused, tried again, at a server that turns the policy away. */
import { appendFile, cp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import type { Trajectory } from '../../src/core/types.ts';
import type { EvaluationRequest } from '../../src/run/check-settings.ts';
import { compare, measuredIn } from '../../src/run/compare.ts';
import { evaluateOnly, resumeEvaluation } from '../../src/run/evaluate.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { scratch, sharedTrainyard, trainyard } from '../cli/command.ts';
import { startFaultProxy } from '../fixtures/tinker/fault-proxy.ts';
import { API_KEY, startServer } from './tinker-server.ts';

const TASKS = 12;
let home: Awaited<ReturnType<typeof scratch>>;
let heldOut: string;
beforeAll(async () => {
  home = await scratch();
  const line = (_: unknown, i: number): string => JSON.stringify({ id: `t${i + 1}`, prompt: `Question ${i + 1}?`, answer: i });
  heldOut = await home.write('held-out.jsonl', Array.from({ length: TASKS }, line).join('\n'));
});
afterAll(() => home.remove());

/** Rollouts it began, and what makes some of them fail. */
function agent({
  fails = () => false,
  ungradable = () => false,
}: Partial<Record<'fails' | 'ungradable', (id: string) => boolean>> = {}) {
  const begun: string[] = [];
  const workflow = defineWorkflow(async (ctx) => {
    begun.push(ctx.rolloutId);
    if (fails(ctx.task.id)) throw new Error('not today');
    const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
    return { output: text };
  });
  const grader = defineGrader(({ task, output }) => {
    if (ungradable(task.id)) throw new Error('cannot say');
    return ([...String(output)].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 3) / 2;
  });
  return { begun, entry: { workflow, grader } };
}

const request = (run: string | undefined, entry: EvaluationRequest['entry'], more: Partial<EvaluationRequest> = {}) =>
  ({
    entry,
    heldOut,
    n: 2,
    concurrency: 3,
    threads: 1,
    run: run === undefined ? undefined : join(home.dir, run),
    ...more,
  }) as const;

async function kept(run: string): Promise<readonly Trajectory[]> {
  await using store = await openSqliteStore(join(home.dir, run, 'store.sqlite'));
  return await store.query();
}

const inShort = (trajectories: readonly Trajectory[]): readonly string[] =>
  trajectories
    .map(({ rolloutId, grade, turns }) => `${rolloutId} ${JSON.stringify(grade)} ${turns[0]?.sampledIds.join()}`)
    .toSorted();

const metrics = async (run: string): Promise<unknown> => JSON.parse(await readFile(join(home.dir, run, 'metrics.json'), 'utf8'));

/** Stops the evaluation once so many of its rollouts have begun. */
async function stoppedAfter(rollouts: number, run: string, { begun, entry }: ReturnType<typeof agent>): Promise<unknown> {
  const stop = new AbortController();
  const watch = setInterval(() => begun.length >= rollouts && stop.abort(new Error('enough')), 1);
  return await evaluateOnly(request(run, entry), undefined, stop.signal)
    .catch((thrown: unknown) => thrown)
    .finally(() => clearInterval(watch));
}

describe('an evaluation', () => {
  it('depends on the seed and the tasks alone: not on how many run at once, nor on which others do', async () => {
    const whole = await evaluateOnly(request('whole', agent().entry));
    await evaluateOnly(request('alone', agent().entry, { concurrency: 1 }));
    expect(inShort(await kept('alone'))).toEqual(inShort(await kept('whole')));
    const some = await evaluateOnly(request('some', agent().entry, { rows: '7,2-3,3' }));
    expect(some.tasks.map(({ id, row }) => [id, row])).toEqual([
      ['t2', 2],
      ['t3', 3],
      ['t7', 7],
    ]);
    const withoutTimes = (tasks: typeof some.tasks) => JSON.stringify(tasks, (key, value) => (key === 'seconds' ? 0 : value));
    expect(withoutTimes(some.tasks)).toBe(withoutTimes(whole.tasks.filter(({ row }) => [2, 3, 7].includes(row))));
    const other = await evaluateOnly(request(undefined, agent().entry, { seed: 2 }));
    expect(withoutTimes(other.tasks)).not.toBe(withoutTimes(whole.tasks));
    expect(other.run).toBeNull();
  });

  it('says the same in its last event, in metrics.json and in what it returns', async () => {
    const events: RunEvent[] = [];
    const { run, tasks, ...report } = await evaluateOnly(request('told', agent().entry), (event) => events.push(event));
    expect(await metrics('told')).toEqual(report);
    const { type, seconds, ...done } = events.at(-1) as RunEvent & { readonly type: 'done' };
    expect(done).toEqual({ run, ...report });
    expect(tasks).toHaveLength(TASKS);
  });

  it('that was stopped is taken up where it was, and comes to the same', async () => {
    const first = agent();
    const stopped = await stoppedAfter(9, 'stopped', first);
    expect(stopped).toBeInstanceOf(Error);
    const acknowledged = (await kept('stopped')).map(({ rolloutId }) => rolloutId);
    expect(acknowledged.length).toBeGreaterThan(0);
    expect(acknowledged.length).toBeLessThan(2 * TASKS);
    const second = agent();
    await resumeEvaluation({ run: join(home.dir, 'stopped'), entry: second.entry });
    expect(second.begun.filter((id) => acknowledged.includes(id))).toEqual([]);
    expect(second.begun).toHaveLength(2 * TASKS - acknowledged.length);
    await evaluateOnly(request('undisturbed', agent().entry));
    expect(inShort(await kept('stopped'))).toEqual(inShort(await kept('undisturbed')));
    expect(await metrics('stopped')).toEqual(await metrics('undisturbed'));
  });

  it('that is finished runs nothing when it is taken up, and says the same again', async () => {
    await evaluateOnly(request('finished', agent().entry));
    const again = agent();
    const { tasks: _, run: __, ...report } = await resumeEvaluation({ run: join(home.dir, 'finished'), entry: again.entry });
    expect(again.begun).toEqual([]);
    expect(await metrics('finished')).toEqual(report);
  });

  it('counts what failed once, and runs it again only when that is asked for, under a new id', async () => {
    const broken = agent({ fails: (id) => id === 't3', ungradable: (id) => id === 't5' });
    const first = await evaluateOnly(request('failing', broken.entry, { n: 1 }));
    expect(first).toMatchObject({ n: TASKS, failed: 2 });
    const healed = agent();
    const run = join(home.dir, 'failing');
    expect(await resumeEvaluation({ run, entry: healed.entry })).toMatchObject({ failed: 2 });
    expect(healed.begun).toEqual([]);
    const retried = await resumeEvaluation({ run, entry: healed.entry }, undefined, undefined, { retryFailed: true });
    expect(retried).toMatchObject({ n: TASKS, rollouts: TASKS, failed: 0 });
    expect(healed.begun.every((id) => id.endsWith('-again-2'))).toBe(true);
    expect(healed.begun).toHaveLength(2);
    expect(await kept('failing'), 'what failed is kept').toHaveLength(TASKS + 2);
    expect(await resumeEvaluation({ run, entry: healed.entry })).toMatchObject({ failed: 0 });
  });

  it('whose rollouts mostly fail stops with the rest left to do', async () => {
    const broken = agent({ fails: () => true });
    const halted = evaluateOnly(request('halted', broken.entry, { n: 8 }));
    await expect(halted).rejects.toThrow(
      expect.objectContaining({ code: 'FAILURE_BUDGET', hint: expect.stringContaining('trainyard eval --resume') }),
    );
    expect((await kept('halted')).length).toBeLessThan(30);
    const done = await resumeEvaluation({ run: join(home.dir, 'halted'), entry: agent().entry }, undefined, undefined, {
      retryFailed: true,
    });
    expect(done).toMatchObject({ rollouts: 8 * TASKS, failed: 0 });
  });

  it('is used by one process at a time', async () => {
    const open = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const workflow = defineWorkflow(async (ctx) => {
      begun.resolve();
      await open.promise;
      return { output: (await ctx.model().generate({ messages: ctx.prompt, maxTokens: 1 })).text };
    });
    const entry = { workflow, grader: defineGrader(() => 1) };
    const first = evaluateOnly(request('locked', entry, { n: 1 }));
    await begun.promise;
    const second = resumeEvaluation({ run: join(home.dir, 'locked'), entry });
    await expect(second).rejects.toThrow(expect.objectContaining({ code: 'RUN_LOCKED' }));
    open.resolve();
    expect(await first).toMatchObject({ success: 1, n: TASKS });
  });

  it('of tasks given as values keeps their digests, never their answers, and is taken up with the same tasks only', async () => {
    const rows = (answer: string) => [1, 2].map((i) => ({ id: `v${i}`, prompt: `Question ${i}?`, answer: `${answer}-${i}` }));
    const asked = request('values', agent().entry, { heldOut: rows('CANARY-5b1d'), n: 1 });
    expect(await evaluateOnly(asked)).toMatchObject({ n: 2 });
    expect(await readFile(join(home.dir, 'values', 'run.json'), 'utf8')).not.toContain('CANARY-5b1d');
    const { run = '', entry } = asked;
    await expect(resumeEvaluation({ run, entry })).rejects.toThrow('begun with tasks given as values');
    await expect(resumeEvaluation({ run, entry, heldOut: rows('other') })).rejects.toThrow('tasks have changed: rows 1, 2');
    expect(await resumeEvaluation({ run, entry, heldOut: rows('CANARY-5b1d') })).toMatchObject({ n: 2 });
  });

  it('whose files are damaged is refused with what is wrong, and left as it is', async () => {
    const { entry } = agent();
    await evaluateOnly(request('sound', entry, { n: 1 }));
    const damaged = async (name: string, damage: (run: string) => Promise<unknown>): Promise<unknown> => {
      const run = join(home.dir, name);
      await cp(join(home.dir, 'sound'), run, { recursive: true });
      await damage(run);
      const before = await readdir(run);
      const again = agent();
      const refusal = await resumeEvaluation({ run, entry: again.entry }).catch((thrown: unknown) => thrown);
      expect(again.begun, name).toEqual([]);
      expect(await readdir(run), name).toEqual(before);
      return refusal;
    };
    const record = (change: (record: { settings: Record<string, unknown> }) => void) => async (run: string) => {
      const kept = JSON.parse(await readFile(join(run, 'run.json'), 'utf8'));
      change(kept);
      await writeFile(join(run, 'run.json'), JSON.stringify(kept));
    };
    const gone = 'store.sqlite is gone, and every rollout with it';
    expect(await damaged('no-store', (run) => rm(join(run, 'store.sqlite')))).toMatchObject({
      code: 'RESUME_IMPOSSIBLE',
      message: gone,
    });
    expect(await damaged('empty-store', (run) => truncate(join(run, 'store.sqlite')))).toMatchObject({ message: gone });
    expect(await damaged('half-store', (run) => truncate(join(run, 'store.sqlite'), 5000))).toMatchObject({
      code: 'STORE_FORMAT',
    });
    expect(await damaged('half-record', (run) => truncate(join(run, 'run.json'), 100))).toMatchObject({
      code: 'RESUME_IMPOSSIBLE',
      hint: expect.stringContaining('restore the file'),
    });
    const tooMany = record(({ settings }) => {
      settings['n'] = 1e9;
    });
    expect(await damaged('too-many', tooMany)).toMatchObject({ message: expect.stringContaining('run.json is damaged') });
    await expect(measuredIn(join(home.dir, 'too-many'))).rejects.toThrow('run.json is damaged');
  });

  it('of more rollouts than fit is refused before any of them', async () => {
    const { begun, entry } = agent();
    const tooMany = evaluateOnly(request('too-large', entry, { n: 1_000_000 }));
    await expect(tooMany).rejects.toThrow('expected at most 1000000 rollouts in all, found 12 tasks × 1000000 = 12000000');
    expect(begun).toEqual([]);
    expect(await readdir(home.dir)).not.toContain('too-large');
  });

  it('warns of several rollouts at temperature 0', async () => {
    const events: RunEvent[] = [];
    await evaluateOnly(request(undefined, agent().entry, { temperature: 0, rows: '1' }), (event) => events.push(event));
    expect(events).toContainEqual(expect.objectContaining({ type: 'warning', code: 'SAME_ROLLOUTS' }));
  });
});

describe('at a server that turns the policy away', () => {
  it('an evaluation halts at once, fails no rollout for it, and goes on when it is let in again', async () => {
    const server = await startServer(home.dir);
    let left = 10;
    const rewrite: Parameters<typeof startFaultProxy>[0]['rewrite'] = (verb, reply) =>
      verb === 'asample' && left-- <= 0
        ? { ...reply, status: 401, body: Buffer.from('{"detail":"this key is no longer valid"}') }
        : reply;
    await using proxy = await startFaultProxy({ target: server.baseURL, fault: () => 'none', rewrite });
    process.env['TINKER_API_KEY'] = API_KEY;
    try {
      const policy = { engine: 'tinker', model: 'models/base', baseURL: proxy.url } as const;
      const halted = evaluateOnly(request('turned-away', agent().entry, policy));
      await expect(halted).rejects.toThrow(
        expect.objectContaining({ code: 'POLICY_REFUSED', hint: expect.stringContaining('trainyard eval --resume') }),
      );
      const acknowledged = await kept('turned-away');
      expect(acknowledged.length).toBeLessThanOrEqual(10);
      expect(acknowledged.filter(({ outcome }) => outcome.kind !== 'completed')).toEqual([]);
      left = Number.POSITIVE_INFINITY;
      const done = await resumeEvaluation({ run: join(home.dir, 'turned-away'), entry: agent().entry });
      expect(done).toMatchObject({ rollouts: 2 * TASKS, failed: 0 });
      const record = await readFile(join(home.dir, 'turned-away', 'run.json'), 'utf8');
      expect(record).not.toContain(API_KEY);
    } finally {
      delete process.env['TINKER_API_KEY'];
      await server.kill();
    }
  });
});

const ENTRY = `import { defineGrader, defineWorkflow } from 'trainyard';
import { least } from './least.ts';
export default defineWorkflow(async (ctx) => ({ output: (await ctx.model().generate({ messages: ctx.prompt, maxTokens: 3 })).text }));
export const grader = defineGrader(({ output }) => (String(output).length >= least ? 1 : 0));
`;

describe('trainyard eval', () => {
  it('is refused when anything that decides the result has changed, and names all of it', async () => {
    await home.write('least.ts', 'export const least = 1;');
    const entry = await home.write('agent.ts', ENTRY);
    const tasks = await home.write(
      'own.jsonl',
      '{"id":"a","prompt":"one"}\n{"id":"b","prompt":"two"}\n{"id":"c","prompt":"three"}\n',
    );
    const run = join(home.dir, 'refused');
    const asked = { entry, heldOut: tasks, run, rows: '1-2' };
    await evaluateOnly(asked);
    await writeFile(tasks, '{"id":"a","prompt":"one"}\n{"id":"b","prompt":"other"}\n');
    await appendFile(join(home.dir, 'least.ts'), '// changed\n');
    const again = resumeEvaluation({ run, n: 4, limits: { turns: 3, tokens: 100, deadlineMs: 1000 }, graderDeadlineMs: 2500 });
    await expect(again).rejects.toThrow(
      /^5 things are not as they were: --n was 1, now it is 4; limits was \{.*\}, now it is \{.*\}; --grader-deadline was 10s, now it is 2\.5s; tasks have changed: row 2; \S+\/least\.ts has changed$/,
    );
    // How fast it goes may change.
    await writeFile(
      tasks,
      '{"id":"a","prompt":"one"}\n{"id":"b","prompt":"two"}\n{"id":"c","prompt":"another, that was not evaluated"}\n',
    );
    await home.write('least.ts', 'export const least = 1;');
    expect(await resumeEvaluation({ run, concurrency: 1, transcripts: 2, graderWorkers: 1 })).toMatchObject({ n: 2 });
    await expect(evaluateOnly(asked)).rejects.toThrow(
      expect.objectContaining({ code: 'RUN_NOT_EMPTY', hint: expect.stringContaining('trainyard eval --resume') }),
    );
    await expect(evaluateOnly({ ...asked, run: join(home.dir, 'x'), rows: '2-9' })).rejects.toThrow('from 1 to 3');
  });

  it('ends with its numbers as one line of JSON, writes reports, and exits with 4 below --min-success', async () => {
    await home.write('least.ts', 'export const least = 1000;');
    const entry = await home.write('agent.ts', ENTRY);
    const [run, junit, report] = ['cli', 'reports/junit.xml', 'reports/report.json'].map((name) => join(home.dir, name)) as [
      string,
      string,
      string,
    ];
    const files = ['--junit', junit, '--report', report];
    const flags = [
      '--held-out',
      heldOut,
      '--rows',
      '2,4-5',
      '--n',
      '2',
      '--run',
      run,
      '--min-success',
      '0.5',
      '--threads',
      '1',
      ...files,
    ];
    const { code, stdout, stderr } = await trainyard('eval', entry, ...flags, '--json');
    expect({ code, stderr }).toEqual({ code: 4, stderr: '' });
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(lines.map(({ type }) => type)).toEqual(['eval-start', 'eval-end', 'warning', 'done']);
    const { seconds: _, type: __, run: ___, ...done } = lines.at(-1);
    expect(done).toEqual(await metrics('cli'));
    expect(done).toMatchObject({
      success: 0,
      n: 3,
      passAtK: { 1: 0, 2: 0 },
      passHatK: { 1: 0, 2: 0 },
      failed: 0,
      meanReward: 0,
      byTag: {},
    });
    expect(done.ci).toHaveLength(2);
    expect(await readFile(junit, 'utf8')).toContain('tests="3" failures="3" errors="0"');
    expect(JSON.parse(await readFile(report, 'utf8')).tasks.map(({ row }: { row: number }) => row)).toEqual([2, 4, 5]);
    const again = await trainyard('eval', '--resume', run, '--min-success', '0');
    expect(again.code).toBe(0);
    expect(again.stdout).toMatch(/Going on with .*agent\.ts, 6 of 6 rollouts done/);
    expect(again.stdout).toMatch(/all +0\.0 % +0\.0 – \d+\.\d % +0\.000 +3 +0 +0/);
  });

  it.each([
    [['--rows', '5-3'], '5 to 3 is the wrong way round'],
    [['--rows', '1,99'], 'expected rows from 1 to 12, the last of the file, found 99'],
    [['--n', '0'], 'expected at least 1'],
    [['--temperature', '3'], 'expected a number from 0 to 2'],
    [['--min-success', '80'], 'expected a share from 0 to 1'],
    [
      ['--checkpoint', 'a', '--model', 'b', '--retry-failed'],
      'found both --checkpoint and --model: give one of them; --retry-failed: expected --resume',
    ],
    [['--junit', '/dev/null/at/all.xml'], 'found /dev/null, which is no folder'],
    [['--grader-workers', '0'], 'expected at least 1'],
    [['--grader-deadline', 'soon'], 'expected a time such as 90s, 10m or 2h, found "soon"'],
    [['--grader-deadline', '0'], 'graderDeadlineMs'],
    [['--checkpoint', '/nowhere'], 'found /nowhere'],
  ])('refuses %j before anything runs', async (flags, message) => {
    const { code, stderr } = await sharedTrainyard(
      'eval',
      join(home.dir, 'agent.ts'),
      '--held-out',
      heldOut,
      '--run',
      join(home.dir, 'never'),
      ...flags,
    );
    expect(code).toBe(2);
    expect(stderr).toContain(message);
  });
});

describe('trainyard diff', () => {
  it('compares two evaluations that are on disk, and an evaluation with itself', async () => {
    await home.write('least.ts', 'export const least = 2;');
    const entry = await home.write('agent.ts', ENTRY);
    const [a, b] = [join(home.dir, 'diff-a'), join(home.dir, 'diff-b')];
    await evaluateOnly({ entry, heldOut, n: 4, run: a });
    const second = await evaluateOnly({ entry, heldOut, n: 4, run: b, seed: 5, rows: '1-8' });
    const { success, onlyInA, onlyInB } = compare(await measuredIn(a), await measuredIn(b));
    expect(success.b).toBeCloseTo(second.success, 12);
    expect([onlyInA, onlyInB]).toEqual([['t9', 't10', 't11', 't12'], []]);
    const { code, stdout } = await trainyard('diff', a, a, '--json');
    expect({ code, ...JSON.parse(stdout) }).toMatchObject({
      code: 0,
      type: 'diff',
      tasks: TASKS,
      success: { delta: 0, p: 1 },
      otherDifferences: [],
    });
    expect((await trainyard('diff', a, home.dir)).stderr).toContain('holds no run.json');
  });
});
