/** Of which answers a run says something before it begins. */
import { expect, it } from 'vitest';
import { defineGrader } from '../core/define.ts';
import type { Json, Task } from '../core/types.ts';
import { answerWarnings } from './preflight.ts';

const grader = defineGrader(() => 1);
const tasks = (...answers: readonly (Json | undefined)[]): readonly Task[] =>
  answers.map((answer, i) => ({ id: `t${i}`, prompt: [], ...(answer === undefined ? {} : { answer }) }));
const codes = (source: string, of: readonly Task[]) =>
  answerWarnings(grader, { tasks: source }, { tasks: of, heldOut: [] }).map(({ code }) => code);

it('says that answers are missing of each side, and nothing without tasks', () => {
  const sides = { tasks: tasks(undefined, null, ''), heldOut: tasks(undefined, null) };
  expect(answerWarnings(grader, {}, sides).map(({ message }) => message)).toEqual([
    expect.stringMatching(/^2 of 3 tasks have no answer/),
    expect.stringMatching(/^no held-out task has an answer/),
  ]);
  expect(answerWarnings(grader, {}, { tasks: [], heldOut: [] })).toEqual([]);
});

it('says without a grader that answers go nowhere, where there are any', () => {
  const told = answerWarnings(undefined, {}, { tasks: tasks(undefined), heldOut: tasks(null, 'shipping') });
  expect(told).toMatchObject([{ code: 'ANSWERS_UNUSED', message: expect.stringContaining('export a grader') }]);
  expect(answerWarnings(undefined, {}, { tasks: tasks(undefined, null), heldOut: [] })).toEqual([]);
});

it('says nothing where all that there is to grade by is metadata', () => {
  const only = tasks(undefined, undefined).map((task) => ({ ...task, metadata: { want: 1 } }));
  expect(codes('a.jsonl', only)).toEqual([]);
  expect(codes('a.jsonl', [...only, ...tasks('7')])).toEqual(['NO_ANSWERS']);
});

it('says that metadata are named like an answer where the task has none', () => {
  const [task] = tasks(undefined);
  const leaking = { ...task!, metadata: { reward_model: { ground_truth: '7' } } };
  expect(answerWarnings(grader, {}, { tasks: [leaking], heldOut: [] })).toMatchObject([
    { code: 'NO_ANSWERS', message: expect.stringContaining('metadata.reward_model.ground_truth is named like one') },
  ]);
  expect(codes('a.jsonl', [{ ...leaking, answer: '9' }])).toEqual([]);
});

it.each<[string, Json[], boolean]>([
  ['a.csv', ['1', ' -2.50 ', '1,200', '.5', '+3'], true],
  ['A.CSV', ['7'], true],
  ['a.csv', ['1', 'two'], false],
  ['a.csv', ['', '-', '.'], false],
  ['a.csv', ['1', '2024-01-01'], false],
  ['a.jsonl', ['1', '2'], false],
])('of %s with %j it warns of numbers: %s', (source, answers, isWarned) => {
  expect(codes(source, tasks(...answers))).toEqual(isWarned ? ['NUMBERS_ARE_TEXTS'] : []);
});

it('says it once for both sides', () => {
  const sides = { tasks: tasks('1'), heldOut: tasks('2') };
  expect(answerWarnings(grader, { tasks: 'a.csv', heldOut: 'b.csv' }, sides)).toHaveLength(1);
});
