/**
 * `numberMatch`: right where the number of the answer is near enough to the reference. Numbers are compared exactly, as fractions, before any
 * tolerance.
 *
 * Which number counts: in what is marked as the answer (`\boxed`, `<answer>`, `####`, "the answer is") where something is, else in the whole
 * text, the LAST one. "5 or 6" is none, and neither is a part of a formula (2^10, 3x). `strict`: there may be only one, said as often as one
 * likes. Numbers in words are not read. A reference has to hold one number, or mark one.
 */
import type { Grader } from '../core/contracts.ts';
import { unscorable } from '../core/define.ts';
import { acceptedAnswers, markedAnswers, referenceAnswer, spokenPart, type TextOptions, textGrader } from './answer-text.ts';
import {
  absolute,
  atMost,
  fromDecimal,
  fromNumber,
  minus,
  over,
  plus,
  type Rational,
  readable,
  same,
  times,
  whole,
  withinBudget,
} from './math/rational.ts';
import { plainCharacters, SCALES } from './math/tokens.ts';

export interface NumberMatchOptions extends TextOptions {
  /** How far off it may be; default 0. The wider of the two tolerances counts. */
  readonly absolute?: number;
  /** The same as a share of the reference: 0.01 is one per cent. */
  readonly relative?: number;
  /** Whether a second, different number makes it wrong; default false. */
  readonly strict?: boolean;
}

export function numberMatch(options: NumberMatchOptions = {}): Grader {
  const kinds = { absolute: 'amount', relative: 'amount', strict: 'boolean' } as const;
  return textGrader('numberMatch', options, kinds, (text, input) => {
    const references = acceptedAnswers(input).map((answer) => referenceNumber(answer, input.task.id));
    const said = saidNumbers(text, options.strict ?? false);
    const isRight = (one: FoundNumber): boolean => references.some((reference) => isNear(one, reference, options));
    return said.length > 0 && withinBudget(() => said.every((one) => one !== undefined && isRight(one)));
  });
}

