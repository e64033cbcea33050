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
    expect(() => add(new FailureBudget(), 8, rejected(0))).toThrowError(
      expect.objectContaining({ code: 'POLICY_BYPASSED', hint: expect.stringContaining('ctx.model()') }),
    );
  });

  it('is spent by rollouts that run into their deadline, and bears some failures among successes', () => {
    const late = { ...ended(graded), outcome: { kind: 'truncated', limit: 'deadline' } } as Trajectory;
    expect(() => add(new FailureBudget(), 8, late)).toThrowError(/deadline/);
    const budget = new FailureBudget();
    add(budget, 10, ended(graded));
    add(budget, 9, failed('r'));
    expect(() => budget.settle()).not.toThrow();
  });

  it('is spent by rollouts whose calls all failed, without the word that they never came to the policy', () => {
    const called = { ...failed('r'), unanswered: [{}] } as unknown as Trajectory;
    expect(() => add(new FailureBudget(), 8, called)).toThrowError(
      expect.objectContaining({ code: 'FAILURE_BUDGET', hint: expect.stringMatching(/^fix what it names/) }),
    );
  });
});

const failed = (rolloutId: string): Trajectory =>
  ({
    rolloutId,
    turns: [],
    outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'it broke' },
    grade: ungraded,
  }) as unknown as Trajectory;
const ungraded = { kind: 'ungraded', why: 'failed' } as const;

describe('what fails sooner than the rest succeeds', () => {
  it('is judged in the order of beginning: one in six that fails at once does not end a run', () => {
    const budget = new FailureBudget();
    const begun = Array.from({ length: 256 }, () => budget.begin());
    const [bad, good] = [begun.filter((_, i) => i % 6 === 0), begun.filter((_, i) => i % 6 !== 0)];
    expect(() => {
      for (const one of bad) budget.add(failed('r'), one);
      for (const one of good) budget.add(ended(graded), one);
      budget.settle();
    }).not.toThrow();
  });

  it('is judged likewise where it is the grading that fails', () => {
    const budget = new FailureBudget(0.25);
    const begun = Array.from({ length: 100 }, () => budget.begin());
    expect(() => {
      for (const one of begun.filter((_, i) => i % 5 === 4)) budget.add(ended(broken('GRADER_FAILED')), one);
      for (const one of begun.filter((_, i) => i % 5 !== 4)) budget.add(ended(graded), one);
      budget.settle();
    }).not.toThrow();
  });

  it('ends a run though an earlier one is still under way, as soon as it is too much whatever comes of that', () => {
    const budget = new FailureBudget();
    budget.begin();
    add(budget, 14, failed('r'));
    expect(() => budget.add(failed('r'))).toThrowError(
      expect.objectContaining({ code: 'FAILURE_BUDGET', message: expect.stringContaining('15 of the last 16 rollouts failed') }),
    );
  });

  it('waits for nothing that was given up', () => {
    const budget = new FailureBudget();
    const slow = budget.begin();
    add(budget, 7, failed('r'));
    budget.leave(slow);
    expect(() => budget.add(failed('r'))).toThrowError(/8 of the last 8 rollouts failed/);
  });

  it('is counted at the end of a phase, though others are under way', () => {
    const budget = new FailureBudget();
    budget.begin();
    add(budget, 5, failed('r'));
    expect(() => budget.settle()).toThrowError(/5 of the last 5 rollouts failed/);
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

  it('is judged over the phases of a run together: evaluations on the way do not begin it anew', () => {
    const budget = new FailureBudget(0.05);
    const phase = (): void => {
      add(budget, 28, ended(graded));
      add(budget, 4, ended(broken('GRADER_TIMEOUT')));
      budget.settle();
    };
    phase();
    expect(phase).toThrowError(expect.objectContaining({ code: 'GRADER_BUDGET' }));
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
