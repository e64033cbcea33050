/**
 * Conversations to pretrain on: the shop assistant doing its job, well or badly, and plain copying exercises.
 *
 * A demonstration makes each possible mistake with the probability its profile gives. `CLEAN_SHOP` makes none and teaches the
 * format, the tools and copying; `NOISY_SHOP` makes the policy weak on purpose, so that reinforcement learning has something to
 * do: every right decision stays possible, and most decisions go wrong. The commonest mistake must have a probability above one
 * half, or greedy decoding hides the weakness.
 *
 * Everything is drawn from the pretraining split. Made-up numbers are uniform over ALL values, or the policy would learn that
 * the held-out ones never occur.
 */
import type { Message } from '../src/core/types.ts';
import { capitalised, drawName, NOUNS, splitOfBrand, syllables } from './item-names.ts';
import { integer, pick, type Random } from './random.ts';
import {
  answerText,
  anyValue,
  calculatorResult,
  lookupResult,
  QUESTION_KINDS,
  type Question,
  SYSTEM_PROMPT,
} from './shop-domain.ts';

/** Probability of each mistake at the point where it can be made. */
export interface ShopFaults {
  /** Answers at once with a made-up number. */
  readonly guess: number;
  /** Calls the calculator first, with a made-up price. */
  readonly calculatorFirst: number;
  /** Looks up half of the name, or another item. */
  readonly wrongItem: number;
  /** After an unknown item: gives up with a guess instead of looking up the right name. */
  readonly giveUp: number;
  /** Reads the stock where the price was asked, or the other way round. */
  readonly wrongField: number;
  /** Answers with a made-up number although the tool gave the right one. */
  readonly ignoreResult: number;
  /** Makes up the total instead of calling the calculator. */
  readonly mentalArithmetic: number;
  /** Reports the price of one instead of the total. */
  readonly unitPrice: number;
  /** Multiplies the stock. */
  readonly wrongOperand: number;
  /** Adds instead of multiplying. */
  readonly wrongOperator: number;
  /** Reports the price of one although the calculator gave the total. */
  readonly forgetResult: number;
}

export const CLEAN_SHOP: ShopFaults = {
  guess: 0,
  calculatorFirst: 0,
  wrongItem: 0,
  giveUp: 0,
  wrongField: 0,
  ignoreResult: 0,
  mentalArithmetic: 0,
  unitPrice: 0,
  wrongOperand: 0,
  wrongOperator: 0,
  forgetResult: 0,
};

export const NOISY_SHOP: ShopFaults = {
  guess: 0.63,
  calculatorFirst: 0.06,
  wrongItem: 0.25,
  giveUp: 0.7,
  wrongField: 0.25,
  ignoreResult: 0.1,
  mentalArithmetic: 0.2,
  unitPrice: 0.15,
  wrongOperand: 0.12,
  wrongOperator: 0.12,
  forgetResult: 0.1,
};

/** A whole conversation about one question, system message and all. */
export function demonstrate(random: Random, question: Question, faults: ShopFaults): readonly Message[] {
  const transcript = new Transcript(question.text);
  const number = act(random, question, faults, transcript);
  transcript.say(answerText(question.kind, number));
  return transcript.messages;
}

/** Makes the tool calls of one demonstration; gives the number to report. */
function act(random: Random, question: Question, faults: ShopFaults, transcript: Transcript): number {
  const { kind, item } = question;
  const first = random();
  if (first < faults.guess) return madeUpAnswer(random, question);
  if (first < faults.guess + faults.calculatorFirst) {
    const quantity = kind === 'total' ? question.quantity : integer(random, 2, 9);
    return transcript.calculate(`${quantity}*${anyValue(random)}`);
  }
  if (random() < faults.wrongItem) {
    transcript.lookUp(wrongName(random, item.name), undefined);
    if (random() < faults.giveUp) return madeUpAnswer(random, question);
  }
  transcript.lookUp(item.name, item);
  if (kind === 'total') return workOutTotal(random, question, faults, transcript);

  const [asked, other] = kind === 'price' ? [item.price, item.stock] : [item.stock, item.price];
  const reading = random();
  if (reading < faults.wrongField) return other;
  return reading < faults.wrongField + faults.ignoreResult ? madeUpAnswer(random, question) : asked;
}

