import { describe, expect, it } from 'vitest';
import { gradeOf, rewardOf } from '../../test/fixtures/grader/rollout-input.ts';
import { regexMatch } from './text-match.ts';

const FOREVER = '^(a+)+$';
const said = `${'a'.repeat(60)}!`;

describe('regexMatch', () => {
  it('finds an expression, time and again, whatever its flags remember', async () => {
    const grader = regexMatch(/\bwarehouse\s+(\d+)/gi);
    for (let i = 0; i < 3; i++) expect(await rewardOf(grader, { said: 'Warehouse 7' })).toEqual({ value: 1, success: true });
    for (let i = 0; i < 3; i++) {
      expect(await rewardOf(grader, { said: 'warehouse seven' })).toEqual({ value: 0, success: false });
    }
  });

  it('takes a text with flags, and another place to look at', async () => {
    const grader = regexMatch('^x$', { flags: 'im', of: ({ task }) => `${task.id}\nX` });
    expect((await rewardOf(grader, { said: '' })).value).toBe(1);
  });

  it('takes the expression from the task’s answer', async () => {
    expect((await rewardOf(regexMatch(), { answer: '^\\p{Lu}', said: 'Über' })).value).toBe(1);
    expect((await rewardOf(regexMatch(undefined, { flags: 'i' }), { answer: '^rome$', said: 'ROME' })).value).toBe(1);
  });

  it.each([undefined, null, '', 7, ['a']])('cannot score with %j as the answer', async (answer) => {
    expect(await gradeOf(regexMatch(), { answer, said: 'a' })).toMatchObject({
      code: 'GRADER_UNSCORABLE',
      message: expect.stringMatching(/"t1"/),
    });
  });

  it('cannot score with an answer that is no expression, and does not repeat it', async () => {
    const grade = await gradeOf(regexMatch(), { answer: '(secret', said: 'a' });
    expect(grade).toMatchObject({
      code: 'GRADER_UNSCORABLE',
      message: expect.stringMatching(/task "t1" is no regular expression/),
    });
    expect(JSON.stringify(grade)).not.toContain('secret');
  });

  it.each([
    ['given', regexMatch(FOREVER, { timeoutMs: 50 }), undefined],
    ['of the task', regexMatch(undefined, { timeoutMs: 50 }), FOREVER],
  ])('gives up an expression that takes forever, %s, and is none the worse for it', async (_, grader, answer) => {
    expect(await gradeOf(grader, { answer, said })).toMatchObject({
      kind: 'failed',
      code: 'GRADER_UNSCORABLE',
      message: expect.stringMatching(/took longer than 50 ms/),
    });
    expect((await rewardOf(grader, { answer, said: 'aaa' })).value).toBe(1);
    expect((await rewardOf(grader, { answer, said: 'b' })).value).toBe(0);
  });

  it.each<[unknown, object, RegExp]>([
    ['(', {}, /Invalid regular expression/],
    ['a', { flags: 'q' }, /flags/],
    [/a/, { flags: 'gg' }, /flags/],
    [7, {}, /found number/],
    ['a', { timeoutMs: 0 }, /timeoutMs is 0/],
    ['a', { limit: 5 } as never, /it has no option limit, expected of, flags, timeoutMs/],
  ])('refuses %j with %j at once', (pattern, options, message) => {
    expect(() => regexMatch(pattern as string, options)).toThrow(
      expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(message) }),
    );
  });
});
