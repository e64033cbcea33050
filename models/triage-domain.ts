/**
 * The world of the triage example: customers who say what happened and what they want, and the queue that is for.
 *
 * What is wanted decides the queue, not what happened: "The lamp is broken. I want my money back." is for returns, not for
 * repairs. The two are drawn independently, so in three messages of four they point to different queues.
 *
 * A held-out message combines two sentences that no message of the other splits combines, about a brand of the held-out split.
 */
import { drawName, type Split } from './item-names.ts';
import { integer, type Random } from './random.ts';

export const TRIAGE_PROMPT = 'Sort the message: billing, shipping, returns or repairs?';

export const QUEUES = ['billing', 'shipping', 'returns', 'repairs'] as const;
export type Queue = (typeof QUEUES)[number];

/** A reply says what it went by, then the queue. */
export function replyText(basis: 'Problem' | 'Wish', queue: Queue): string {
  return `${basis}: ${queue}`;
}

/** The queue a reply names: its last word. */
export function queueIn(reply: string): string | undefined {
  return /\w+$/.exec(reply)?.[0];
}

export interface CustomerMessage {
  readonly text: string;
  /** The queue that what happened would point to. */
  readonly happened: Queue;
  /** The queue the message belongs to. */
  readonly wanted: Queue;
}

/** `*` stands for the item. Five for each queue, in the order of QUEUES. */
const EVENTS: readonly string[] = [
  'I was charged twice for the *.',
  'The bill for the * is too high.',
  'My bill shows the * two times.',
  'The price of the * on my bill is wrong.',
  'I paid for the * and still got a bill.',

  'The * has not come yet.',
  'My * is late.',
  'The parcel with the * is lost.',
  'The * was left next door.',
  'You sent the * to my old house.',

  'The * is too small.',
  'I do not like the *.',
  'You sent the wrong *.',
  'I no longer need the *.',
  'I have two of the *.',

  'The * is broken.',
  'The * does not work.',
  'The * makes a noise.',
  'A part of the * is loose.',
  'The * stopped after a day.',
];

const WISHES: readonly string[] = [
  'Please correct the bill.',
  'Who can check my bill?',
  'Please print a new bill.',
  'Can I pay next month?',
  'I want to pay by card.',

  'When will it come?',
  'Where is it now?',
  'Please hurry.',
  'Can I pick it up?',
  'Please bring it on Monday.',

  'How do I send it back?',
  'I want my money back.',
  'Please take it back.',
  'Can I swap it?',
  'I want another one.',

  'Can you mend it?',
  'Please fix it.',
  'Who can repair it?',
  'I need a spare part.',
  'Please look at it.',
];

const PER_QUEUE = 5;

/** One pair in five; every event has one such wish in each queue, so the pairs are as hard as the others. */
export function isHeldOutPair(event: number, wish: number): boolean {
  return (event + wish) % PER_QUEUE === 2;
}

export function drawMessage(random: Random, split: Split): CustomerMessage {
  const name = drawName(random, split);
  for (;;) {
    const event = integer(random, 0, EVENTS.length - 1);
    const wish = integer(random, 0, WISHES.length - 1);
    if (isHeldOutPair(event, wish) !== (split === 'held-out')) continue;
    const said = [EVENTS[event]!.replace('*', `"${name}"`), WISHES[wish]!];
    const text = (random() < 0.5 ? said : said.toReversed()).join(' ');
    return { text, happened: queueOf(event), wanted: queueOf(wish) };
  }
}

function queueOf(sentence: number): Queue {
  return QUEUES[Math.floor(sentence / PER_QUEUE)]!;
}
