/**
 * What of the answers would make a good policy look bad: there are none, nobody gets them, or they are texts where a grader may expect
 * numbers. Neither a grader nor a workflow that rewards itself can be asked whether it minds, so all is said and nothing refused.
 */
import { extname } from 'node:path';
import type { Grader } from '../core/contracts.ts';
import type { Task } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import type { Split } from '../dataset/split.ts';
import type { Dataset } from '../dataset/tasks.ts';

const NUMBER = /^\s*[-+]?(\d+|\d{1,3}(,\d{3})+)?(\.\d+)?\s*$/;
const UNUSED =
  'tasks have answers, and there is no grader: a workflow is never given them, nor is a reward function that it calls; fine if its rewards need none, else export a grader, which is given task.answer, or keep what they need in metadata';

interface Sources {
  readonly tasks?: TaskSource | undefined;
  readonly heldOut?: TaskSource | undefined;
}

export function answerWarnings(grader: Grader | undefined, sources: Sources, { tasks, heldOut }: Split): Dataset['warnings'] {
  if (grader === undefined) return [...tasks, ...heldOut].some(hasAnswer) ? [{ code: 'ANSWERS_UNUSED', message: UNUSED }] : [];
  const numbers = isCsvOfNumbers(sources.tasks, tasks) || isCsvOfNumbers(sources.heldOut, heldOut);
  const message = 'all answers of a CSV file look like numbers, and are texts: compare with String(…), or use numberMatch';
  return [
    ...withoutAnswer(tasks, 'task'),
    ...withoutAnswer(heldOut, 'held-out task'),
    ...(numbers ? [{ code: 'NUMBERS_ARE_TEXTS', message }] : []),
  ];
}

function hasAnswer({ answer }: Task): boolean {
  return answer !== undefined && answer !== null;
}

function withoutAnswer(tasks: readonly Task[], what: string): Dataset['warnings'] {
  const without = tasks.filter((task) => !hasAnswer(task)).length;
  if (without === 0) return [];
  // Then the metadata is all there is to grade by, and whoever wrote it knows.
  if (without === tasks.length && tasks.every(({ metadata }) => metadata !== undefined)) return [];
  const are = without === tasks.length ? `no ${what} has an answer` : `${without} of ${tasks.length} ${what}s have no answer`;
  return [{ code: 'NO_ANSWERS', message: `${are}, and there is a grader: fine if it does not need one, else add "answer"` }];
}

function isCsvOfNumbers(source: TaskSource | undefined, tasks: readonly Task[]): boolean {
  if (typeof source !== 'string' || extname(source).toLowerCase() !== '.csv') return false;
  const answers = tasks.filter(hasAnswer).map(({ answer }) => answer);
  return answers.length > 0 && answers.every((answer) => typeof answer === 'string' && /\d/.test(answer) && NUMBER.test(answer));
}
