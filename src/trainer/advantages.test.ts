import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Grade, Trajectory } from '../core/types.ts';
import { ALGORITHMS, advantagesOf, hasSignal } from './advantages.ts';

const graded = (value: number): Grade => ({ kind: 'graded', reward: { value } });
const failed: Grade = { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'slow' };
const rollout = (groupId: string, rolloutId: string, grade: Grade): Trajectory => ({ groupId, rolloutId, grade }) as Trajectory;
const rewarded = (...rewards: readonly number[]) => rewards.map((reward, i) => rollout('g', `r${i}`, graded(reward)));

describe('GRPO advantages', () => {
  it('are (reward − mean) / (deviation + ε) within the group', () => {
    const advantages = advantagesOf([rollout('g', 'a', graded(1)), rollout('g', 'b', graded(0))], 'grpo');
    expect(advantages.get('a')).toBeCloseTo(0.5 / (0.5 + 1e-4), 12);
    expect(advantages.get('b')).toBeCloseTo(-0.5 / (0.5 + 1e-4), 12);
  });

  it('use the deviation of the group itself, not the estimate for a larger population', () => {
    // Mean 1, variance (1 + 1 + 1 + 9) / 4 = 3.
    expect([...advantagesOf(rewarded(0, 0, 0, 4), 'grpo').values()]).toEqual(
      [-1, -1, -1, 3].map((distance) => distance / (Math.sqrt(3) + 1e-4)),
    );
  });
});

describe('Dr. GRPO advantages', () => {
  it('are reward − mean, so that a group whose rewards hardly differ pulls hardly', () => {
    expect([...advantagesOf(rewarded(0, 0, 0, 4), 'dr-grpo').values()]).toEqual([-1, -1, -1, 3]);
    expect([...advantagesOf(rewarded(0.5, 0.75), 'dr-grpo').values()]).toEqual([-0.125, 0.125]);
  });
});

describe('RLOO advantages', () => {
  it('are reward − mean of the others', () => {
    // For the 4: 4 − 0. For each 0: 0 − (0 + 0 + 4) / 3.
    expect([...advantagesOf(rewarded(0, 0, 0, 4), 'rloo').values()]).toEqual([-4 / 3, -4 / 3, -4 / 3, 4]);
    expect([...advantagesOf(rewarded(1, 0), 'rloo').values()]).toEqual([1, -1]);
  });
});

describe.each(ALGORITHMS)('advantages by %s', (algorithm) => {
  it('do not count a failed grading as reward 0', () => {
    const two = [rollout('g', 'a', graded(1)), rollout('g', 'b', graded(0.5))];
    expect(advantagesOf([...two, rollout('g', 'c', failed)], algorithm)).toEqual(advantagesOf(two, algorithm));
  });

  it('are absent for a group of one and for a group whose rewards are equal', () => {
    expect(advantagesOf([rollout('g', 'a', graded(1))], algorithm).size).toBe(0);
    expect(advantagesOf([rollout('g', 'a', graded(1)), rollout('h', 'b', graded(0))], algorithm).size).toBe(0);
    expect(advantagesOf(rewarded(1, 1), algorithm).size).toBe(0);
    expect(hasSignal([rollout('g', 'a', graded(1)), rollout('g', 'b', failed)])).toBe(false);
  });

  it('add up to zero in each group and are, to the bit, the same for shuffled rows', () => {
    const reward = fc.constantFrom(0, 0.1, 0.2, 0.3, 0.7, 1, 1e6);
    const rows = fc.array(fc.record({ group: fc.constantFrom('x', 'y', 'z'), reward }), { minLength: 1, maxLength: 20 });
    fc.assert(
      fc.property(rows, fc.infiniteStream(fc.nat()), (list, keys) => {
        const ordered = list.map((row, i) => rollout(row.group, `r${i}`, graded(row.reward)));
        const shuffled = ordered
          .map((row) => ({ row, key: keys.next().value as number }))
          .toSorted((a, b) => a.key - b.key)
          .map(({ row }) => row);
        const advantages = advantagesOf(ordered, algorithm);
        expect(advantagesOf(shuffled, algorithm)).toEqual(advantages);
        for (const group of Map.groupBy(ordered, ({ groupId }) => groupId).values()) {
          const sum = group.reduce((total, { rolloutId }) => total + (advantages.get(rolloutId) ?? 0), 0);
          expect(Math.abs(sum)).toBeLessThan(1e-6);
        }
      }),
    );
  });
});
