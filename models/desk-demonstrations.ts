/**
 * Orders being taken, to pretrain on. The clerk is shown well or badly (it guesses what it should ask for); the customer, who is
 * never trained later, always well. Each seat is a conversation of its own, as in examples/desk.
 *
 * Drawn from the pretraining split only.
 */
import type { Message } from '../src/core/types.ts';
import {
  CLERK_PROMPT,
  COLOURS,
  customerPrompt,
  drawOpening,
  drawQuantity,
  drawWant,
  orderText,
  QUESTIONS,
  type Topic,
  type Want,
  wantText,
} from './desk-domain.ts';
import { integer, pick, type Random } from './random.ts';

/** Probability of each of the clerk's mistakes. The first must be above one half, or greedy decoding hides it. */
export interface ClerkFaults {
  /** Asks nothing. */
  readonly guess: number;
  /** Asks for one of the two and makes up the other. */
  readonly guessRest: number;
  /** Orders something else than it was told. */
  readonly mishear: number;
}

export const CLEAN_CLERK: ClerkFaults = { guess: 0, guessRest: 0, mishear: 0 };

export const NOISY_CLERK: ClerkFaults = { guess: 0.62, guessRest: 0.4, mishear: 0.15 };

export function demonstrateClerk(random: Random, faults: ClerkFaults): readonly Message[] {
  const want = drawWant(random, 'pretraining');
  const messages: Message[] = [
    { role: 'system', content: CLERK_PROMPT },
    { role: 'user', content: drawOpening(random, want) },
  ];
  let known = madeUp(random, want);
  for (const topic of topicsToAsk(random, faults)) {
    messages.push({ role: 'assistant', content: QUESTIONS[topic].question });
    messages.push({ role: 'user', content: QUESTIONS[topic].answer(want) });
    if (random() >= faults.mishear) known = { ...known, [topic]: want[topic] };
  }
  messages.push({ role: 'assistant', content: orderText(known) });
  return messages;
}

function topicsToAsk(random: Random, faults: ClerkFaults): readonly Topic[] {
  if (random() < faults.guess) return [];
  const topics: readonly Topic[] = random() < 0.5 ? ['quantity', 'colour'] : ['colour', 'quantity'];
  return random() < faults.guessRest ? topics.slice(0, 1) : topics;
}

function madeUp(random: Random, { item }: Want): Want {
  return { item, quantity: drawQuantity(random), colour: pick(random, COLOURS) };
}

/** One to three questions, the same one twice now and then: the clerk may ask again. */
export function demonstrateCustomer(random: Random): readonly Message[] {
  const want = drawWant(random, 'pretraining');
  const messages: Message[] = [{ role: 'system', content: customerPrompt(wantText(want)) }];
  const questions = integer(random, 1, 3);
  for (let i = 0; i < questions; i++) {
    const { question, answer } = QUESTIONS[pick<Topic>(random, ['quantity', 'colour'])];
    messages.push({ role: 'user', content: question }, { role: 'assistant', content: answer(want) });
  }
  return messages;
}
