/** The options of the graders of texts, and tasks that they cannot score. What is right and wrong is in `cases.test.ts`. */
import { describe, expect, it } from 'vitest';
import type { Grader, GraderInput } from '../core/contracts.ts';
import type { Json, Task } from '../core/types.ts';
import { callGrader } from '../grader/call.ts';
import { countdown } from './countdown.ts';
import { mathMatch } from './math/math-match.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';
import { exactMatch, normalisedMatch } from './text-match.ts';

const grade = (grader: Grader, said: string, task: Omit<Task, 'id' | 'prompt'>) => {
  const input: GraderInput = {
    task: { id: 't1', prompt: [], ...task },
    messages: [{ role: 'assistant', content: said }],
    threads: { main: [{ role: 'assistant', content: 'B' }] },
    turns: [],
    output: undefined,
    result: {},
    truncated: undefined,
    artifactsDir: null,
  };
  return callGrader(grader, input, { signal: new AbortController().signal, model: undefined });
};
const right = { kind: 'graded', reward: { value: 1, success: true } };
const wrong = { kind: 'graded', reward: { value: 0, success: false } };
const unscorable = (message: RegExp) => ({
  kind: 'failed',
  code: 'GRADER_UNSCORABLE',
  message: expect.stringMatching(message),
});

const all = { exactMatch, normalisedMatch, numberMatch, mathMatch, multipleChoice, countdown };

describe.each(Object.entries(all))('%s', (name, make: (options?: never) => Grader) => {
  it('is a grader of its own name', () => {
    expect(make().name).toBe(name);
  });

  it('refuses options that it does not have, and says which it has', () => {
    expect(() => make({ tolerence: 1 } as never)).toThrow(
      expect.objectContaining({
        code: 'GRADER_INVALID',
        message: expect.stringMatching(new RegExp(`^${name}: it has no option tolerence, expected of`)),
      }),
    );
  });

  it('names everything that is wrong with its options at once', () => {
    expect(() => make({ of: 'text', other: 1 } as never)).toThrow(/of is 'text', expected a function.*; it has no option other/);
    expect(() => make(5 as never)).toThrow(/expected an object of options, found 5/);
  });

  it('cannot score a task without an answer', async () => {
    expect(await grade(make(), '42', {})).toEqual(unscorable(/^task "t1" has no /));
    expect((await grade(make(), '', { answer: '' })).kind).toBe('failed');
  });
});

describe('options', () => {
  it('`of` reads something else than the last message', async () => {
    const of = ({ threads }: GraderInput): string => threads['main']?.[0]?.content ?? '';
    expect(await grade(exactMatch({ of }), 'A', { answer: 'B' })).toEqual(right);
    expect(await grade(multipleChoice({ of }), 'A', { answer: 'B' })).toEqual(right);
    expect(await grade(mathMatch({ of }), 'A', { answer: 'B' })).toEqual(right);
    expect(await grade(normalisedMatch({ of }), 'A', { answer: 'b' })).toEqual(right);
    expect(await grade(numberMatch({ of: () => '7' }), '8', { answer: 7 })).toEqual(right);
  });

  it('exactMatch may ignore case, and may keep white space', async () => {
    expect(await grade(exactMatch({ caseSensitive: false }), 'PARIS', { answer: 'Paris' })).toEqual(right);
    expect(await grade(exactMatch({ trim: false }), 'Paris ', { answer: 'Paris' })).toEqual(wrong);
  });

  it('tolerances are finite numbers from 0 up', () => {
    for (const bad of [-1, Number.NaN, Number.POSITIVE_INFINITY, '1']) {
      expect(() => numberMatch({ relative: bad as number })).toThrow(
        /numberMatch: relative is .*, expected a finite number from 0 up/,
      );
    }
  });

  it('mathMatch says what it may read where nothing is marked', () => {
    expect(() => mathMatch({ unmarked: 'first' as never })).toThrow(
      /unmarked is 'first', expected 'last-line' or 'last-number' or 'wrong'/,
    );
  });

  it('multipleChoice takes choices that are the same for every task', async () => {
    expect(await grade(multipleChoice({ choices: ['yes', 'no'] }), 'No.', { answer: 'B' })).toEqual(right);
    expect(() => multipleChoice({ choices: [] })).toThrow(/choices is .*, expected a list of texts/);
  });
});

describe('references that cannot be used', () => {
  it('are unscorable, and never quoted', async () => {
    const none: readonly (readonly [Grader, Json, RegExp])[] = [
      [numberMatch(), 'a dozen', /holds no number/],
      [numberMatch(), '3 zebras and 4 lions', /does not hold exactly one number/],
      [numberMatch(), '2^10', /does not hold exactly one number/],
      [multipleChoice(), 'zebra', /neither a letter nor the text of a choice/],
      [multipleChoice(), 12, /not the index of a choice/],
      [multipleChoice(), 1.5, /not the index of a choice/],
      [mathMatch(), { zebra: 1 }, /an object, expected a text or number/],
      [countdown(), { numbers: [1.5], target: 3 }, /no list of whole `numbers`/],
      [countdown(), { numbers: [], target: 3 }, /no list of whole `numbers`/],
      [countdown(), { numbers: [1], target: 'zebra' }, /`target`/],
    ];
    for (const [grader, answer, message] of none) {
      const found = await grade(grader, '1', { answer });
      expect(found).toEqual(unscorable(message));
      expect(JSON.stringify(found)).not.toContain('zebra');
    }
  });

  it('are choices that are no list of texts, or a letter that is not among them', async () => {
    for (const choices of ['A,B', [], [null], Array(11).fill('x')] as Json[]) {
      expect(await grade(multipleChoice(), 'A', { answer: 'A', metadata: { choices } })).toEqual(
        unscorable(/choices of task "t1"/),
      );
    }
    const metadata = { choices: ['yes', 'no'] };
    expect(await grade(multipleChoice(), 'C', { answer: 'C', metadata })).toEqual(unscorable(/neither a letter/));
    expect(await grade(multipleChoice(), 'C', { answer: 2, metadata })).toEqual(unscorable(/not the index/));
  });

  it('may be words that mathMatch cannot read: then the words are compared', async () => {
    expect(await grade(mathMatch(), String.raw`\boxed{all of them}`, { answer: 'All of them.' })).toEqual(right);
    expect(await grade(mathMatch(), String.raw`\boxed{some of them}`, { answer: 'All of them.' })).toEqual(wrong);
    expect(await grade(mathMatch(), String.raw`\boxed{}`, { answer: '$$' })).toEqual(wrong);
  });
});
