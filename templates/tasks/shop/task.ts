/** What the agent is for: it answers questions about prices and stock, with two tools. Nothing here knows a client. */
import { readFileSync } from 'node:fs';
import { z } from 'zod';

export const SYSTEM = 'You are a shop assistant. Use the tools to answer.';
export const MAX_TURNS = 4;

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('./catalog.json', import.meta.url), 'utf8'),
);

interface AgentTool {
  name: string;
  description: string;
  schema: z.ZodObject;
  run: (given: unknown) => string;
}

/** A tool checks what it is given: a model may call it with anything. */
function toolOf<Given extends z.ZodObject>(
  name: string,
  description: string,
  schema: Given,
  run: (given: z.infer<Given>) => object,
): AgentTool {
  const checked = (given: unknown): object => {
    const { data, success } = schema.safeParse(given);
    return success ? run(data) : { error: 'bad arguments' };
  };
  return { name, description, schema, run: (given) => JSON.stringify(checked(given)) };
}

export const tools: AgentTool[] = [
  toolOf('lookup', 'price and stock of an item', z.object({ item: z.string() }), ({ item }) => {
    return (Object.hasOwn(catalog, item) && catalog[item]) || { error: 'unknown item' };
  }),
  toolOf('calculator', 'work out a sum', z.object({ expression: z.string() }), ({ expression }) => {
    const [, left, operator, right] = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(expression) ?? [];
    if (operator === '*') return { result: Number(left) * Number(right) };
    if (operator === '+') return { result: Number(left) + Number(right) };
    return operator === '-' ? { result: Number(left) - Number(right) } : { error: 'bad expression' };
  }),
];

/** For clients that leave running tools to you. `argumentsText` is what the model wrote. */
export function runTool(name: string, argumentsText: string): string {
  const tool = tools.find((one) => one.name === name);
  try {
    return tool?.run(JSON.parse(argumentsText)) ?? JSON.stringify({ error: 'no such tool' });
  } catch {
    return JSON.stringify({ error: 'bad json' });
  }
}
