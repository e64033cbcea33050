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
