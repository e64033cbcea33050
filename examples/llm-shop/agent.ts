/**
 * A shop assistant with one tool, for a real language model: `npm run demo:llm` trains SmolLM2-135M on it.
 *
 * The agent is ordinary code on the official OpenAI client; only `ctx.model()` is Trainyard's. So small a model needs to be shown what to do:
 * four answered questions stand before the customer's.
 */
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions';
import { defineGrader, defineWorkflow } from 'trainyard';

interface Item {
  readonly price: number;
  readonly stock: number;
}

/** A lookup, then the answer. */
const MAX_TURNS = 2;

const catalog: Readonly<Record<string, Item>> = JSON.parse(readFileSync(new URL('./catalog.json', import.meta.url), 'utf8'));

const tools: ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'lookup',
      description: 'price and stock of an item',
      parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
    },
  },
];

// Sentences, not bare numbers: how an answer begins says whether it is about the price, which is easier to learn than which number to copy.
const examples: readonly ChatCompletionMessageParam[] = [
  ...answered('How much is the pink bowl?', 'pink bowl', { price: 31, stock: 8 }, 'The pink bowl costs $31.'),
  ...answered('How many of the dark comb are left?', 'dark comb', { price: 54, stock: 17 }, 'There are 17 left.'),
  ...answered('What does the glass spoon cost?', 'glass spoon', { price: 22, stock: 40 }, 'The glass spoon costs $22.'),
  ...answered('What is the stock of the warm coat?', 'warm coat', { price: 85, stock: 12 }, 'There are 12 left.'),
];

export default shopAgent(examples);

/** `shown`: answered questions that stand before the customer's. */
export function shopAgent(shown: readonly ChatCompletionMessageParam[]) {
  return defineWorkflow(async (ctx) => {
    const { name: model, baseURL, apiKey } = ctx.model();
    const client = new OpenAI({ baseURL, apiKey });
    const messages: ChatCompletionMessageParam[] = [
      { role: 'system', content: 'You are a shop assistant. Look items up with the tool, then answer.' },
      ...shown,
      ...ctx.prompt,
    ];

    for (let turn = 0; turn < MAX_TURNS; turn++) {
      const completion = await client.chat.completions.create({ model, messages, tools }, { signal: ctx.signal });
      const reply = completion.choices[0]?.message;
      if (!reply?.tool_calls?.length) return reply?.content;

      messages.push(reply);
      for (const call of reply.tool_calls) {
        if (call.type !== 'function') continue;
        messages.push({ role: 'tool', tool_call_id: call.id, content: lookup(call.function.name, call.function.arguments) });
      }
    }
    return 'gave up';
  });
}

function lookup(name: string, argumentsText: string): string {
  if (name !== 'lookup') return 'no such tool';
  try {
    const item = JSON.parse(argumentsText)?.item;
    return typeof item === 'string' && Object.hasOwn(catalog, item) ? JSON.stringify(catalog[item]) : 'unknown item';
  } catch {
    return 'bad json';
  }
}

function answered(question: string, item: string, found: Item, answer: string): readonly ChatCompletionMessageParam[] {
  const id = `example-${item.replace(' ', '-')}`;
  const content = JSON.stringify(found);
  const call = { id, type: 'function', function: { name: 'lookup', arguments: `{"item": "${item}"}` } } as const;
  return [
    { role: 'user', content: question },
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: id, content },
    { role: 'assistant', content: answer },
  ];
}

/** 1 if the last message is an answer, not a tool call, and holds exactly one number: the right one. */
export const grader = defineGrader(({ task, messages }) => {
  const last = messages.at(-1);
  if (last?.role !== 'assistant' || last.tool_calls?.length) return 0;
  const numbers = last.content?.match(/\d+(?:\.\d+)?/g) ?? [];
  return numbers.length === 1 && String(Number(numbers[0])) === String(task.answer) ? 1 : 0;
});
