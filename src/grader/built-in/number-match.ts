/**
 * `numberMatch`: right where the number of the answer is near enough to the reference. Numbers are compared exactly, as fractions, before any
 * tolerance.
 *
 * Which number counts: in what is marked as the answer (`\boxed`, `<answer>`, `####`, "the answer is") where something is, else in the whole
 * text, the LAST one. "5 or 6" is none, and neither is a part of a formula (2^10, 3x). `strict`: there may be only one, said as often as one
 * likes. Numbers in words are not read. A reference has to hold one number, or mark one.
 */
import type { Grader } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import { checkOptions, type TextOptions } from '../options.ts';
import { markedAnswers, referenceAnswer, spokenPart } from './final-answer.ts';
import { absolute, atMost, fromNumber, minus, type Rational, same, times } from './math/rational.ts';
import { newWork, readable, type Work } from './math/work.ts';
import { type FoundNumber, numbersIn } from './numbers-in-text.ts';
import { rightOrWrong } from './right-or-wrong.ts';
import { acceptedAnswers, saidBy } from './said.ts';

export interface NumberMatchOptions extends TextOptions {
  /** How far off it may be; default 0. The wider of the two tolerances counts. */
  readonly absolute?: number;
  /** The same as a share of the reference: 0.01 is one per cent. */
  readonly relative?: number;
  /** Whether a second, different number makes it wrong; default false. */
  readonly strict?: boolean;
}

export function numberMatch(options: NumberMatchOptions = {}): Grader {
  checkOptions('numberMatch', options, { of: 'function', absolute: 'amount', relative: 'amount', strict: 'boolean' });
  return defineGrader({
    name: 'numberMatch',
    grade: (input) => {
      const references = acceptedAnswers(input).map((answer) => referenceNumber(answer, input.task.id));
      const said = saidNumbers(saidBy(input, options.of), options.strict ?? false);
      const work = newWork();
      const isRight = (one: FoundNumber): boolean => references.some((reference) => isNear(one, reference, options, work));
      return rightOrWrong(said.length > 0 && said.every((one) => one !== undefined && isRight(one)));
    },
  });
}

/** A text with several numbers and no mark does not say which one is right. */
function referenceNumber(answer: string, taskId: string): FoundNumber {
  const numbers = numbersIn(referenceAnswer(answer), newWork());
  const found = onlyOne(numbers);
  if (found !== undefined) return found;
  const problem =
    numbers.length === 0 ? 'holds no number' : 'does not hold exactly one number, and marks none with #### or \\boxed';
  return unscorable(`the answer of task ${JSON.stringify(taskId)} ${problem}`);
}

/** Of each text that is marked, or of the whole text; undefined where it says none. */
function saidNumbers(text: string, strict: boolean): readonly (FoundNumber | undefined)[] {
  const spoken = spokenPart(text);
  return (markedAnswers(spoken) ?? [spoken]).map((one) => {
    const found = numbersIn(one, newWork());
    const last = found.at(-1);
    return strict || last?.isAlternative === true || last?.isPart === true ? onlyOne(found) : last;
  });
}

/** The one number of a text, however often it is said. */
function onlyOne(found: readonly FoundNumber[]): FoundNumber | undefined {
  const last = found.at(-1);
  if (last === undefined || found.some(({ isPart }) => isPart)) return undefined;
  return found.every(({ value, percent }) => same(value, last.value) && percent === last.percent) ? last : undefined;
}

/** The last number of a text, as it is written there. */
export const lastNumber = (text: string): string | undefined => numbersIn(text, newWork()).at(-1)?.text;

/** Where only one of the two is a percentage, 50% is 50 or 0.5. */
function isNear(said: FoundNumber, reference: FoundNumber, options: NumberMatchOptions, work: Work): boolean {
  if (within(said.value, reference.value, options, work)) return true;
  if (said.percent === reference.percent) return false;
  const hundredth = ({ value, percent }: FoundNumber): Rational => (percent ? times(value, { n: 1n, d: 100n }, work) : value);
  return within(hundredth(said), hundredth(reference), options, work);
}

function within(said: Rational, reference: Rational, options: NumberMatchOptions, work: Work): boolean {
  const near = readable(() => {
    const difference = absolute(minus(said, reference, work));
    if (atMost(difference, fromNumber(options.absolute ?? 0, work))) return true;
    return atMost(difference, times(fromNumber(options.relative ?? 0, work), absolute(reference), work));
  });
  return near ?? false;
}
