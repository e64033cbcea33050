import { describe, expect, it } from 'vitest';
import { BROKEN, ended, REJECTED, tasksNamed, UNGRADABLE } from '../../test/fixtures/evaluation.ts';
import { wilson } from '../core/statistics.ts';
import { isSuccess } from '../core/turns.ts';
import type { Reward, Trajectory } from '../core/types.ts';
import { endingOf, identityOf, meansOf, Results, reportOf, rolloutReport, scoreOf } from './results.ts';

type How = Parameters<typeof ended>[2];
const graded = (reward: Partial<Reward>): How => ({ grade: { kind: 'graded', reward: { value: 0, ...reward } } });
const cut = (limit: 'deadline' | 'turns'): How => ({
  outcome: { kind: 'truncated', limit },
  grade: { kind: 'ungraded', why: 'truncated' },
});
const SILENT: How = { outcome: { kind: 'rejected', reason: 'no_turns' }, grade: { kind: 'ungraded', why: 'rejected' } };

function resultsOf(n: number, byTask: Readonly<Record<string, readonly How[]>>): Results {
  const results = new Results(tasksNamed(...Object.keys(byTask)), n);
  for (const [id, ways] of Object.entries(byTask)) for (const [i, how] of ways.entries()) results.add(ended(id, i + 1, how));
  return results;
}
const reported = (n: number, byTask: Readonly<Record<string, readonly How[]>>) =>
  reportOf(resultsOf(n, byTask).byTask(), { n, temperature: 1 });
const idsOf = (results: Results, retryFailed = false): readonly string[] =>
  results.pending(retryFailed).map(({ identity }) => identity.rolloutId);

describe('the rollouts of an evaluation', () => {
  it('have ids of the task’s id and their number alone', () => {
    expect(identityOf('a', 2, 1)).toEqual(identityOf('a', 2, 1));
    const ids = [identityOf('a', 1, 1), identityOf('a', 2, 1), identityOf('b', 1, 1), identityOf('a', 1, 2)];
    expect(new Set(ids.map(({ rolloutId }) => rolloutId)).size).toBe(4);
  });

  it('are pending until they are added, whatever the order', () => {
    const results = new Results(tasksNamed('a', 'b'), 2);
    expect(idsOf(results)).toHaveLength(4);
    results.add(ended('b', 2, 1));
    results.add(ended('a', 1, 0));
    expect(idsOf(results)).toEqual([identityOf('a', 2, 1).rolloutId, identityOf('b', 1, 1).rolloutId]);
    expect(results.byTask().map(({ id, row, rollouts }) => [id, row, rollouts.map(({ number }) => number)])).toEqual([
      ['a', 10, [1]],
      ['b', 11, [2]],
    ]);
  });

  it('that failed are pending again when that is asked for, under a new id; others are not', () => {
    const results = resultsOf(1, { a: [BROKEN], b: [UNGRADABLE], c: [REJECTED], d: [0] });
    expect(idsOf(results)).toEqual([]);
    expect(idsOf(results, true)).toEqual([identityOf('a', 1, 2).rolloutId, identityOf('b', 1, 2).rolloutId]);
  });

  it('count once, by their last attempt, in whichever order they are read', () => {
    const results = new Results(tasksNamed('a'), 1);
    results.add(ended('a', 1, 1, 3));
    results.add(ended('a', 1, BROKEN, 1));
    results.add(ended('a', 1, BROKEN, 2));
    expect(results.done).toBe(1);
    expect(results.byTask()[0]?.rollouts).toMatchObject([{ attempt: 3, ending: 'solved', reward: 1, seconds: 2.5 }]);
    expect(idsOf(results, true)).toEqual([]);
  });

  it('end in one of four ways', () => {
    const cases = [1, 0.99, BROKEN, UNGRADABLE, REJECTED, cut('deadline'), cut('turns'), SILENT, graded({ success: true })];
    expect(cases.map((how) => endingOf(ended('a', 1, how)))).toEqual([
      ...['solved', 'unsolved', 'failed', 'failed', 'ungraded', 'failed', 'ungraded', 'failed', 'solved'],
    ]);
  });

  it('have the tags of their task, as a list or one, and nothing that is no text', () => {
    const tagged = (metadata: unknown) => ({
      task: { id: JSON.stringify(metadata), prompt: [], metadata: metadata as never },
      number: 1,
    });
    const all = [{ tags: ['a', 'a', 3, ''] }, { tag: 'b', tags: 'c' }, null, 'text', { tags: { x: 1 } }];
    expect(new Results(all.map(tagged), 1).byTask().map(({ tags }) => tags)).toEqual([['a'], ['c', 'b'], [], [], []]);
  });
});

