/** What the shop agents of this folder share: the prompt, what their two tools do, and the grader. Nothing here knows a framework. */
import { readFileSync } from 'node:fs';
import { z } from 'zod';

export { grader } from '../shop/agent.ts';

export const SYSTEM = 'You are a shop assistant. Use the tools to answer.';
export const MAX_TURNS = 4;

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('../shop/catalog.json', import.meta.url), 'utf8'),
);

export const lookup = {
  description: 'price and stock of an item',
  schema: z.object({ item: z.string() }),
  run: ({ item }: { item: string }): string =>
    JSON.stringify(Object.hasOwn(catalog, item) ? catalog[item] : { error: 'unknown item' }),
};

/** One operation on two whole numbers. */
export const calculator = {
  description: 'work out a sum',
  schema: z.object({ expression: z.string() }),
  run: ({ expression }: { expression: string }): string => {
    const [, left, operator, right] = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(expression) ?? [];
    const sums: Record<string, number> = {
      '*': Number(left) * Number(right),
      '+': Number(left) + Number(right),
      '-': Number(left) - Number(right),
    };
    return JSON.stringify(operator === undefined ? { error: 'bad expression' } : { result: sums[operator] });
  },
};