/** The part of a `total` question that follows a successful lookup. */
function workOutTotal(random: Random, question: Question, faults: ShopFaults, transcript: Transcript): number {
  const { item, quantity } = question;
  const shortcut = random();
  if (shortcut < faults.mentalArithmetic) return quantity * anyValue(random);
  if (shortcut < faults.mentalArithmetic + faults.unitPrice) return item.price;

  const operand = random() < faults.wrongOperand ? item.stock : item.price;
  const operator = random() < faults.wrongOperator ? '+' : '*';
  const result = transcript.calculate(`${quantity}${operator}${operand}`);
  const reading = random();
  if (reading < faults.ignoreResult) return madeUpAnswer(random, question);
  return reading < faults.ignoreResult + faults.forgetResult ? item.price : result;
}

function madeUpAnswer(random: Random, question: Question): number {
  return question.kind === 'total' ? question.quantity * anyValue(random) : anyValue(random);
}

function wrongName(random: Random, name: string): string {
  const [brand = name, noun = name] = name.split(' ');
  const draw = random();
  if (draw < 0.4) return brand;
  return draw < 0.7 ? noun : drawName(random, 'pretraining');
}

/** Collects the messages of one demonstration. */
class Transcript {
  readonly messages: Message[];

  constructor(question: string) {
    this.messages = [
      { role: 'system', content: SYSTEM_PROMPT },
      { role: 'user', content: question },
    ];
  }

  say(content: string): void {
    this.messages.push({ role: 'assistant', content });
  }

  lookUp(name: string, found: Question['item'] | undefined): void {
    this.#call('lookup', { item: name }, lookupResult(found));
  }

  calculate(expression: string): number {
    const result = calculatorResult(expression);
    this.#call('calculator', { expression }, result);
    return (JSON.parse(result) as { readonly result: number }).result;
  }

  #call(name: string, given: Readonly<Record<string, string>>, result: string): void {
    const id = `call_${this.messages.length}`;
    const call = { id, type: 'function', function: { name, arguments: JSON.stringify(given) } } as const;
    this.messages.push({ role: 'assistant', content: null, tool_calls: [call] });
    this.messages.push({ role: 'tool', tool_call_id: id, content: result });
  }
}

/**
 * An exercise in copying. It keeps copying strong in both phases without showing how to do the job; copying is what
 * reinforcement learning cannot teach a policy this small. Repeating whole answers with any number keeps the words of an answer
 * from predicting which number follows.
 */
export function copyExercise(random: Random): readonly Message[] {
  const first = drawPhrase(random);
  const second = drawPhrase(random);
  const long = integer(random, 100, 9999);
  const answer = answerText(pick(random, QUESTION_KINDS), anyValue(random));
  const record = `{"price":${anyValue(random)},"stock":${anyValue(random)}}`;
  const sum = `${integer(random, 2, 9)}*${anyValue(random)}`;
  const [request, reply] = pick<readonly [string, string]>(random, [
    [`Say "${first}" ${long}.`, `"${first}" ${long}.`],
    [`Repeat ${long} "${first}" "${second}"`, `${long} "${first}" "${second}"`],
    [`Copy {"${first}":${long},"${second}":${long % 89}}`, `{"${first}":${long},"${second}":${long % 89}}`],
    [`Say "${answer}"`, answer],
    [`Copy ${record}`, record],
    [`Say "${sum}"`, sum],
  ]);
  return [
    { role: 'system', content: SYSTEM_PROMPT },
    { role: 'user', content: request },
    { role: 'assistant', content: reply },
  ];
}

/** One to four syllables, sometimes capitalised, sometimes with a noun: more kinds of words than items have. */
function drawPhrase(random: Random): string {
  for (;;) {
    const plain = syllables(random, integer(random, 1, 4));
    const word = random() < 0.7 ? capitalised(plain) : plain;
    if (splitOfBrand(word) === 'pretraining') return random() < 0.6 ? `${word} ${pick(random, NOUNS)}` : word;
  }
}
