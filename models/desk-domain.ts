/**
 * The world of the desk example: a customer who wants some number of an item in some colour, and a clerk who takes the order.
 *
 * The customer opens with the item alone, so the clerk has to ask for the rest. Splits never share a brand; numbers, colours and
 * wordings are shared.
 */
import { drawName, type Split } from './item-names.ts';
import { integer, pick, type Random } from './random.ts';

export const CLERK_PROMPT = 'You are a clerk. Take the order.';

export const COLOURS = ['red', 'blue', 'green', 'black', 'white', 'grey', 'brown', 'pink'] as const;

export interface Want {
  readonly quantity: number;
  readonly item: string;
  readonly colour: string;
}

export function drawWant(random: Random, split: Split): Want {
  return { quantity: drawQuantity(random), item: drawName(random, split), colour: pick(random, COLOURS) };
}

export function drawQuantity(random: Random): number {
  return integer(random, 2, 9);
}

/** In the same words wherever it is said, after the same word `want`, so that copying is enough. */
export function wantText({ quantity, item, colour }: Want): string {
  return `${quantity} "${item}" in ${colour}`;
}

export function customerPrompt(want: string): string {
  return `You are a customer. You want ${want}.`;
}

export function orderText(want: Want): string {
  return `Order: you want ${wantText(want)}.`;
}

const OPENINGS: readonly ((item: string) => string)[] = [
  (item) => `I would like the "${item}".`,
  (item) => `Can I order the "${item}"?`,
  (item) => `The "${item}", please.`,
];

export function drawOpening(random: Random, { item }: Want): string {
  return pick(random, OPENINGS)(item);
}

/** What the clerk can ask, and what the customer answers. */
export const QUESTIONS = {
  quantity: { question: 'How many?', answer: ({ quantity }: Want) => `I want ${quantity}.` },
  colour: { question: 'Which colour?', answer: ({ colour }: Want) => `I want it in ${colour}.` },
} as const;

export type Topic = keyof typeof QUESTIONS;
