import { describe, expect, it } from 'vitest';
import type { Trajectory } from '../core/types.ts';
import { FailureBudget } from './budget.ts';

const trajectory = (given: object): Trajectory => ({ rolloutId: 'r', turns: [{}], ...given }) as unknown as Trajectory;
const rejected = (turns: readonly unknown[]): Trajectory =>
  trajectory({ turns, outcome: { kind: 'rejected', reason: 'returned_none' }, grade: { kind: 'ungraded', why: 'rejected' } });
const ended = (grade: Trajectory['grade'], rolloutId = 'r'): Trajectory =>
  trajectory({ rolloutId, outcome: { kind: 'completed' }, grade });
const broken = (code: string) => ({ kind: 'failed', code, message: 'no answer in 10 s' }) as const;
const good = ended({ kind: 'graded', reward: { value: 0 } });
const timedOut = ended(broken('GRADER_TIMEOUT'));
const failed = trajectory({
  ...{ turns: [], grade: { kind: 'ungraded', why: 'failed' } },
  outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'it broke' },
});
const SPENT = expect.objectContaining({ code: 'GRADER_BUDGET' });

const add = (budget: FailureBudget, count: number, one: Trajectory): void => {
  for (let i = 0; i < count; i++) budget.add(one);
};

describe('the failure budget', () => {
  it('is not spent by rollouts that the workflow rejects after it asked the policy', () => {
    const budget = new FailureBudget();
    add(budget, 100, rejected([{}]));
    expect(() => budget.settle()).not.toThrow();
  });

  it('is spent by rollouts that never asked the policy, whatever they say', () => {
    expect(() => add(new FailureBudget(), 8, rejected([]))).toThrowError(
      expect.objectContaining({ code: 'POLICY_BYPASSED', hint: expect.stringContaining('ctx.model()') }),
    );
  });

  it('is spent by rollouts that run into their deadline, and bears some failures among successes', () => {
    const late = { ...good, outcome: { kind: 'truncated', limit: 'deadline' } } as Trajectory;
    expect(() => add(new FailureBudget(), 8, late)).toThrowError(/deadline/);
    const budget = new FailureBudget();
    add(budget, 10, good);
    add(budget, 9, failed);
    expect(() => budget.settle()).not.toThrow();
  });

  it('is spent by rollouts whose calls all failed, without the word that they never came to the policy', () => {
    const called = { ...failed, unanswered: [{}] } as unknown as Trajectory;
    expect(() => add(new FailureBudget(), 8, called)).toThrowError(
      expect.objectContaining({ code: 'FAILURE_BUDGET', hint: expect.stringMatching(/^fix what it names/) }),
    );
  });
});

describe('what fails sooner than the rest succeeds', () => {
  it.each([
    ['one in six fails', 6, new FailureBudget(), failed],
    ['one grading in five fails', 5, new FailureBudget(0.25), timedOut],
  ])('is judged in the order of beginning, and does not end a run where %s at once', (_, every, budget, bad) => {
    const begun = Array.from({ length: 256 }, () => budget.begin());
    expect(() => {
      for (const one of begun.filter((_, i) => i % every === every - 1)) budget.add(bad, one);
      for (const one of begun.filter((_, i) => i % every !== every - 1)) budget.add(good, one);
      budget.settle();
    }).not.toThrow();
  });

  it('ends a run though an earlier one is still under way, as soon as it is too much whatever comes of that', () => {
    const budget = new FailureBudget();
    budget.begin();
    add(budget, 14, failed);
    expect(() => budget.add(failed)).toThrowError(
      expect.objectContaining({ code: 'FAILURE_BUDGET', message: expect.stringContaining('15 of the last 16 rollouts failed') }),
    );
  });

  it('waits for nothing that was given up', () => {
    const budget = new FailureBudget();
    const slow = budget.begin();
    add(budget, 7, failed);
    budget.leave(slow);
    expect(() => budget.add(failed)).toThrowError(/8 of the last 8 rollouts failed/);
  });

  it('is counted at the end of a phase, though others are under way', () => {
    const budget = new FailureBudget();
    budget.begin();
    add(budget, 5, failed);
    expect(() => budget.settle()).toThrowError(/5 of the last 5 rollouts failed/);
  });
});

describe('the budget of failed gradings', () => {
  it('ends a run when more than its share of 64 or more failed, and says how many, of how many, and why', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 60, good);
    add(budget, 2, ended(broken('GRADER_TIMEOUT'), 'g1-0'));
    budget.add(ended(broken('GRADER_FAILED'), 'g2-0'));
    expect(() => budget.add(timedOut)).toThrowError(
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
    for (let i = 0; i < 2000; i++) budget.add(i % 25 === 24 ? timedOut : good);
    expect(() => budget.settle()).not.toThrow();
  });

  it('is judged over the phases of a run together: evaluations on the way do not begin it anew', () => {
    const budget = new FailureBudget(0.05);
    const phase = (): void => {
      add(budget, 28, good);
      add(budget, 4, timedOut);
      budget.settle();
    };
    phase();
    expect(phase).toThrowError(SPENT);
  });

  it('is not spent by what the grader rejected, nor made larger by what was never graded', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 1000, ended({ kind: 'ungraded', why: 'rejected' }));
    add(budget, 60, good);
    add(budget, 3, timedOut);
    expect(() => budget.add(timedOut)).toThrowError(SPENT);
  });

  it('lets a few failures among few gradings pass, and not when all or a quarter of them failed', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 15, good);
    add(budget, 4, timedOut);
    expect(() => add(budget, 2, timedOut)).toThrowError(
      /^6 of the first 21 gradings failed, more than 25 % \(GRADER_TIMEOUT ×6, such as r\)$/,
    );
    expect(() => add(new FailureBudget(0.05), 8, timedOut)).toThrowError(
      /^8 of the first 8 gradings failed \(GRADER_TIMEOUT ×8, such as r\)$/,
    );
  });

  it('with a share of 1 is never spent; with 0 one failure among 64 is enough', () => {
    expect(() => add(new FailureBudget(1), 500, timedOut)).not.toThrow();
    const strict = new FailureBudget(0);
    strict.add(timedOut);
    add(strict, 62, good);
    expect(() => strict.add(good)).toThrowError(SPENT);
  });

  it('forgets what happened more than 256 gradings ago', () => {
    const budget = new FailureBudget(0.05);
    add(budget, 100, good);
    add(budget, 5, timedOut);
    add(budget, 300, good);
    expect(() => add(budget, 12, timedOut)).not.toThrow();
    expect(() => budget.add(timedOut)).toThrowError(/^13 of the last 256 gradings failed, more than 5 %/);
  });
});
