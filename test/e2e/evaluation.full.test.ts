/** Evaluations kept on disk: stopped and taken up again, refused, tried again, at a server that turns the policy away. */
import { appendFile, cp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { LoggedEvent, RunEvent } from '../../src/core/events.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { compare, measuredIn } from '../../src/evaluation/compare.ts';
import { evaluateOnly, resumeEvaluation } from '../../src/evaluation/evaluate.ts';
import type { EvaluationRequest } from '../../src/settings/check-settings.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { jsonLines, sharedTrainyard, trainyard, useScratch } from '../cli/command.ts';
import { refusal } from '../fixtures/refusal.ts';
import { startFaultProxy } from '../fixtures/tinker/fault-proxy.ts';
import { API_KEY, startServer } from './tinker-server.ts';

const TASKS = 12;
const home = useScratch();
let heldOut: string;
beforeAll(async () => {
  const line = (_: unknown, i: number): string => JSON.stringify({ id: `t${i + 1}`, prompt: `Question ${i + 1}?`, answer: i });
  heldOut = await home.write('held-out.jsonl', Array.from({ length: TASKS }, line).join('\n'));
});

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

const at = (...names: readonly string[]): string => join(home.dir, ...names);
const request = (run: string | undefined, entry: EvaluationRequest['entry'], more: Partial<EvaluationRequest> = {}) =>
  ({ ...{ entry, heldOut, n: 2, concurrency: 3, threads: 1 }, run: run === undefined ? undefined : at(run), ...more }) as const;

async function kept(run: string): Promise<readonly Trajectory[]> {
  await using store = await openSqliteStore(at(run, 'store.sqlite'));
  return await store.query();
}

const inShort = (trajectories: readonly Trajectory[]): readonly string[] =>
  trajectories
    .map(({ rolloutId, grade, turns }) => `${rolloutId} ${JSON.stringify(grade)} ${turns[0]?.sampledIds.join()}`)
    .toSorted();

const metrics = async (run: string): Promise<unknown> => JSON.parse(await readFile(at(run, 'metrics.json'), 'utf8'));

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

  it('says the same in its last event, in metrics.json, in what it returns, and when it is taken up finished', async () => {
    const events: RunEvent[] = [];
    const { run, tasks, ...report } = await evaluateOnly(request('told', agent().entry), (event) => events.push(event));
    expect(await metrics('told')).toEqual(report);
    const { type, seconds, at: _at, ...done } = events.at(-1) as LoggedEvent & { readonly type: 'done' };
    expect(done).toEqual({ run, ...report });
    expect(tasks).toHaveLength(TASKS);
    const again = agent();
    expect(await resumeEvaluation({ run: at('told'), entry: again.entry })).toEqual({ run, tasks, ...report });
    expect(again.begun).toEqual([]);
  });

  it('that was stopped is taken up where it was, and comes to the same', async () => {
    const first = agent();
    const stopped = await stoppedAfter(9, 'stopped', first);
    expect(stopped).toBeInstanceOf(Error);
    const acknowledged = (await kept('stopped')).map(({ rolloutId }) => rolloutId);
    expect(acknowledged.length).toBeGreaterThan(0);
    expect(acknowledged.length).toBeLessThan(2 * TASKS);
    const second = agent();
    await resumeEvaluation({ run: at('stopped'), entry: second.entry });
    expect(second.begun.filter((id) => acknowledged.includes(id))).toEqual([]);
    expect(second.begun).toHaveLength(2 * TASKS - acknowledged.length);
    await evaluateOnly(request('undisturbed', agent().entry));
    expect(inShort(await kept('stopped'))).toEqual(inShort(await kept('undisturbed')));
    expect(await metrics('stopped')).toEqual(await metrics('undisturbed'));
  });

  it('counts what failed once, and runs it again only when that is asked for, under a new id', async () => {
    const broken = agent({ fails: (id) => id === 't3', ungradable: (id) => id === 't5' });
    const first = await evaluateOnly(request('failing', broken.entry, { n: 1 }));
    expect(first).toMatchObject({ n: TASKS, failed: 2 });
    const healed = agent();
    const run = at('failing');
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
    await expect(halted).rejects.toThrow(refusal('FAILURE_BUDGET', undefined, 'trainyard eval --resume'));
    expect((await kept('halted')).length).toBeLessThan(30);
    const done = await resumeEvaluation({ run: at('halted'), entry: agent().entry }, undefined, undefined, { retryFailed: true });
    expect(done).toMatchObject({ rollouts: 8 * TASKS, failed: 0 });
  });

  it('of tasks given as values keeps their digests, never their answers, and is taken up with the same tasks only', async () => {
    const rows = (answer: string) => [1, 2].map((i) => ({ id: `v${i}`, prompt: `Question ${i}?`, answer: `${answer}-${i}` }));
    const asked = request('values', agent().entry, { heldOut: rows('CANARY-5b1d'), n: 1 });
    expect(await evaluateOnly(asked)).toMatchObject({ n: 2 });
    expect(await readFile(at('values', 'run.json'), 'utf8')).not.toContain('CANARY-5b1d');
    const { run = '', entry } = asked;
    await expect(resumeEvaluation({ run, entry })).rejects.toThrow('begun with tasks given as values');
    await expect(resumeEvaluation({ run, entry, heldOut: rows('other') })).rejects.toThrow('tasks have changed: rows 1, 2');
    expect(await resumeEvaluation({ run, entry, heldOut: rows('CANARY-5b1d') })).toMatchObject({ n: 2 });
  });

  it('whose files are damaged is refused with what is wrong, and left as it is', async () => {
    const { entry } = agent();
    await evaluateOnly(request('sound', entry, { n: 1 }));
    const damaged = async (name: string, damage: (run: string) => Promise<unknown>): Promise<unknown> => {
      const run = at(name);
      await cp(at('sound'), run, { recursive: true });
      await damage(run);
      const before = await readdir(run);
      const again = agent();
      const thrown = await resumeEvaluation({ run, entry: again.entry }).catch((error: unknown) => error);
      expect(again.begun, name).toEqual([]);
      expect(await readdir(run), name).toEqual(before);
      return thrown;
    };
    const gone = 'store.sqlite is gone, and every rollout with it';
    const store = (run: string) => join(run, 'store.sqlite');
    const tooMany = async (run: string) => {
      const text = await readFile(join(run, 'run.json'), 'utf8');
      await writeFile(join(run, 'run.json'), text.replace(/"n": ?1\b/, '"n":1000000000'));
    };
    const refusals: readonly (readonly [string, (run: string) => Promise<unknown>, object])[] = [
      ['no-store', (run) => rm(store(run)), { code: 'RESUME_IMPOSSIBLE', message: gone }],
      ['empty-store', (run) => truncate(store(run)), { message: gone }],
      ['half-store', (run) => truncate(store(run), 5000), { code: 'STORE_FORMAT' }],
      ['half-record', (run) => truncate(join(run, 'run.json'), 100), { hint: expect.stringContaining('restore the file') }],
      ['too-many', tooMany, { message: expect.stringContaining('run.json is damaged') }],
    ];
    for (const [name, damage, expected] of refusals) expect(await damaged(name, damage), name).toMatchObject(expected);
    await expect(measuredIn(at('too-many'))).rejects.toThrow('run.json is damaged');
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
    process.env['TINKER_API_KEY'] = API_KEY;
    onTestFinished(async () => {
      delete process.env['TINKER_API_KEY'];
      await server.kill();
    });
    let left = 10;
    const unauthorized = { status: 401, body: Buffer.from('{"detail":"this key is no longer valid"}') };
    const rewrite: Parameters<typeof startFaultProxy>[0]['rewrite'] = (verb, reply) =>
      verb === 'asample' && left-- <= 0 ? { ...reply, ...unauthorized } : reply;
    await using proxy = await startFaultProxy({ target: server.baseURL, fault: () => 'none', rewrite });
    const policy = { engine: 'tinker', model: 'models/base', baseURL: proxy.url } as const;
    await expect(evaluateOnly(request('turned-away', agent().entry, policy))).rejects.toThrow(
      refusal('POLICY_REFUSED', undefined, 'trainyard eval --resume'),
    );
    const acknowledged = await kept('turned-away');
    expect(acknowledged.length).toBeLessThanOrEqual(10);
    expect(acknowledged.filter(({ outcome }) => outcome.kind !== 'completed')).toEqual([]);
    left = Number.POSITIVE_INFINITY;
    const done = await resumeEvaluation({ run: at('turned-away'), entry: agent().entry });
    expect(done).toMatchObject({ rollouts: 2 * TASKS, failed: 0 });
    expect(await readFile(at('turned-away', 'run.json'), 'utf8')).not.toContain(API_KEY);
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
    const rows = (...prompts: readonly string[]) =>
      prompts.map((prompt, i) => JSON.stringify({ id: 'abc'[i], prompt })).join('\n');
    const tasks = await home.write('own.jsonl', rows('one', 'two', 'three'));
    const run = at('refused');
    const asked = { entry, heldOut: tasks, run, rows: '1-2' };
    await evaluateOnly(asked);
    await writeFile(tasks, rows('one', 'other'));
    await appendFile(at('least.ts'), '// changed\n');
    const again = resumeEvaluation({ run, n: 4, limits: { turns: 3, tokens: 100, deadlineMs: 1000 }, graderDeadlineMs: 2500 });
    await expect(again).rejects.toThrow(
      /^7 things are not as they were: n was 1, now it is 4; limits\.turns was 16, now it is 3; limits\.tokens was 4096, now it is 100; limits\.deadlineMs was 60s, now it is 1s; graderDeadlineMs was 10s, now it is 2\.5s; tasks have changed: row 2; \S+\/least\.ts has changed$/,
    );
    // How fast it goes may change.
    await writeFile(tasks, rows('one', 'two', 'another, that was not evaluated'));
    await home.write('least.ts', 'export const least = 1;');
    expect(await resumeEvaluation({ run, concurrency: 1, transcripts: 2, graderWorkers: 1 })).toMatchObject({ n: 2 });
    await expect(evaluateOnly(asked)).rejects.toThrow(refusal('RUN_NOT_EMPTY', undefined, 'trainyard eval --resume'));
    await expect(evaluateOnly({ ...asked, run: at('x'), rows: '2-9' })).rejects.toThrow('from 1 to 3');
  });

  it('ends with its numbers as one line of JSON, writes reports, and exits with 4 below --min-success', async () => {
    await home.write('least.ts', 'export const least = 1000;');
    const entry = await home.write('agent.ts', ENTRY);
    const [run, junit, report] = [at('cli'), at('reports/junit.xml'), at('reports/report.json')];
    const rows = ['--held-out', heldOut, '--rows', '2,4-5', '--n', '2', '--run', run, '--threads', '1'];
    const files = ['--junit', junit, '--report', report, '--min-success', '0.5'];
    const { code, stdout, stderr } = await trainyard('eval', entry, ...rows, ...files, '--json');
    expect({ code, stderr }).toEqual({ code: 4, stderr: '' });
    const lines = jsonLines<{ type: string; seconds?: number; run?: string; at?: number; ci?: unknown }>(stdout);
    expect(lines.map(({ type }) => type)).toEqual(['eval-start', 'eval-end', 'warning', 'done']);
    const { seconds: _, type: __, run: ___, at: ____, ...done } = lines.at(-1)!;
    expect(done).toEqual(await metrics('cli'));
    const none = { 1: 0, 2: 0 };
    expect(done).toMatchObject({ success: 0, n: 3, passAtK: none, passHatK: none, failed: 0, meanReward: 0, byTag: {} });
    expect(done.ci).toHaveLength(2);
    expect(await readFile(junit, 'utf8')).toContain('tests="3" failures="3" errors="0"');
    expect(JSON.parse(await readFile(report, 'utf8')).tasks.map(({ row }: { row: number }) => row)).toEqual([2, 4, 5]);
    const again = await trainyard('eval', '--resume', run, '--min-success', '0');
    expect(again.code).toBe(0);
    expect(again.stdout).toMatch(/Going on with .*agent\.ts, 6 of 6 rollouts done/);
    expect(again.stdout).toMatch(/all +0\.0 % +0\.0 – \d+\.\d % +0\.000 +3 +0 +0/);
  });

  it.each([
    [['--rows', '1,99'], 'expected rows from 1 to 12, the last of the file, found 99'],
    [['--min-success', '80'], 'expected a share from 0 to 1'],
    [
      ['--checkpoint', 'a', '--model', 'b', '--retry-failed'],
      'found both --checkpoint and --model: give one of them; --retry-failed: expected --resume',
    ],
    [['--junit', '/dev/null/at/all.xml'], 'found /dev/null, which is no folder'],
    [['--grader-deadline', 'soon'], 'expected a time such as 90s, 10m or 2h, found "soon"'],
    [['--grader-deadline', '0'], 'expected a time such as 90s, 10m or 2h, found "0"'],
    [['--checkpoint', '/nowhere'], 'found /nowhere'],
  ])('refuses %j before anything runs', async (flags, message) => {
    const rows = ['--held-out', heldOut, '--run', at('never')];
    const { code, stderr } = await sharedTrainyard('eval', at('agent.ts'), ...rows, ...flags);
    expect(code).toBe(2);
    expect(stderr).toContain(message);
  });
});

describe('trainyard diff', () => {
  it('compares two evaluations that are on disk, and an evaluation with itself', async () => {
    await home.write('least.ts', 'export const least = 2;');
    const entry = await home.write('agent.ts', ENTRY);
    const [a, b] = [at('diff-a'), at('diff-b')];
    await evaluateOnly({ entry, heldOut, n: 4, run: a });
    const second = await evaluateOnly({ entry, heldOut, n: 4, run: b, seed: 5, rows: '1-8' });
    const { success, onlyInA, onlyInB } = compare(await measuredIn(a), await measuredIn(b));
    expect(success.b).toBeCloseTo(second.success, 12);
    expect([onlyInA, onlyInB]).toEqual([['t9', 't10', 't11', 't12'], []]);
    const { code, stdout } = await trainyard('diff', a, a, '--json');
    const same = { tasks: TASKS, success: { delta: 0, p: 1 }, otherDifferences: [] };
    expect({ code, ...JSON.parse(stdout) }).toMatchObject({ code: 0, type: 'diff', ...same });
    expect((await trainyard('diff', a, home.dir)).stderr).toContain('holds no run.json');
  });
});
