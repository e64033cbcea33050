import { describe, expect, it } from 'vitest';
import type { Comparison } from '../evaluation/compare.ts';
import { diffLines } from './eval.ts';

describe('a comparison', () => {
  const nothing = {
    ...{ onlyInA: [], onlyInB: [], changedTasks: [], unfinished: [], otherDifferences: [], earlierPolicies: [] },
    ...{ better: [], worse: [], sameSuccess: [] },
  };
  const comparison = (delta: number, p: number): Comparison => ({
    ...nothing,
    a: 'runs/a',
    b: 'runs/b',
    models: { a: 'models/base', b: null },
    tasks: 9,
    success: { a: 0.5, b: 0.5 + delta, delta, ci: [-0.1, 0.3], p, better: 2, worse: 1, same: 6 },
    meanReward: { a: 0, b: 1, delta: 1, ci: null, tasks: 8, better: 7, worse: 0, same: 1 },
    failed: { a: 0, b: delta === 0 ? 4 : 0 },
  });

  it('says what it comes to, and never that an equal result could be chance', () => {
    expect(diffLines(comparison(0, 1)).join('\n')).toContain('p = 1.0 (no difference)');
    expect(diffLines(comparison(0.1, 0.4)).join('\n')).toContain('(could well be chance)');
    expect(diffLines(comparison(0.1, 0.01)).join('\n')).toContain('(B is better)');
  });

  it('has a line for success, with its chance, and one for rewards; the difference of two shares is in points', () => {
    const lines = diffLines(comparison(0.1, 0.4));
    expect(lines).toContain('Success of 9 tasks: 2 solved more often, 1 less often, 6 as often; p = 0.40 (could well be chance)');
    expect(lines).toContain('Rewards of 8 tasks: 7 higher, 0 lower, 1 the same');
    expect(lines.find((line) => line.startsWith('success'))).toMatch(
      /^success +50\.0 % +60\.0 % +\+10\.0 points +−10\.0 to \+30\.0 points$/,
    );
  });

  it('warns of rollouts that failed', () => {
    expect(diffLines(comparison(0, 1)).join('\n')).toContain('rollouts that failed count as not solved: 0 in A, 4 in B');
    expect(diffLines(comparison(0.1, 0.4)).join('\n')).not.toContain('failed');
  });
});
