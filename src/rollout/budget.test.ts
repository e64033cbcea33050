import { describe, expect, it } from 'vitest';
import type { Trajectory } from '../core/types.ts';
import { FailureBudget } from './budget.ts';

const rejected = (turns: number): Trajectory =>
  ({
    rolloutId: 'r',
    turns: Array.from({ length: turns }, () => ({})),
    outcome: { kind: 'rejected', reason: 'returned_none' },
    grade: { kind: 'ungraded', why: 'rejected' },
  }) as unknown as Trajectory;

const add = (budget: FailureBudget, count: number, trajectory: Trajectory): void => {
  for (let i = 0; i < count; i++) budget.add(trajectory);
};

describe('the failure budget', () => {
  it('is not spent by rollouts that the workflow rejects after it asked the policy', () => {
    const budget = new FailureBudget();
    add(budget, 100, rejected(1));
    expect(() => budget.settle()).not.toThrow();
  });

  it('is spent by rollouts that never asked the policy, whatever they say', () => {
    expect(() => add(new FailureBudget(), 8, rejected(0))).toThrowError(expect.objectContaining({ code: 'POLICY_BYPASSED' }));
  });
});

const graded = { kind: 'graded', reward: { value: 0 } } as const;
const broken = (code: string) => ({ kind: 'failed', code, message: 'no answer in 10 s' }) as const;
const ended = (grade: Trajectory['grade'], rolloutId = 'r'): Trajectory =>
  ({ rolloutId, turns: [{}], outcome: { kind: 'completed' }, grade }) as unknown as Trajectory;

describe('the budget of failed gradings', () => {
  it('ends a run when more than its share of 64 or more failed, and says how many, of how many, and why', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 60, ended(graded));
    add(budget, 2, ended(broken('GRADER_TIMEOUT'), 'g1-0'));
    budget.add(ended(broken('GRADER_FAILED'), 'g2-0'));
    expect(() => budget.add(ended(broken('GRADER_TIMEOUT')))).toThrowError(
      expect.objectContaining({
        code: 'GRADER_BUDGET',
        message:
          '4 of the first 64 gradings failed, more than 5 % (GRADER_TIMEOUT ×3, such as g1-0; GRADER_FAILED ×1, such as g2-0)',
        hint: expect.stringContaining('--max-error-share'),
      }),
    );
  });

  it('is not spent by fewer than it allows, however long that goes on', () => {
    const budget = new FailureBudget(0.05);
    for (let i = 0; i < 2000; i++) budget.add(ended(i % 25 === 24 ? broken('GRADER_TIMEOUT') : graded));
    expect(() => budget.settle()).not.toThrow();
  });

  it('is not spent by what the grader rejected, nor made larger by what was never graded', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 1000, ended({ kind: 'ungraded', why: 'rejected' }));
    add(budget, 60, ended(graded));
    add(budget, 3, ended(broken('GRADER_TIMEOUT')));
    expect(() => budget.add(ended(broken('GRADER_TIMEOUT')))).toThrowError(expect.objectContaining({ code: 'GRADER_BUDGET' }));
  });

  it('lets a few failures among few gradings pass, and not when all or a quarter of them failed', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 15, ended(graded));
    add(budget, 4, ended(broken('GRADER_TIMEOUT')));
    expect(() => add(budget, 2, ended(broken('GRADER_TIMEOUT')))).toThrowError(
      expect.objectContaining({
        code: 'GRADER_BUDGET',
        message: '6 of the first 21 gradings failed, more than 25 % (GRADER_TIMEOUT ×6, such as r)',
      }),
    );
    expect(() => add(new FailureBudget(0.05), 8, ended(broken('GRADER_TIMEOUT')))).toThrowError(
      expect.objectContaining({
        code: 'GRADER_BUDGET',
        message: '8 of the first 8 gradings failed (GRADER_TIMEOUT ×8, such as r)',
      }),
    );
  });

  it('with a share of 1 is never spent; with 0 one failure among 64 is enough', () => {
    expect(() => add(new FailureBudget(1), 500, ended(broken('GRADER_TIMEOUT')))).not.toThrow();
    const strict = new FailureBudget(0);
    strict.add(ended(broken('GRADER_TIMEOUT')));
    add(strict, 62, ended(graded));
    expect(() => strict.add(ended(graded))).toThrowError(expect.objectContaining({ code: 'GRADER_BUDGET' }));
  });

  it('forgets what happened more than 256 gradings ago', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 100, ended(graded));
    add(budget, 5, ended(broken('GRADER_TIMEOUT')));
    add(budget, 300, ended(graded));
    expect(() => add(budget, 12, ended(broken('GRADER_TIMEOUT')))).not.toThrow();
    expect(() => budget.add(ended(broken('GRADER_TIMEOUT')))).toThrowError(/^13 of the last 256 gradings failed, more than 5 %/);
  });
});
