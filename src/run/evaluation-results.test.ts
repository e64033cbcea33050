import { describe, expect, it } from 'vitest';
import { BROKEN, ended, REJECTED, tasksNamed, UNGRADABLE } from '../../test/fixtures/evaluation.ts';
import { identityOf, Results } from './evaluation-results.ts';
import { endingOf } from './signal.ts';

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
    const results = new Results(tasksNamed('a', 'b', 'c', 'd'), 1);
    for (const [id, how] of [
      ['a', BROKEN],
      ['b', UNGRADABLE],
      ['c', REJECTED],
      ['d', 0],
    ] as const)
      results.add(ended(id, 1, how));
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
    const cut = (limit: 'deadline' | 'turns') =>
      ({ outcome: { kind: 'truncated', limit }, grade: { kind: 'ungraded', why: 'truncated' } }) as const;
    const silent = { outcome: { kind: 'rejected', reason: 'no_turns' }, grade: { kind: 'ungraded', why: 'rejected' } } as const;
    const cases = [1, 0.99, BROKEN, UNGRADABLE, REJECTED, cut('deadline'), cut('turns'), silent];
    expect(cases.map((how) => endingOf(ended('a', 1, how)))).toEqual([
      ...['solved', 'unsolved', 'failed', 'failed', 'skipped', 'failed', 'skipped', 'failed'],
    ]);
    const said = { grade: { kind: 'graded', reward: { value: 0, success: true } } } as const;
    expect(endingOf(ended('a', 1, said))).toBe('solved');
  });

  it('have the tags of their task, as a list or one, and nothing that is no text', () => {
    const tagged = (metadata: unknown) => ({
      task: { id: JSON.stringify(metadata), prompt: [], metadata: metadata as never },
      number: 1,
    });
    const results = new Results(
      [{ tags: ['a', 'a', 3, ''] }, { tag: 'b', tags: 'c' }, null, 'text', { tags: { x: 1 } }].map(tagged),
      1,
    );
    expect(results.byTask().map(({ tags }) => tags)).toEqual([['a'], ['c', 'b'], [], [], []]);
  });
});
