/** 1 if the last message is an answer, not a tool call, and holds exactly one number: the right one. */
import { defineGrader } from 'trainyard';

export const grader = defineGrader(({ task, messages }) => {
  const last = messages.at(-1);
  if (last?.role !== 'assistant' || last.tool_calls?.length) return 0;
  const numbers = last.content?.match(/\d+(?:\.\d+)?/g) ?? [];
  return numbers.length === 1 && String(Number(numbers[0])) === String(task.answer) ? 1 : 0;
});