describe('the numbers of an evaluation', () => {
  it('of three tasks solved 4, 0 and 1 times of 4 are 5/12, 2/3 for any of four and 1/3 for all of four', () => {
    const report = reported(4, { a: [1, 1, 1, 1], b: [0, 0, 0, 0], c: [0, 0, 1, 0] });
    const { success, passAtK, passHatK } = report;
    const numbers = [success, passAtK['1'], passAtK['4'], passHatK['4']].map((x) => x?.toFixed(9));
    expect(numbers).toEqual([5 / 12, 5 / 12, 2 / 3, 1 / 3].map((x) => x.toFixed(9)));
    expect(report).toMatchObject({ n: 3, perTask: 4, rollouts: 12 });
  });

  it('have failed and ungraded rollouts in the denominator, and not among the rewards', () => {
    const report = reported(1, { a: [1], b: [BROKEN], c: [UNGRADABLE], d: [REJECTED], e: [0.5] });
    expect(report).toMatchObject({ success: 0.2, n: 5, failed: 2, ungraded: 1, meanReward: 0.75 });
    expect(report.ci).toEqual(wilson(0.2, 5));
  });

  it('count tasks equally, whatever became of their rollouts', () => {
    expect(reported(3, { a: [1, 1, 1], b: [0, BROKEN, BROKEN] })).toMatchObject({ success: 0.5, meanReward: 0.5, failed: 2 });
  });

  it('are asked for k = 1, 2, 4 … and for n itself', () => {
    expect(Object.keys(reported(6, { a: [1, 0, 0, 0, 0, 0] }).passAtK)).toEqual(['1', '2', '4', '6']);
  });

  it('leave out what was not run, and nothing else', () => {
    expect(reported(2, { a: [1, 1], b: [] })).toMatchObject({ success: 1, n: 1, rollouts: 2 });
    expect(reported(4, { a: [1, 0] }).passAtK).toEqual({ 1: 0.5, 2: 1 });
  });

  it('of nothing divide by nothing', () => {
    const empty = reported(4, { a: [], b: [] });
    expect(empty).toMatchObject({ success: 0, ci: [0, 1], n: 0, rollouts: 0, failed: 0, meanReward: null, byTag: {} });
    expect(Object.values(empty.passAtK)).toEqual([0, 0, 0]);
    expect(reported(1, { a: [BROKEN] })).toMatchObject({ success: 0, n: 1, failed: 1, meanReward: null });
  });

  it('are given by tag', () => {
    const { byTag } = reported(1, { a: [1], b: [0], c: [BROKEN] });
    expect(Object.keys(byTag)).toEqual(['even', 'every', 'odd']);
    expect(byTag['even']).toMatchObject({ success: 0.5, n: 2, failed: 1, meanReward: 1 });
    expect(byTag['odd']).toMatchObject({ success: 0, n: 1, failed: 0, meanReward: 0 });
    expect(byTag['every']).toMatchObject({ n: 3 });
  });

  it('are, with one rollout a task, those that a training tells of the same rollouts', () => {
    const ways = { a: 1, b: 0.5, c: BROKEN, d: UNGRADABLE, e: REJECTED };
    const byTask = Object.fromEntries(Object.entries(ways).map(([id, how]) => [id, [how]]));
    const { success, ci, n, failed, ungraded, meanReward } = reported(1, byTask);
    const score = scoreOf(Object.entries(ways).map(([id, how]) => ended(id, 1, how)));
    expect(score).toEqual({ success, ci, n, failed, ungraded, meanReward });
    expect([failed, ungraded]).toEqual([2, 1]);
  });
});

const all = (...ways: readonly How[]): readonly Trajectory[] => ways.map((how) => ended('a', 1, how));

describe('means by name', () => {
  it('are over the graded rollouts that have it, in one order: what failed or was not graded counts nowhere', () => {
    const some = all(graded({ parts: { format: 1, exact: 0 } }), graded({ parts: { format: 0 }, metrics: { tries: 3 } }));
    const means = meansOf([...some, ...all(UNGRADABLE, REJECTED)]);
    expect(means).toEqual({ parts: { format: 0.5, exact: 0 }, metrics: { tries: 3 } });
    expect(Object.keys(means.parts ?? {})).toEqual(['exact', 'format']);
    expect(meansOf(all(1, UNGRADABLE))).toEqual({});
  });

  it('are few, however many names a grader makes up', () => {
    const ways = Array.from({ length: 500 }, (_, i) => graded({ parts: { [`made up ${i}`]: i } }));
    expect(Object.keys(meansOf(all(...ways)).parts ?? {})).toHaveLength(256);
  });
});

it('the report of a step counts what failed and what was rejected apart, and gives neither a reward', () => {
  const trajectories = all(graded({ value: 1, parts: { format: 1 } }), UNGRADABLE, REJECTED, BROKEN, SILENT, cut('deadline'));
  const groups = [{ trajectories }] as never;
  expect(rolloutReport({ groups, withoutSignal: [], stale: [] })).toMatchObject({
    ...{ reward: 1, parts: { format: 1 }, rollouts: 6, failedRollouts: 3, failedGrades: 1, ungraded: 1 },
  });
});

it('the interval of a step’s reward has groups as its units, and is absent without a spread', () => {
  const [low, high] = [all(graded({ value: 0 }), graded({ value: 0 })), all(graded({ value: 1 }), graded({ value: 1 }), BROKEN)];
  const of = (...groups: readonly (readonly Trajectory[])[]) =>
    rolloutReport({ groups: groups.map((trajectories) => ({ trajectories })) as never, withoutSignal: [], stale: [] });
  const [least, most] = of(low, high).rewardCi!;
  // Student's t with one degree of freedom is 12.7; a deviation of 0.707 over two groups is an error of 0.5.
  expect([least, most].map((end) => end.toFixed(2))).toEqual(['-5.85', '6.85']);
  expect(of(low)).not.toHaveProperty('rewardCi');
  expect(of(low, low)).not.toHaveProperty('rewardCi');
});

it('a success, where nobody says what one is, is what trained roles earned, or the value where they have no reward of their own', () => {
  const turns = [
    { role: 'werewolf', trainable: true },
    { role: 'villager', trainable: false },
  ] as unknown as Trajectory['turns'];
  const won = (reward: Partial<Reward>, of = turns) => isSuccess({ ...ended('a', 1, graded(reward)), turns: of });
  expect(won({ byRole: { werewolf: 1.2, villager: 0 } })).toBe(true);
  expect(won({ value: 1, byRole: { werewolf: 0, villager: 1.2 } })).toBe(false);
  expect(won({ value: 1, byRole: { villager: 0 } })).toBe(true);
  expect(won({ value: 1, byRole: { werewolf: 0 } }, [])).toBe(true);
});
