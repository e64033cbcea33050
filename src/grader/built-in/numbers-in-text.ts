/**
 * The numbers in a text, in order, with their exact values: signs, separators of thousands in the usual conventions, fractions and mixed
 * numbers, powers of ten, percentages. Currency signs do not matter.
 *
 * One comma or point before three digits: a comma groups (1,234), a point does not (1.234). Where both occur the last one is the decimal
 * mark (1.234,5). A digit glued to letters (H2O, x2), an ordinal (3rd) and a division by zero are no numbers. What is only a part of
 * something else (2^10, 3x, 2π, √5, 12:30) is found, and said to be one. Nothing throws; only the last numbers of a text are kept, and only
 * its end is read.
 */
import { plainCharacters } from './math/characters.ts';
import { fromDecimal, fromNumber, over, plus, type Rational, times, whole } from './math/rational.ts';
import { SCALES } from './math/vocabulary.ts';
import { readable, type Work } from './math/work.ts';

export interface FoundNumber {
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

export function numbersIn(given: string, work: Work): readonly FoundNumber[] {
  const text = plainCharacters(given.slice(-MOST_CHARS))
    .replace(
      TEX_FRACTION,
      (_, sign = '', top, topDigit, bottom, bottomDigit) => ` ${sign}${top ?? topDigit}/${bottom ?? bottomDigit}`,
    )
    .replace(/\{,\}|\\!/g, (mark) => (mark === '{,}' ? ',' : ''))
    .replace(/\\times(?![A-Za-z])|\\cdot(?![A-Za-z])/g, '*')
    .replace(/\\,/g, ' ')
    .replace(/\\([$%])/g, '$1');
  const matches = [...text.matchAll(NUMBER)].filter(
    (match) => !ORDINAL.test(text.slice(match.index + match[0].length, match.index + match[0].length + 3)),
  );
  return matches.slice(-MOST_NUMBERS).flatMap((match) => readable(() => numberOf(match, text, work)) ?? []);
}

function numberOf(match: RegExpExecArray | RegExpMatchArray, all: string, work: Work): readonly FoundNumber[] {
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
    return parts.map((part) => ({ ...found, value: fromDecimal(part, 0, work), percent: false, text: part }));
  }
  const first = decimalOf(digits, work);
  const size = bottom === undefined ? first : fractionOf(first, middle?.trim(), bottom, work);
  if (size === undefined) return [];
  const scaled = scale === undefined ? size : times(size, fromNumber(SCALES[scale.toLowerCase()] ?? 1, work), work);
  // "5 - 3" subtracts; "is -3" and "= - 3" do not.
  const subtracts = sign !== '' && /^\s/.test(text.slice(1)) && OPERAND_BEFORE.test(before);
  const isNegative = (sign === '-' && !subtracts) || innerSign === '-';
  return [{ ...found, value: isNegative ? { n: -scaled.n, d: scaled.d } : scaled }];
}

function fractionOf(first: Rational, middle: string | undefined, bottom: string, work: Work): Rational | undefined {
  const below = whole(BigInt(bottom));
  if (below.n === 0n) return undefined;
  return middle === undefined ? over(first, below, work) : plus(first, over(whole(BigInt(middle)), below, work), work);
}

function decimalOf(written: string, work: Work): Rational {
  const power = /^10\s?\^\s?\{?([+-]?\d+)\}?$/.exec(written);
  if (power !== null) return fromDecimal('1', Number(power[1]), work);
  const [, digits = '', plainExponent, tenExponent] =
    /^(.*?)(?:e([+-]?\d+)|\s?\*\s?10\s?\^\s?\{?([+-]?\d+)\}?)?$/i.exec(written) ?? [];
  return fromDecimal(withPoint(digits), Number(plainExponent ?? tenExponent ?? 0), work);
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