/** A text with several numbers and no mark does not say which one is right. */
function referenceNumber(answer: string, taskId: string): FoundNumber {
  const numbers = numbersIn(referenceAnswer(answer));
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
    const found = numbersIn(one);
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
export const lastNumber = (text: string): string | undefined => numbersIn(text).at(-1)?.text;

/** Where only one of the two is a percentage, 50% is 50 or 0.5. */
function isNear(said: FoundNumber, reference: FoundNumber, options: NumberMatchOptions): boolean {
  if (within(said.value, reference.value, options)) return true;
  if (said.percent === reference.percent) return false;
  const hundredth = ({ value, percent }: FoundNumber): Rational => (percent ? times(value, { n: 1n, d: 100n }) : value);
  return within(hundredth(said), hundredth(reference), options);
}

function within(said: Rational, reference: Rational, options: NumberMatchOptions): boolean {
  const near = readable(() => {
    const difference = absolute(minus(said, reference));
    const share = times(fromNumber(options.relative ?? 0), absolute(reference));
    return atMost(difference, fromNumber(options.absolute ?? 0)) || atMost(difference, share);
  });
  return near ?? false;
}

// ── the numbers in a text ───────────────────────────────────────────────────────────────────────────────────────────────

interface FoundNumber {
  readonly value: Rational;
  readonly percent: boolean;
  readonly text: string;
  /** Whether it is a part of a formula, a time or a ratio, and not what is said. */
  readonly isPart: boolean;
  /** Whether it is one of two that "or" stands between. */
  readonly isAlternative: boolean;
}

const MOST_CHARS = 20_000;
const MOST_NUMBERS = 200;
const MOST_DIGITS = 300;

/** Digits with marks between them; what they mean is worked out afterwards. No part can match in two ways. */
const DIGITS = String.raw`(?:\d+(?:[.,'’]\d+)*|(?<!\.)\.\d+)`;
const SPACED_DIGITS = String.raw`\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?![\d/])(?:[.,]\d+)?`;
const EXPONENT = String.raw`(?:[eE][+-]?\d{1,20}(?![\d.])|\s?\*\s?10\s?\^\s?\{?[+-]?\d{1,20}\}?)?`;
const NUMBER = new RegExp(
  String.raw`(?<![\p{L}\d_]|\d[.,])([-+]?)([$€£¥₹]?\s?)([-+]?)(10\s?\^\s?\{?[+-]?\d{1,20}\}?(?!\d)|(?:${SPACED_DIGITS}|${DIGITS})${EXPONENT})(?:(\s\d+)?\s?\/\s?(\d+)(?![\d/]))?(?:\s(hundred|thousand|million|billion|trillion)(?!\p{L}))?(\s?%|\s(?:percent|per cent)(?!\p{L}))?`,
  'giu',
);
/** In threes, or as in India in twos before the last three. */
const GROUPED = /^\d{1,3}(?:,\d{2,3})*,\d{3}$/;
const ORDINAL = /^(?:st|nd|rd|th)(?!\p{L})/iu;
const TEX_FRACTION = /\\[dt]?frac\s?(?:\{\s?([-+]?)(\d{1,300})\s?\}|(\d))\s?(?:\{\s?(\d{1,300})\s?\}|(\d))/g;
const PART_BEFORE = /(?:[\^_]\s?\{?|√\(?|\\sqrt\s?\{?|\d:)[-+]?$/;
const PART_BEHIND = /^(?:\s?(?:\^|\\pi(?![a-z])|π|√|\\sqrt)|[xyzn](?![\p{L}\d])|:\d)/u;
const OR_BEFORE = /(?:\bor\b(?:\s[a-z]{1,14})?|####|\|)[\s$(]{0,3}$/i;
const OPERAND_BEFORE = /[\d\p{L})%]\s$/u;
/** Around a number, that decide what it is. */
const CONTEXT_CHARS = 24;

/**
 * In order, with their exact values: signs, separators of thousands in the usual conventions, fractions and mixed numbers, powers of ten,
 * percentages. Currency signs do not matter.
 *
 * One comma or point before three digits: a comma groups (1,234), a point does not (1.234). Where both occur the last one is the decimal
 * mark (1.234,5). A digit glued to letters (H2O, x2), an ordinal (3rd) and a division by zero are no numbers. What is only a part of
 * something else (2^10, 3x, 2π, √5, 12:30) is found, and said to be one. Nothing throws; only the last numbers of a text are kept, and only
 * its end is read.
 */
function numbersIn(given: string): readonly FoundNumber[] {
  const text = plainCharacters(given.slice(-MOST_CHARS))
    .replace(TEX_FRACTION, ' $1$2$3/$4$5')
    .replaceAll('{,}', ',')
    .replaceAll('\\!', '')
    .replace(/\\(?:times|cdot)(?![A-Za-z])/g, '*')
    .replace(/\\,/g, ' ')
    .replace(/\\([$%])/g, '$1');
  const behind = (match: RegExpMatchArray): string =>
    text.slice(match.index! + match[0].length, match.index! + match[0].length + 3);
  const matches = [...text.matchAll(NUMBER)].filter((match) => !ORDINAL.test(behind(match)));
  return withinBudget(() => matches.slice(-MOST_NUMBERS).flatMap((match) => readable(() => numberOf(match, text)) ?? []));
}

function numberOf(match: RegExpExecArray | RegExpMatchArray, all: string): readonly FoundNumber[] {
  const [text, sign = '', , innerSign = '', digits = '', middle, bottom, scale, percent] = match;
  if (text.length > MOST_DIGITS) return [];
  const at = match.index ?? 0;
  const before = all.slice(Math.max(0, at - CONTEXT_CHARS), at);
  const behind = all.slice(at + text.length, at + text.length + CONTEXT_CHARS);
  const found = {
    percent: percent !== undefined,
    text: text.trim(),
    isPart: PART_BEFORE.test(before) || PART_BEHIND.test(behind),
    isAlternative: OR_BEFORE.test(before),
  };
  if (isList(digits)) {
    const parts = digits.split(/[.,]/);
    return parts.map((part) => ({ ...found, value: fromDecimal(part, 0), percent: false, text: part }));
  }
  const first = decimalOf(digits);
  const size = bottom === undefined ? first : fractionOf(first, middle?.trim(), bottom);
  if (size === undefined) return [];
  const scaled = scale === undefined ? size : times(size, fromNumber(SCALES.get(scale.toLowerCase()) ?? 1));
  // "5 - 3" subtracts; "is -3" and "= - 3" do not.
  const subtracts = sign !== '' && /^\s/.test(text.slice(1)) && OPERAND_BEFORE.test(before);
  const isNegative = (sign === '-' && !subtracts) || innerSign === '-';
  return [{ ...found, value: isNegative ? { n: -scaled.n, d: scaled.d } : scaled }];
}

function fractionOf(first: Rational, middle: string | undefined, bottom: string): Rational | undefined {
  const below = whole(BigInt(bottom));
  if (below.n === 0n) return undefined;
  return middle === undefined ? over(first, below) : plus(first, over(whole(BigInt(middle)), below));
}

function decimalOf(written: string): Rational {
  const power = /^10\s?\^\s?\{?([+-]?\d+)\}?$/.exec(written);
  if (power !== null) return fromDecimal('1', Number(power[1]));
  const [, digits = '', plainExponent, tenExponent] =
    /^(.*?)(?:e([+-]?\d+)|\s?\*\s?10\s?\^\s?\{?([+-]?\d+)\}?)?$/i.exec(written) ?? [];
  return fromDecimal(withPoint(digits), Number(plainExponent ?? tenExponent ?? 0));
}

/** Digits with a point before the decimals and nothing else. */
function withPoint(digits: string): string {
  const bare = digits.replace(/['’\s]/g, '');
  const [comma, point] = [bare.lastIndexOf(','), bare.lastIndexOf('.')];
  if (comma !== -1 && point !== -1) {
    const mark = Math.max(comma, point);
    return `${bare.slice(0, mark).replace(/[.,]/g, '')}.${bare.slice(mark + 1)}`;
  }
  if (comma !== -1) return GROUPED.test(bare) ? bare.replaceAll(',', '') : bare.replace(',', '.');
  return bare.split('.').length > 2 ? bare.replaceAll('.', '') : bare;
}

/** Several commas or points that group nothing: 1,2,3 and 12.5.2024 are several numbers. */
function isList(digits: string): boolean {
  const marks = digits.replace(/\d/g, '');
  return /^(?:,,+|\.\.+)$/.test(marks) && !GROUPED.test(digits.replaceAll('.', ','));
}
