/** 1 if the last word of the answer is the right queue, however it was found. */
import { defineGrader } from 'trainyard';

export const grader = defineGrader(({ task, messages }) => {
  const last = messages.at(-1);
  const queue = last?.role === 'assistant' ? last.content?.match(/(\w+)\W*$/)?.[1] : undefined;
  return queue === task.answer ? 1 : 0;
});
