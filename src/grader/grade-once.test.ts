import { describe, expect, it } from 'vitest';
import type { GraderInput } from '../core/contracts.ts';
import { defineGrader, rejected, unscorable } from '../core/define.ts';
import { gradeOnce } from './inline.ts';

const sum = defineGrader(({ task, messages }) => {
  const said = messages.at(-1)?.content ?? '';
  if (task.answer === undefined) unscorable('the task has no answer');
  if (said === '') return rejected('nothing was said');
  return { value: Number(said === String(task.answer)), parts: { short: 1 / said.length }, metrics: { letters: said.length } };
});

describe('gradeOnce', () => {
  it('gives what a run would store: graded, ungraded or failed', async () => {
    expect(await gradeOnce(sum, { said: '4', answer: 4 })).toEqual({
      kind: 'graded',
      reward: { value: 1, parts: { short: 1 }, metrics: { letters: 1 } },
    });
    expect(await gradeOnce(sum, { said: '', answer: 4 })).toEqual({ kind: 'ungraded', why: 'nothing was said' });
    expect(await gradeOnce(sum, { said: '4' })).toEqual({
      ...{ kind: 'failed', code: 'GRADER_UNSCORABLE', message: 'the task has no answer' },
    });
    expect(
      await gradeOnce(
        defineGrader(() => Number.NaN),
        {},
      ),
    ).toMatchObject({ kind: 'failed', code: 'GRADER_BAD_REWARD' });
  });

  it('shows the grader what it was told, and a whole conversation of it', async () => {
    let seen: GraderInput | undefined;
    const looking = defineGrader((input) => {
      seen = input;
      return input.turns.length;
    });
    const told = { prompt: 'Add 2 and 2.', said: '4', answer: 4, metadata: { hard: false }, output: [4], taskId: 'sum' };
    await gradeOnce(looking, told);
    const conversation = [
      { role: 'user', content: 'Add 2 and 2.' },
      { role: 'assistant', content: '4' },
    ];
    expect(seen).toEqual({
      task: { id: 'sum', prompt: [conversation[0]], answer: 4, metadata: { hard: false } },
      messages: conversation,
      threads: { default: conversation },
      turns: [{ index: 0, role: 'default', thread: 'default', stopReason: 'stop', response: conversation[1] }],
      ...{ output: [4], result: {}, truncated: undefined, artifactsDir: null },
    });
    const model = { baseURL: 'http://127.0.0.1:1/v1', apiKey: 'k', name: 'judge' };
    expect(
      await gradeOnce(
        defineGrader((_, ctx) => Number(ctx.model?.name === 'judge')),
        { model },
      ),
    ).toMatchObject({
      reward: { value: 1 },
    });
  });

  it('holds a grader to its own deadline', async () => {
    const slow = defineGrader({ deadlineMs: 20, grade: () => new Promise<number>(() => {}) });
    expect(await gradeOnce(slow, {})).toMatchObject({ kind: 'failed', code: 'GRADER_TIMEOUT' });
  });

  it('refuses what it does not understand, and says what it does', async () => {
    await expect(gradeOnce(sum, { sayd: '4' } as never)).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(/knows no sayd; expected some of said, messages/),
    });
    await expect(gradeOnce(sum, { said: '4', messages: [] })).rejects.toMatchObject({ code: 'USAGE' });
  });
});
