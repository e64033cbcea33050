/**
 * `numberMatch`: right if the number of the response is close enough to the reference, compared as exact fractions. Reads the LAST number
 * of each marked answer (`\boxed`, `<answer>`, `####`, "the answer is"), else of the whole text. "5 or 6" is no number, and neither is a
 * part of a formula (2^10, 3x). `strict` allows one number only, however often repeated. Numbers in words are not read. A reference must
 * hold or mark exactly one number.
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
  /** Absolute tolerance; default 0. The wider of the two tolerances applies. */
  readonly absolute?: number;
  /** Relative tolerance, as a share of the reference: 0.01 is one per cent. */
  readonly relative?: number;
  /** Whether a second, different number makes the response wrong. Default false. */
  readonly strict?: boolean;
}

export function numberMatch(options: NumberMatchOptions = {}): Grader {
  const kinds = { absolute: 'amount', relative: 'amount', strict: 'boolean' } as const;
  return textGrader('numberMatch', options, kinds, (text, input) => {
    const references = acceptedAnswers(input).map((answer) => referenceNumber(answer, input.task.id));
    const said = saidNumbers(text, options.strict ?? false);
    const isRight = (one: FoundNumber) => references.some((reference) => isNear(one, reference, options));
    return said.length > 0 && withinBudget(() => said.every((one) => one !== undefined && isRight(one)));
  });
}

/** Unscorable if the answer has several numbers and no mark: which is right is unknown. */
function referenceNumber(answer: string, taskId: string): FoundNumber {
  const numbers = numbersIn(referenceAnswer(answer));
  const found = onlyOne(numbers);
  if (found !== undefined) return found;
  const problem =
    numbers.length === 0 ? 'holds no number' : 'does not hold exactly one number, and marks none with #### or \\boxed';
  return unscorable(`the answer of task ${JSON.stringify(taskId)} ${problem}`);
}

/** One per marked answer or for the whole text; undefined if there is none. */
function saidNumbers(text: string, strict: boolean): readonly (FoundNumber | undefined)[] {
  const spoken = spokenPart(text);
  return (markedAnswers(spoken) ?? [spoken]).map((one) => {
    const found = numbersIn(one);
    const last = found.at(-1);
    return strict || last?.isAlternative === true || last?.isPart === true ? onlyOne(found) : last;
  });
}

/** The only number of a text, however often repeated. */
function onlyOne(found: readonly FoundNumber[]): FoundNumber | undefined {
  const last = found.at(-1);
  if (last === undefined || found.some(({ isPart }) => isPart)) return undefined;
  return found.every(({ value, percent }) => same(value, last.value) && percent === last.percent) ? last : undefined;
}

export const lastNumber = (text: string): string | undefined => numbersIn(text).at(-1)?.text;

/** If only one side is a percentage, 50% equals both 50 and 0.5. */
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

interface FoundNumber {
  readonly value: Rational;
  readonly percent: boolean;
  readonly text: string;
  /** Whether it belongs to a formula, a time or a ratio. */
  readonly isPart: boolean;
  /** Whether "or" precedes it. */
  readonly isAlternative: boolean;
}

const MOST_CHARS = 20_000;
const MOST_NUMBERS = 200;
const MOST_DIGITS = 300;

/** Digits with separators, interpreted later. Unambiguous, so that matching does not backtrack. */
const DIGITS = String.raw`(?:\d+(?:[.,'’]\d+)*|(?<!\.)\.\d+)`;
const SPACED_DIGITS = String.raw`\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?![\d/])(?:[.,]\d+)?`;
const EXPONENT = String.raw`(?:[eE][+-]?\d{1,20}(?![\d.])|\s?\*\s?10\s?\^\s?\{?[+-]?\d{1,20}\}?)?`;
const NUMBER = new RegExp(
  String.raw`(?<![\p{L}\d_]|\d[.,])([-+]?)([$€£¥₹]?\s?)([-+]?)(10\s?\^\s?\{?[+-]?\d{1,20}\}?(?!\d)|(?:${SPACED_DIGITS}|${DIGITS})${EXPONENT})(?:(\s\d+)?\s?\/\s?(\d+)(?![\d/]))?(?:\s(hundred|thousand|million|billion|trillion)(?!\p{L}))?(\s?%|\s(?:percent|per cent)(?!\p{L}))?`,
  'giu',
);
/** Groups of three, or Indian groups of two before the last three. */
const GROUPED = /^\d{1,3}(?:,\d{2,3})*,\d{3}$/;
const ORDINAL = /^(?:st|nd|rd|th)(?!\p{L})/iu;
const TEX_FRACTION = /\\[dt]?frac\s?(?:\{\s?([-+]?)(\d{1,300})\s?\}|(\d))\s?(?:\{\s?(\d{1,300})\s?\}|(\d))/g;
const PART_BEFORE = /(?:[\^_]\s?\{?|√\(?|\\sqrt\s?\{?|\d:)[-+]?$/;
const PART_BEHIND = /^(?:\s?(?:\^|\\pi(?![a-z])|π|√|\\sqrt)|[xyzn](?![\p{L}\d])|:\d)/u;
const OR_BEFORE = /(?:\bor\b(?:\s[a-z]{1,14})?|####|\|)[\s$(]{0,3}$/i;
const OPERAND_BEFORE = /[\d\p{L})%]\s$/u;
/** Characters around a number that decide what it is. */
const CONTEXT_CHARS = 24;

/**
 * The last numbers of a text's end, in order: with signs, thousands separators, fractions, mixed numbers, powers of ten, percentages.
 * Before three digits a single comma groups (1,234) and a single point does not (1.234). With both, the last is the decimal mark (1.234,5).
 * Skips digits glued to letters (H2O, x2), ordinals (3rd) and divisions by zero. Parts of something else (2^10, 3x, 2π, √5, 12:30) have
 * `isPart`. Ignores currency signs. Never throws.
 */
function numbersIn(given: string): readonly FoundNumber[] {
  const text = plainCharacters(given.slice(-MOST_CHARS))
    .replace(TEX_FRACTION, ' $1$2$3/$4$5')
    .replaceAll('{,}', ',')
    .replaceAll('\\!', '')
    .replace(/\\(?:times|cdot)(?![A-Za-z])/g, '*')
    .replace(/\\,/g, ' ')
    .replace(/\\([$%])/g, '$1');
  const behind = (match: RegExpMatchArray) => text.slice(match.index! + match[0].length, match.index! + match[0].length + 3);
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
  // "5 - 3" subtracts; "is -3" and "= - 3" are negative.
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

function withPoint(digits: string): string {
  const bare = digits.replace(/['’\s]/g, '');
  const comma = bare.lastIndexOf(',');
  const point = bare.lastIndexOf('.');
  if (comma !== -1 && point !== -1) {
    const mark = Math.max(comma, point);
    return `${bare.slice(0, mark).replace(/[.,]/g, '')}.${bare.slice(mark + 1)}`;
  }
  if (comma !== -1) return GROUPED.test(bare) ? bare.replaceAll(',', '') : bare.replace(',', '.');
  return bare.split('.').length > 2 ? bare.replaceAll('.', '') : bare;
}

/** Whether several commas or points group nothing: 1,2,3 and 12.5.2024 are several numbers. */
function isList(digits: string): boolean {
  const marks = digits.replace(/\d/g, '');
  return /^(?:,,+|\.\.+)$/.test(marks) && !GROUPED.test(digits.replaceAll('.', ','));
}
