/** What the text graders compare, their options, and tasks that they cannot score. For right and wrong answers see `cases.test.ts`. */
import { describe, expect, it } from 'vitest';
import { gradeOf, rewardOf, type SaidInput } from '../../test/fixtures/grader/rollout-input.ts';
import type { Grader, GraderInput } from '../core/contracts.ts';
import type { Json, Message } from '../core/types.ts';
import { mathMatch } from './math/math-match.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';
import { exactMatch, normalisedMatch, regexMatch } from './text-match.ts';

const right = { kind: 'graded', reward: { value: 1, success: true } };
const wrong = { kind: 'graded', reward: { value: 0, success: false } };
const unscorable = (message: RegExp) => ({
  kind: 'failed',
  code: 'GRADER_UNSCORABLE',
  message: expect.stringMatching(message),
});
const invalid = (message: RegExp) => expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(message) });
const grade = (grader: Grader, said: string, answer?: Json, metadata?: Json) =>
  gradeOf(grader, {
    said,
    threads: { main: [{ role: 'assistant', content: 'B' }] },
    task: { id: 't1', prompt: [], ...(answer === undefined ? {} : { answer }), ...(metadata === undefined ? {} : { metadata }) },
  });

describe('what was said', () => {
  const assistant = (content: string | null): Message => ({ role: 'assistant', content });
  const messages: Message[] = [assistant('first'), assistant('last'), { role: 'user', content: 'thanks' }];
  const others = [undefined, null, true, { answer: 1 }, ['x']];

  it.each<[string, SaidInput, string]>([
    ['the output where that is a text', { output: 'out', messages }, 'out'],
    ['the output where that is a number', { output: 0.5, messages }, '0.5'],
    ...others.map((output): [string, SaidInput, string] => [
      'else the last message of the assistant',
      { output, messages },
      'last',
    ]),
  ])('is %s', async (_, input, said) => {
    expect((await rewardOf(exactMatch(), { ...input, answer: said })).value).toBe(1);
  });

  it.each<[string, SaidInput]>([
    ['an empty output', { output: '', messages }],
    ['no messages', { messages: [] }],
    ['a last message without text', { messages: [assistant('before'), assistant(null)] }],
  ])('is nothing with %s', async (_, input) => {
    expect((await rewardOf(regexMatch(/^$/), input)).value).toBe(1);
  });

  it('is what `of` reads, which has to be a text', async () => {
    const of = ({ threads }: GraderInput): string => threads['main']?.[0]?.content ?? '';
    for (const make of [exactMatch, multipleChoice, mathMatch]) expect(await grade(make({ of }), 'A', 'B')).toEqual(right);
    expect(await grade(normalisedMatch({ of }), 'A', 'b')).toEqual(right);
    expect(await grade(numberMatch({ of: () => '7' }), '8', 7)).toEqual(right);
    expect(await grade(exactMatch({ of: () => undefined as never }), 'A', 'A')).toEqual(unscorable(/`of` returned undefined/));
  });
});

describe('the answer', () => {
  it.each([null, '', ' \n', []])('is unscorable where it is %j', async (answer) => {
    expect(await grade(exactMatch(), '', answer)).toEqual(unscorable(/"t1" (?:has no answer|is empty)/));
  });

  it.each<[Json, string]>([
    [0, '0'],
    [false, 'false'],
    [['a', 2], '2'],
    [' a ', 'a'],
  ])('may be %j', async (answer, said) => {
    expect(await grade(exactMatch(), said, answer)).toEqual(right);
  });

  it.each<Json[]>([[{ secret: 'secret' }], [['secret', null]], [[['secret']]], [['secret', '']]])(
    'is never quoted when it cannot be used, as %j',
    async (answer) => {
      expect(await grade(exactMatch(), 'a', answer)).toEqual(unscorable(/^(?!.*secret).*expected a text or number/));
    },
  );
});

const all = { exactMatch, normalisedMatch, numberMatch, mathMatch, multipleChoice };

describe.each(Object.entries(all))('%s', (name, make: (options?: never) => Grader) => {
  it('is a grader of its own name, and names everything that is wrong with its options at once', () => {
    expect(make().name).toBe(name);
    const none = new RegExp(`^${name}: it has no option tolerence, expected of`);
    expect(() => make({ tolerence: 1 } as never)).toThrow(invalid(none));
    expect(() => make({ of: 'text', other: 1 } as never)).toThrow(/of is 'text', expected a function.*; it has no option other/);
    expect(() => make(5 as never)).toThrow(/expected an object of options, found 5/);
  });

  it('cannot score a task without an answer', async () => {
    expect(await grade(make(), '42')).toEqual(unscorable(/^task "t1" has no /));
    expect((await grade(make(), '', '')).kind).toBe('failed');
  });
});

