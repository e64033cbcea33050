import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ended } from '../../test/fixtures/evaluation.ts';
import { temporaryFolder } from '../../test/fixtures/folder.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { compare, type Measured, type MeasuredTask, measuredIn } from './compare.ts';
import { evaluationId } from './evaluate.ts';

const task = (solved: number, rollouts = 1, meanReward: number | null = solved / rollouts, digest?: string): MeasuredTask => ({
  ...{ digest, rollouts, solved, failed: 0, meanReward },
});
const measured = (run: string, tasks: Readonly<Record<string, MeasuredTask>>, rest: Partial<Measured> = {}): Measured => ({
  ...{ run, tasks: new Map(Object.entries(tasks)), unfinished: [], settings: { n: 1, temperature: 0 }, ...rest },
});
const ids = (...lists: readonly (readonly { readonly id: string }[])[]) => lists.map((list) => list.map(({ id }) => id));

describe('two evaluations', () => {
  it('are compared task by task, whatever the order of the tasks', () => {
    const a = measured('a', { one: task(0), two: task(1), three: task(1), four: task(0) });
    const b = measured('b', { four: task(1), three: task(1), two: task(0), one: task(1) });
    const { success, meanReward, better, worse, tasks } = compare(a, b);
    expect(success).toMatchObject({ a: 0.5, b: 0.75, delta: 0.25, p: 1 });
    expect(meanReward).toMatchObject({ delta: 0.25, tasks: 4 });
    expect(ids(better, worse)).toEqual([['four', 'one'], ['two']]);
    expect(tasks).toBe(4);
  });

  it('may have different numbers of rollouts: shares are compared', () => {
    const a = measured('a', { x: task(2, 4), y: task(4, 4) });
    const { success, worse } = compare(a, measured('b', { x: task(1, 2), y: task(1, 2) }));
    expect(success).toMatchObject({ a: 0.75, b: 0.5, delta: -0.25 });
    expect(ids(worse)).toEqual([['y']]);
  });

  it('leave out, and name, tasks of one side, tasks with other content and tasks that are not finished', () => {
    const a = measured('a', { same: task(1, 1, 1, 'd1'), other: task(1, 1, 1, 'd2'), left: task(1) }, { unfinished: ['late'] });
    const b = measured('b', { same: task(1, 1, 1, 'd1'), other: task(0, 1, 0, 'd3'), right: task(1), late: task(1) });
    const left = { onlyInA: ['left'], onlyInB: ['right'], changedTasks: ['other'], unfinished: ['late'] };
    expect(compare(a, b)).toMatchObject({ tasks: 1, ...left });
  });

  it('are refused where no task is in both, with why', () => {
    const other = compare.bind(null, measured('a', { x: task(1, 1, 1, 'd1') }));
    const changed = measured('b', { x: task(1, 1, 1, 'd2') });
    expect(() => other(changed)).toThrow(/no task in common: 1 have the same id and another content/);
    expect(() => other(measured('b', { y: task(1) }))).toThrow(/no task id is in both/);
    expect(() => other(measured('b', {}))).toThrow(/b has no task that was evaluated/);
  });

  it('count success and rewards apart: a reward that rose solves nothing', () => {
    const a = measured('a', { won: task(0, 1, 0), nearer: task(0, 1, 0.1), further: task(1, 1, 1.5), same: task(1) });
    const b = measured('b', { won: task(1, 1, 1), nearer: task(0, 1, 0.4), further: task(1, 1, 1), same: task(1) });
    const { success, meanReward, better, worse, sameSuccess } = compare(a, b);
    expect(success).toMatchObject({ better: 1, worse: 0, same: 3 });
    expect(meanReward).toMatchObject({ better: 2, worse: 1, same: 1, tasks: 4 });
    expect(ids(better, worse, sameSuccess)).toEqual([['won'], [], ['further', 'nearer']]);
  });

  it('say what else differs between them', () => {
    const tasks = { x: task(1) };
    const a = measured('a', tasks, { settings: { n: 1, temperature: 0, entry: 'x.ts', code: { 'x.ts': 'd1' } } });
    const b = measured('b', tasks, { settings: { n: 4, temperature: 1, entry: 'x.ts', code: { 'x.ts': 'd2' } } });
    expect(compare(a, b).otherDifferences).toEqual(['n: 1 and 4', 'temperature: 0 and 1', 'the code of the agent or the grader']);
    expect(compare(a, a).otherDifferences).toEqual([]);
    const bounded = (context: unknown) => ({ ...a, settings: { ...a.settings, context } });
    expect(compare(bounded('the model’s own'), bounded(512)).otherDifferences).toEqual(['context: "the model’s own" and 512']);
    expect(compare(bounded(undefined), bounded(512)).otherDifferences).toEqual([]);
  });

  it('have no difference of rewards where nothing was graded in both', () => {
    expect(compare(measured('a', { x: task(0, 1, null) }), measured('b', { x: task(1) })).meanReward).toBeNull();
  });

  it('tell what failed on either side, because it counts as not solved', () => {
    const a = measured('a', { x: { ...task(1, 4), failed: 3 }, left: { ...task(0), failed: 1 } });
    const b = measured('b', { x: { ...task(1, 4), failed: 1 } });
    expect(compare(a, b).failed, 'of the tasks that are compared').toEqual({ a: 3, b: 1 });
  });

  it('that are the same are not said to be certainly so', () => {
    const same = measured('a', { x: task(1), y: task(0) });
    const { success, better, worse } = compare(same, same);
    expect(success).toMatchObject({ delta: 0, p: 1 });
    expect(success.ci[0]).toBeLessThan(-0.3);
    expect([better, worse]).toEqual([[], []]);
  });

  it('are told apart from policies that were trained on since: an interrupted training was evaluated before it, not after', async () => {
    const run = temporaryFolder();
    await writeFile(join(run, 'run.json'), JSON.stringify({ settings: {} }));
    const evaluated = (step: number, number: number) => ({ ...ended(`t${number}`, 1, 1), rolloutId: evaluationId(step, number) });
    const trained = { ...ended('t', 1, 1), rolloutId: 'g000001-0', purpose: 'train' } as const;
    {
      await using store = await openSqliteStore(join(run, 'store.sqlite'));
      for (const one of [evaluated(0, 1), evaluated(0, 2), trained]) await store.append(one);
      const step = { step: 1, policyVersion: 1, rolloutIds: [trained.rolloutId], checkpoint: null };
      await store.commit({ ...step, groups: { next: 2, pending: [] }, metrics: {}, createdAt: 0 });
      await store.append(evaluated(1, 1));
    }
    const before = await measuredIn(run);
    expect(compare(before, { ...before, earlier: undefined }).earlierPolicies).toEqual([
      `${run} was last evaluated on all tasks after step 0, and took 1`,
    ]);
    {
      await using store = await openSqliteStore(join(run, 'store.sqlite'));
      await store.append(evaluated(1, 2));
    }
    expect((await measuredIn(run)).earlier).toBeUndefined();
  });
});
