/** A shop's two tools, and the grader of its questions; for the flows beside this file. */
import { readFileSync } from 'node:fs';
import { defineGrader } from 'trainyard';
import type { FlowTool } from 'trainyard/agent-flow';

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('../shop/catalog.json', import.meta.url), 'utf8'),
);

export const SYSTEM_PROMPT = 'You are a shop assistant. Use the tools to answer.';

export const shopTools: Record<string, FlowTool> = {
  lookup: {
    description: 'price and stock of an item',
    parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
    run: ({ item }) => (Object.hasOwn(catalog, String(item)) ? catalog[String(item)] : { error: 'unknown item' }),
  },
  calculator: {
    description: 'work out a sum',
    parameters: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
    run: ({ expression }) => {
      const [, left, operator, right] = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(String(expression)) ?? [];
      if (operator === '*') return { result: Number(left) * Number(right) };
      if (operator === '+') return { result: Number(left) + Number(right) };
      if (operator === '-') return { result: Number(left) - Number(right) };
      return { error: 'bad expression' };
    },
  },
};

/** 1 if the last message is an answer with exactly one number: the right one. */
export const grader = defineGrader(({ task, messages }) => {
  const last = messages.at(-1);
  if (last?.role !== 'assistant' || last.tool_calls?.length) return 0;
  const numbers = last.content?.match(/\d+(?:\.\d+)?/g) ?? [];
  return numbers.length === 1 && String(Number(numbers[0])) === String(task.answer) ? 1 : 0;
});
