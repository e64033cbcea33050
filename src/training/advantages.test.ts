import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Grade, Trajectory } from '../core/types.ts';
import { ALGORITHMS } from '../settings/settings.ts';
import { advantagesOf, hasSignal } from './advantages.ts';

const graded = (value: number): Grade => ({ kind: 'graded', reward: { value } });
const failed: Grade = { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'slow' };
const rollout = (groupId: string, rolloutId: string, grade: Grade): Trajectory => ({ groupId, rolloutId, grade }) as Trajectory;
const rewarded = (...rewards: readonly number[]) => rewards.map((reward, i) => rollout('g', `r${i}`, graded(reward)));

describe('advantages', () => {
  const deviation = Math.sqrt(3) + 1e-4;
  it.each([
    // Of the group itself, not the estimate for a larger population: mean 1, variance (1 + 1 + 1 + 9) / 4 = 3.
    ['grpo', [0, 0, 0, 4], [-1 / deviation, -1 / deviation, -1 / deviation, 3 / deviation]],
    ['grpo', [1, 0], [0.5 / (0.5 + 1e-4), -0.5 / (0.5 + 1e-4)]],
    // A group whose rewards hardly differ pulls hardly.
    ['dr-grpo', [0, 0, 0, 4], [-1, -1, -1, 3]],
    ['dr-grpo', [0.5, 0.75], [-0.125, 0.125]],
    // Without one's own: for the 4: 4 − 0. For each 0: 0 − (0 + 0 + 4) / 3.
    ['rloo', [0, 0, 0, 4], [-4 / 3, -4 / 3, -4 / 3, 4]],
    ['rloo', [1, 0], [1, -1]],
    // Before the batch whitens them.
    ['reinforce++', [0, 0, 0, 4], [-1, -1, -1, 3]],
  ] as const)('by %s of rewards %j are %j', (algorithm, rewards, expected) => {
    expect([...advantagesOf(rewarded(...rewards), algorithm).values()]).toEqual(expected);
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
    expect(advantagesOf(rewarded(0.3, 0.1 + 0.2, 0.3 + 9e-10), algorithm).size, 'but for rounding').toBe(0);
    expect(advantagesOf(rewarded(0, 1.1e-9), algorithm).size).toBe(2);
    expect(hasSignal([rollout('g', 'a', graded(1)), rollout('g', 'b', failed)])).toBe(false);
  });

  it('add up to zero in each group', () => {
    const reward = fc.constantFrom(0, 0.1, 0.2, 0.3, 0.7, 1, 1e6);
    const rows = fc.array(fc.record({ group: fc.constantFrom('x', 'y', 'z'), reward }), { minLength: 1, maxLength: 20 });
    fc.assert(
      fc.property(rows, (list) => {
        const ordered = list.map((row, i) => rollout(row.group, `r${i}`, graded(row.reward)));
        const advantages = advantagesOf(ordered, algorithm);
        for (const group of Map.groupBy(ordered, ({ groupId }) => groupId).values()) {
          const sum = group.reduce((total, { rolloutId }) => total + (advantages.get(rolloutId) ?? 0), 0);
          expect(Math.abs(sum)).toBeLessThan(1e-6);
        }
      }),
    );
  });
});