describe('options', () => {
  it('exactMatch may ignore case, and may keep white space', async () => {
    expect(await grade(exactMatch({ caseSensitive: false }), 'PARIS', 'Paris')).toEqual(right);
    expect(await grade(exactMatch({ trim: false }), 'Paris ', 'Paris')).toEqual(wrong);
  });

  it.each([-1, Number.NaN, Number.POSITIVE_INFINITY, '1'])('a tolerance is a finite number from 0 up, and not %j', (bad) => {
    expect(() => numberMatch({ relative: bad as number })).toThrow(/relative is .*, expected a finite number from 0 up/);
  });

  it('mathMatch says what it may read where nothing is marked', () => {
    const message = /unmarked is 'first', expected 'last-line' or 'last-number' or 'wrong'/;
    expect(() => mathMatch({ unmarked: 'first' as never })).toThrow(message);
  });

  it('multipleChoice takes choices that are the same for every task', async () => {
    expect(await grade(multipleChoice({ choices: ['yes', 'no'] }), 'No.', 'B')).toEqual(right);
    expect(() => multipleChoice({ choices: [] })).toThrow(/choices is .*, expected a list of texts/);
  });
});

describe('references that cannot be used', () => {
  const yesOrNo = { choices: ['yes', 'no'] };
  it.each<[string, Grader, Json, RegExp, Json?]>([
    ['no number', numberMatch(), 'a dozen', /holds no number/],
    ['two numbers', numberMatch(), '3 zebras and 4 lions', /does not hold exactly one number/],
    ['a formula', numberMatch(), '2^10', /does not hold exactly one number/],
    ['no choice', multipleChoice(), 'zebra', /neither a letter nor the text of a choice/],
    ['an index too high', multipleChoice(), 12, /not the index of a choice/],
    ['no index', multipleChoice(), 1.5, /not the index of a choice/],
    ['an object', mathMatch(), { zebra: 1 }, /an object, expected a text or number/],
    ['a letter that is not offered', multipleChoice(), 'C', /neither a letter/, yesOrNo],
    ['an index that is not offered', multipleChoice(), 2, /not the index/, yesOrNo],
    ...(['A,B', [], [null], Array(11).fill('x')] as Json[]).map((choices): [string, Grader, Json, RegExp, Json] => [
      'odd choices',
      multipleChoice(),
      'A',
      /choices of task "t1"/,
      { choices },
    ]),
  ])('are unscorable, and never quoted: %s', async (_, grader, answer, message, metadata) => {
    const found = await grade(grader, '1', answer, metadata);
    expect(found).toEqual(unscorable(message));
    expect(JSON.stringify(found)).not.toContain('zebra');
  });

  it('may be words that mathMatch cannot read: then the words are compared', async () => {
    expect(await grade(mathMatch(), String.raw`\boxed{all of them}`, 'All of them.')).toEqual(right);
    expect(await grade(mathMatch(), String.raw`\boxed{some of them}`, 'All of them.')).toEqual(wrong);
    expect(await grade(mathMatch(), String.raw`\boxed{}`, '$$')).toEqual(wrong);
  });
});

describe('regexMatch', () => {
  const FOREVER = '^(a+)+$';

  it('finds an expression, time and again, whatever its flags remember', async () => {
    const grader = regexMatch(/\bwarehouse\s+(\d+)/gi);
    for (let i = 0; i < 3; i++) expect(await grade(grader, 'Warehouse 7')).toEqual(right);
    for (let i = 0; i < 3; i++) expect(await grade(grader, 'warehouse seven')).toEqual(wrong);
  });

  it('takes a text with flags, another place to look at, or the expression from the task’s answer', async () => {
    expect(await grade(regexMatch('^x$', { flags: 'im', of: ({ task }) => `${task.id}\nX` }), '')).toEqual(right);
    expect(await grade(regexMatch(), 'Über', '^\\p{Lu}')).toEqual(right);
    expect(await grade(regexMatch(undefined, { flags: 'i' }), 'ROME', '^rome$')).toEqual(right);
  });

  it.each([undefined, null, '', 7, ['a']])('cannot score with %j as the answer', async (answer) => {
    expect(await grade(regexMatch(), 'a', answer)).toEqual(unscorable(/"t1"/));
  });

  it('cannot score with an answer that is no expression, and does not repeat it', async () => {
    expect(await grade(regexMatch(), 'a', '(secret')).toEqual(unscorable(/^(?!.*secret).*task "t1" is no regular expression/));
  });

  it.each([
    ['given', regexMatch(FOREVER, { timeoutMs: 50 }), undefined],
    ['of the task', regexMatch(undefined, { timeoutMs: 50 }), FOREVER],
  ])('gives up an expression that takes forever, %s, and is none the worse for it', async (_, grader, answer) => {
    expect(await grade(grader, `${'a'.repeat(60)}!`, answer)).toEqual(unscorable(/took longer than 50 ms/));
    expect(await grade(grader, 'aaa', answer)).toEqual(right);
    expect(await grade(grader, 'b', answer)).toEqual(wrong);
  });

  it.each<[unknown, object, RegExp]>([
    ['(', {}, /Invalid regular expression/],
    ['a', { flags: 'q' }, /flags/],
    [/a/, { flags: 'gg' }, /flags/],
    [7, {}, /found number/],
    ['a', { timeoutMs: 0 }, /timeoutMs is 0/],
    ['a', { limit: 5 }, /it has no option limit, expected of, flags, timeoutMs/],
  ])('refuses %j with %j at once', (pattern, options, message) => {
    expect(() => regexMatch(pattern as string, options)).toThrow(invalid(message));
  });
});
