import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Grade, Trajectory } from '../core/types.ts';
import { grpoAdvantages, hasSignal } from './advantages.ts';

const graded = (value: number): Grade => ({ kind: 'graded', reward: { value } });
const failed: Grade = { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'slow' };
const rollout = (groupId: string, rolloutId: string, grade: Grade): Trajectory => ({ groupId, rolloutId, grade }) as Trajectory;

describe('GRPO advantages', () => {
  it('are (reward − mean) / (deviation + ε) within the group', () => {
    const advantages = grpoAdvantages([rollout('g', 'a', graded(1)), rollout('g', 'b', graded(0))]);
    expect(advantages.get('a')).toBeCloseTo(0.5 / (0.5 + 1e-4), 12);
    expect(advantages.get('b')).toBeCloseTo(-0.5 / (0.5 + 1e-4), 12);
  });

  it('do not count a failed grading as reward 0', () => {
    const advantages = grpoAdvantages([rollout('g', 'a', graded(1)), rollout('g', 'b', graded(0.5)), rollout('g', 'c', failed)]);
    expect([...advantages.keys()]).toEqual(['a', 'b']);
    expect(advantages.get('a')).toBeCloseTo(0.25 / (0.25 + 1e-4), 12);
  });

  it('are absent for a group of one and for a group whose rewards are equal', () => {
    expect(grpoAdvantages([rollout('g', 'a', graded(1))]).size).toBe(0);
    expect(grpoAdvantages([rollout('g', 'a', graded(1)), rollout('g', 'b', graded(1))]).size).toBe(0);
    expect(hasSignal([rollout('g', 'a', graded(1)), rollout('g', 'b', failed)])).toBe(false);
  });

  it('depend on group identity, not on the order rows arrive in', () => {
    const rows = fc.array(fc.record({ group: fc.constantFrom('x', 'y', 'z'), reward: fc.integer({ min: 0, max: 3 }) }), {
      minLength: 1,
      maxLength: 20,
    });
    fc.assert(
      fc.property(rows, fc.infiniteStream(fc.nat()), (list, keys) => {
        const ordered = list.map(({ group, reward }, i) => rollout(group, `r${i}`, graded(reward)));
        const shuffled = ordered
          .map((row) => ({ row, key: keys.next().value as number }))
          .toSorted((a, b) => a.key - b.key)
          .map(({ row }) => row);
        const expected = grpoAdvantages(ordered);
        const found = grpoAdvantages(shuffled);
        expect(found.size).toBe(expected.size);
        for (const [id, advantage] of expected) expect(found.get(id)).toBeCloseTo(advantage, 10);
        const sums = Map.groupBy(
          ordered.filter(({ rolloutId }) => expected.has(rolloutId)),
          ({ groupId }) => groupId,
        );
        for (const group of sums.values())
          expect(group.reduce((sum, { rolloutId }) => sum + (expected.get(rolloutId) ?? 0), 0)).toBeCloseTo(0, 9);
      }),
    );
  });
});
