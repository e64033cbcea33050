import { expect, it } from 'vitest';
import type { Grade, Outcome, Trajectory } from '../../core/types.ts';
import { endingLines } from './print-rollout.ts';

const shown = (grade: Grade, outcome: Outcome = { kind: 'completed' }): string =>
  endingLines({ outcome, grade, turns: [], startedAt: 0, endedAt: 0 } as unknown as Trajectory).join('\n');

it('a rollout shows its reward with parts, metrics and what turns, threads and roles earned, each by its name', () => {
  const reward = {
    ...{ value: 0.5, success: false, parts: { format: 1, exact: 0 }, metrics: { tries: 3 } },
    ...{ byTurn: { 0: 0.25 }, byThread: { aside: 2 }, byRole: { clerk: -1 }, untrained: ['draft'] },
    credit: { turnDiscount: 0.9, per: 'turn' as const },
  };
  expect(shown({ kind: 'graded', reward })).toBe(
    'completed · reward 0.5 (no success, format 1, exact 0, metric tries 3, turn 0 0.25, thread aside 2, role clerk -1, thread draft not trained)',
  );
});

it('a rollout shows its calls without an answer, and what they failed of', () => {
  const call = { thread: 'aside', role: 'default', promptTokens: 12, sampledTokens: 3, startedAt: 0, endedAt: 1 };
  const unanswered = [
    { ...call, turnsBefore: 0 },
    { ...call, turnsBefore: 2, failure: { code: 'ENGINE_FAILED', message: 'out of\nmemory' } },
  ];
  const ended = { outcome: { kind: 'completed' }, grade: { kind: 'ungraded', why: 'x' }, unanswered } as unknown as Trajectory;
  expect(endingLines(ended).slice(0, 2)).toEqual([
    '  - aside · call given up · before any turn · 12 + 3 tokens',
    '  - aside · call failed, ENGINE_FAILED: out of⏎memory · after turn 1 · 12 + 3 tokens',
  ]);
});

it('a rollout without a reward says why it has none', () => {
  expect(shown({ kind: 'ungraded', why: 'the page was\nblank' })).toBe('completed · not graded: the page was⏎blank');
  expect(shown({ kind: 'ungraded', why: 'rejected' }, { kind: 'rejected', reason: 'odd' })).toBe('rejected: odd · not graded');
  expect(shown({ kind: 'failed', code: 'GRADER_UNSCORABLE', message: 'no answer' })).toBe(
    'completed · grading failed, GRADER_UNSCORABLE: no answer',
  );
});
