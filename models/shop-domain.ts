/**
 * The world of the shop example: items with a price and a stock, questions about them, and the two tools that answer.
 *
 * Everything is generated. Splits never share a brand (item-names.ts), and prices and stocks of held-out items are taken from
 * values that no item of the other splits has. Nouns, digits, phrasings and quantities are shared.
 *
 * Nothing here knows about tokens or models. The agent in examples/shop speaks to the same tools; a test keeps both equal.
 */
import type { Tool } from '../src/core/types.ts';
import { drawName, type Split } from './item-names.ts';
import { integer, pick, type Random, seededRandom } from './random.ts';

export interface Item {
  readonly name: string;
  readonly price: number;
  readonly stock: number;
}

export const QUESTION_KINDS = ['price', 'stock', 'total'] as const;
export type QuestionKind = (typeof QUESTION_KINDS)[number];

export interface Question {
  readonly kind: QuestionKind;
  readonly item: Item;
  /** How many are bought; only a `total` question mentions it. */
  readonly quantity: number;
  readonly text: string;
  readonly answer: number;
}

// ── items ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Any value the example's items can have: two digits. */
export function anyValue(random: Random): number {
  return integer(random, 11, 99);
}

/** 18 of the 89 two-digit values, spread over the range, belong to held-out items only. */
export function isHeldOutValue(value: number): boolean {
  return value <= 99 && ((value * 37) % 100) % 5 === 2;
}

/**
 * Half of the values to pretrain on have three digits. With two-digit ones alone the policy learns by heart which pairs of
 * digits there are, instead of copying what a tool says, and fails on the held-out ones.
 */
function drawValue(random: Random, split: Split): number {
  if (split === 'pretraining' && random() < 0.5) return integer(random, 100, 999);
  for (;;) {
    const value = anyValue(random);
    if (isHeldOutValue(value) === (split === 'held-out')) return value;
  }
}

export function drawItem(random: Random, split: Split): Item {
  return { name: drawName(random, split), price: drawValue(random, split), stock: drawValue(random, split) };
}

/** `size` items with different names. */
export function makeCatalog(seed: number, split: Split, size: number): readonly Item[] {
  const random = seededRandom(seed);
  const items = new Map<string, Item>();
  while (items.size < size) {
    const item = drawItem(random, split);
    if (!items.has(item.name)) items.set(item.name, item);
  }
  return [...items.values()];
}

// ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Names are quoted: their tokens are then the same in the question and in a tool call's JSON, so copying is enough. */
const PHRASINGS: Readonly<Record<QuestionKind, readonly ((name: string, quantity: number) => string)[]>> = {
  price: [(name) => `How much is the "${name}"?`, (name) => `What does the "${name}" cost?`, (name) => `Price of the "${name}"?`],
  stock: [
    (name) => `How many "${name}" are left?`,
    (name) => `How many "${name}" do you have?`,
    (name) => `Stock of the "${name}"?`,
  ],
  total: [
    (name, quantity) => `How much are ${quantity} "${name}"?`,
    (name, quantity) => `What do ${quantity} "${name}" cost?`,
    (name, quantity) => `Total for ${quantity} "${name}"?`,
  ],
};

export function askAbout(random: Random, item: Item): Question {
  const kind = pick(random, QUESTION_KINDS);
  const quantity = integer(random, 2, 9);
  const text = pick(random, PHRASINGS[kind])(item.name, quantity);
  const answer = { price: item.price, stock: item.stock, total: quantity * item.price }[kind];
  return { kind, item, quantity, text, answer };
}

/** How the assistant words an answer. */
export function answerText(kind: QuestionKind, value: number): string {
  return { price: `It costs $${value}.`, stock: `We have ${value} left.`, total: `That is $${value}.` }[kind];
}

// ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

export const SYSTEM_PROMPT = 'You are a shop assistant. Use the tools to answer.';

export const TOOLS: readonly Tool[] = [
  tool('lookup', 'price and stock of an item', 'item'),
  tool('calculator', 'work out a sum', 'expression'),
];

function tool(name: string, description: string, parameter: string): Tool {
  const parameters = { type: 'object', properties: { [parameter]: { type: 'string' } }, required: [parameter] };
  return { type: 'function', function: { name, description, parameters } };
}

export function lookupResult(item: Item | undefined): string {
  return item === undefined ? '{"error":"unknown item"}' : `{"price":${item.price},"stock":${item.stock}}`;
}

/** One operation on two whole numbers of at most four digits; anything else is an error. */
export function calculatorResult(expression: unknown): string {
  const parts = /^(\d{1,4})([*+-])(\d{1,4})$/.exec(typeof expression === 'string' ? expression : '');
  if (parts === null) return '{"error":"bad expression"}';
  const left = Number(parts[1]);
  const right = Number(parts[3]);
  const result = parts[2] === '*' ? left * right : parts[2] === '+' ? left + right : left - right;
  return `{"result":${result}}`;
}

/** What a tool call gives back to the model, errors included. */
export function runTool(catalog: ReadonlyMap<string, Item>, name: string, argumentsText: string): string {
  let parsed: unknown;
  try {
    parsed = JSON.parse(argumentsText);
  } catch {
    return '{"error":"bad json"}';
  }
  const given = (typeof parsed === 'object' && parsed !== null ? parsed : {}) as {
    readonly item?: unknown;
    readonly expression?: unknown;
  };
  if (name === 'lookup') return lookupResult(typeof given.item === 'string' ? catalog.get(given.item) : undefined);
  if (name === 'calculator') return calculatorResult(given.expression);
  return '{"error":"no such tool"}';
}

/** The one number a final answer holds, if it holds exactly one. */
export function onlyNumber(text: string): number | undefined {
  const numbers = text.match(/\d+(?:\.\d+)?/g) ?? [];
  return numbers.length === 1 ? Number(numbers[0]) : undefined;
}
