/** The tools of the sums agents: what an item costs, and a calculator. Plain functions, as any agent has them. */
import { readFileSync } from 'node:fs';

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('../shop/catalog.json', import.meta.url), 'utf8'),
);

export const LOOKUP = {
  name: 'lookup',
  description: 'price and stock of an item',
  parameters: { type: 'object' as const, properties: { item: { type: 'string' as const } }, required: ['item'] },
};

export const CALCULATOR = {
  name: 'calculator',
  description: 'work out a sum',
  parameters: { type: 'object' as const, properties: { expression: { type: 'string' as const } }, required: ['expression'] },
};

/** A model may call a tool with anything: what it gets back then is what is wrong, and it may try again. */
export function lookup(given: unknown): object {
  const { item } = fields(given);
  return typeof item === 'string' && Object.hasOwn(catalog, item) ? { ...catalog[item] } : { error: 'unknown item' };
}

/** One operation on two whole numbers. */
export function calculator(given: unknown): object {
  const [, left, operator, right] = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(String(fields(given)['expression'])) ?? [];
  if (operator === '*') return { result: Number(left) * Number(right) };
  if (operator === '+') return { result: Number(left) + Number(right) };
  if (operator === '-') return { result: Number(left) - Number(right) };
  return { error: 'bad expression' };
}

function fields(given: unknown): Record<string, unknown> {
  return typeof given === 'object' && given !== null ? { ...given } : {};
}
