import { describe, expect, it } from 'vitest';
import type { Grade, Outcome, Reward, Trajectory } from '../core/types.ts';
import { isSuccess, meansOf, rolloutReport } from './results.ts';

const COMPLETED: Outcome = { kind: 'completed' };
function trajectory(grade: Grade, outcome = COMPLETED, asked = 1): Trajectory {
  const turns = Array.from({ length: asked }, () => ({ sampledIds: [] })) as unknown as Trajectory['turns'];
  return { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train', outcome, grade, turns, startedAt: 0, endedAt: 1 };
}
const graded = (parts: Record<string, number>, metrics?: Record<string, number>): Trajectory =>
  trajectory({ kind: 'graded', reward: { value: 0, parts, ...(metrics && { metrics }) } });
const failed = trajectory({ kind: 'failed', code: 'GRADER_TIMEOUT', message: '' });
const ungraded = trajectory({ kind: 'ungraded', why: 'blank' });

describe('means by name', () => {
  it('are over the graded rollouts that have it: what failed or was not graded counts nowhere', () => {
    const all = [graded({ format: 1, exact: 0 }), graded({ format: 0 }, { tries: 3 }), failed, ungraded];
    expect(meansOf(all)).toEqual({ parts: { format: 0.5, exact: 0 }, metrics: { tries: 3 } });
  });

  it('are in one order, whatever the order in which rewards hold them', () => {
    const names = (all: readonly Trajectory[]): readonly string[] => Object.keys(meansOf(all).parts ?? {});
    expect(names([graded({ wish: 1, correct: 0 }), graded({ length: 1, correct: 1 })])).toEqual(['correct', 'length', 'wish']);
    expect(names([graded({ correct: 1, length: 1 }), graded({ correct: 0, wish: 1 })])).toEqual(['correct', 'length', 'wish']);
  });

  it('are left out where there are none', () => {
    expect(meansOf([trajectory({ kind: 'graded', reward: { value: 1 } }), failed])).toEqual({});
    expect(meansOf([])).toEqual({});
  });

  it('are few, however many names a grader makes up', () => {
    const rollouts = Array.from({ length: 500 }, (_, i) => graded({ [`made up ${i}`]: i }));
    expect(Object.keys(meansOf(rollouts).parts ?? {})).toHaveLength(256);
  });
});

describe('the report of a step', () => {
  it('counts what failed and what was rejected apart, and gives neither a reward', () => {
    const crashed = trajectory({ kind: 'ungraded', why: 'failed' }, { kind: 'failed', code: 'WORKFLOW_FAILED', message: '' });
    const refused = trajectory({ kind: 'ungraded', why: 'rejected' }, { kind: 'rejected', reason: 'odd' });
    const one = trajectory({ kind: 'graded', reward: { value: 1, parts: { format: 1 } } });
    const silent = trajectory({ kind: 'ungraded', why: 'rejected' }, { kind: 'rejected', reason: 'no_turns' }, 0);
    const late = trajectory({ kind: 'ungraded', why: 'truncated' }, { kind: 'truncated', limit: 'deadline' });
    const groups = [{ trajectories: [one, failed, ungraded, crashed, refused, silent, late] }] as never;
    expect(rolloutReport({ groups, withoutSignal: [], stale: [] })).toMatchObject({
      ...{ reward: 1, parts: { format: 1 }, rollouts: 7 },
      ...{ failedRollouts: 3, failedGrades: 1, ungraded: 2 },
    });
  });
});

describe('a success, where nobody says what one is', () => {
  const turns = [
    { role: 'werewolf', trainable: true },
    { role: 'villager', trainable: false },
  ] as unknown as Trajectory['turns'];
  const game = (reward: Reward): Trajectory => ({ ...trajectory({ kind: 'graded', reward }), turns });

  it('is what the trained roles earned, whatever others won and whatever the whole is worth', () => {
    expect(isSuccess(game({ value: 0, byRole: { werewolf: 1.2, villager: 0 } }))).toBe(true);
    expect(isSuccess(game({ value: 1, byRole: { werewolf: 0, villager: 1.2 } }))).toBe(false);
  });

  it('is the value where the trained role has no reward of its own, or nobody is trained', () => {
    expect(isSuccess(game({ value: 1, byRole: { villager: 0 } }))).toBe(true);
    expect(isSuccess({ ...game({ value: 1, byRole: { werewolf: 0 } }), turns: [] })).toBe(true);
  });
});
