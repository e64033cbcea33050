/**
 * What of the answers would make a good policy look bad: there are none, or they are texts where a grader may expect numbers. A grader
 * cannot be asked whether it minds, so both are said and neither is refused.
 */
import { extname } from 'node:path';
import type { Grader } from '../core/contracts.ts';
import type { Task } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import type { Split } from '../dataset/split.ts';
import type { Dataset } from '../dataset/tasks.ts';

const NUMBER = /^\s*[-+]?(\d+|\d{1,3}(,\d{3})+)?(\.\d+)?\s*$/;

interface Sources {
  readonly tasks?: TaskSource | undefined;
  readonly heldOut?: TaskSource | undefined;
}

/** Nothing without a grader: answers go nowhere else. */
export function answerWarnings(grader: Grader | undefined, sources: Sources, { tasks, heldOut }: Split): Dataset['warnings'] {
  if (grader === undefined) return [];
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
