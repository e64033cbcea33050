/**
 * A shop assistant that answers questions about prices and stock with two tools, and the grader that scores it.
 *
 * The agent is ordinary code on the official OpenAI client; only the base URL and the key come from Trainyard. It sees the
 * question and never the answer: that goes to the grader alone.
 */
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions';
import { defineGrader, defineWorkflow } from 'trainyard';

const MAX_TURNS = 4;

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('./catalog.json', import.meta.url), 'utf8'),
);

const tools: ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'lookup',
      description: 'price and stock of an item',
      parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
    },
  },
  {
    type: 'function',
    function: {
      name: 'calculator',
      description: 'work out a sum',
      parameters: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
    },
  },
];

export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: 'You are a shop assistant. Use the tools to answer.' },
    ...ctx.prompt,
  ];

  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const completion = await client.chat.completions.create({ model: model.name, messages, tools }, { signal: ctx.signal });
    const reply = completion.choices[0]?.message;
    if (!reply?.tool_calls?.length) return reply?.content;

    messages.push(reply);
    for (const call of reply.tool_calls) {
      if (call.type !== 'function') continue;
      const result = runTool(call.function.name, call.function.arguments);
      messages.push({ role: 'tool', tool_call_id: call.id, content: JSON.stringify(result) });
    }
  }
  return 'gave up';
});

function runTool(name: string, argumentsText: string): object {
  try {
    const given = JSON.parse(argumentsText);
    if (name === 'lookup') return lookup(given?.item);
    if (name === 'calculator') return calculator(given?.expression);
    return { error: 'no such tool' };
  } catch {
    return { error: 'bad json' };
  }
}

function lookup(item: string): object {
  return Object.hasOwn(catalog, item) ? { ...catalog[item] } : { error: 'unknown item' };
}

/** One operation on two whole numbers. */
function calculator(expression: string): object {
  const [, left, operator, right] = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(expression) ?? [];
  if (operator === '*') return { result: Number(left) * Number(right) };
  if (operator === '+') return { result: Number(left) + Number(right) };
  if (operator === '-') return { result: Number(left) - Number(right) };
  return { error: 'bad expression' };
}

/** 1 if the last message is an answer, not a tool call, and holds exactly one number: the right one. */
export const grader = defineGrader(({ task, messages }) => {
  const last = messages.at(-1);
  if (last?.role !== 'assistant' || last.tool_calls?.length) return 0;
  // As texts: an answer is a number in JSON, and a text in CSV.
  const numbers = last.content?.match(/\d+(?:\.\d+)?/g) ?? [];
  return numbers.length === 1 && String(Number(numbers[0])) === String(task.answer) ? 1 : 0;
});
