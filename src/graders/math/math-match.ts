/**
 * `mathMatch`: right if the final answer is mathematically equal to the reference, however it is written. Both are parsed and compared as
 * numbers, expressions, sets, intervals, matrices or equations; nothing is evaluated as code. If either cannot be parsed, they are compared
 * as text. The work per grading is bounded; an answer that needs more is wrong.
 */
import type { Grader } from '../../core/contracts.ts';
import {
  acceptedAnswers,
  lastLine,
  markedAnswers,
  onlyFormula,
  referenceAnswer,
  spokenPart,
  type TextOptions,
  textGrader,
} from '../answer-text.ts';
import { lastNumber } from '../number-match.ts';
import {
  type Approximation,
  below,
  complexly,
  exactly,
  type Kind,
  type Node,
  nearly,
  negative,
  number,
  type Point,
  product,
  type RelationSign,
  rebuilt,
  sum,
} from './evaluation.ts';
import { parseMath } from './parse.ts';
import { bitsOf, over, type Rational, rational, readable, same, spend, withinBudget } from './rational.ts';
import { plainCharacters, type Reading } from './tokens.ts';

const MOST_PLAIN_CHARS = 20_000;

export interface MathMatchOptions extends TextOptions {
  /** What to read if nothing is marked as the answer; `wrong` reads nothing and scores 0. Default `last-line`. */
  readonly unmarked?: 'last-line' | 'last-number' | 'wrong';
}

export function mathMatch(options: MathMatchOptions = {}): Grader {
  return textGrader('mathMatch', options, { unmarked: ['last-line', 'last-number', 'wrong'] }, (text, input) => {
    const said = saidAnswers(text, options.unmarked ?? 'last-line');
    const references = acceptedAnswers(input).map(referenceAnswer);
    return withinBudget(() => references.some((reference) => isAnswer(said, reference)));
  });
}

function saidAnswers(text: string, unmarked: NonNullable<MathMatchOptions['unmarked']>): readonly string[] {
  const spoken = spokenPart(text);
  const marked = markedAnswers(spoken);
  if (marked !== undefined) return marked;
  if (unmarked === 'wrong') return [];
  return [(unmarked === 'last-number' ? lastNumber(spoken) : lastLine(spoken)) ?? ''];
}

/** Several answers are right if each is, or if together they are the expected list. */
function isAnswer(said: readonly string[], reference: string): boolean {
  if (said.length === 0 || said.some((one) => one === '')) return false;
  const isRight = (one: string) => sameAnswer(one, reference) || sameAnswer(onlyFormula(one) ?? '', reference);
  return said.every(isRight) || (said.length > 1 && sameAnswer(said.join(', '), reference));
}

/** Whether two texts are the same answer. Never throws; symmetric; reflexive. */
export const sameMath = (said: string, reference: string): boolean => withinBudget(() => sameAnswer(said, reference));

function sameAnswer(said: string, reference: string): boolean {
  const left = plainText(said);
  const right = plainText(reference);
  if (left === right) return left !== '' || said === reference;
  if (left === '' || right === '') return false;
  const seed = textHash(said) ^ textHash(reference);
  const isSame = (a: Node, b: Node) => readable(() => compare(bothSigns(a), bothSigns(b), seed)) === true;
  let wasRead = false;
  for (const commas of ['group', 'separate'] as const) {
    const a = readAs(said, commas);
    const b = readAs(reference, commas);
    if (a === undefined || b === undefined) continue;
    wasRead = true;
    if (isSame(a, b)) return true;
    if (isMeasured(a) === isMeasured(b)) continue;
    // If the other side has a unit in words, m means metres and is not a variable.
    const [c, d] = isMeasured(a) ? [a, readAs(reference, commas, true)] : [readAs(said, commas, true), b];
    if (isMeasured(c) && isMeasured(d) && isSame(c, d)) return true;
  }
  // Case matters in formulas, not in words.
  return !wasRead && left.toLowerCase() === right.toLowerCase();
}

const isMeasured = (node: Node | undefined): node is Kind<'measured'> => node?.kind === 'measured';

const readAs = (text: string, commas: Reading['commas'], unitLetters = false) =>
  readable(() => parseMath(text, { commas, unitLetters }));

const WORDS = /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s?\{([^{}]{0,200})\}/g;
const IDLE = /\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ()[\]]|^\s*\*\*|\*\*\s*$|\$|\s+/g;

/** Removes spacing, wrapping and emphasis. Keeps signs and brackets, except brackets around a single word. */
function plainText(text: string): string {
  if (text.length > MOST_PLAIN_CHARS) return text;
  const plain = plainCharacters(text).replace(WORDS, ' $1 ').replace(IDLE, ' ').replace(/ +/g, ' ').trim();
  // After a word "!" is an exclamation mark, after n a factorial.
  const bare = plain.replace(/\.$|(?<=\p{L}{3})!$/u, '').replace(/ (?=[,;:)\]])/g, '');
  return /^\(\s?(\p{L}+)\s?\)$/u.exec(bare)?.[1] ?? bare;
}

function textHash(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash;
}

/** A unit, degree or percent sign on one side only is ignored; two different ones count. Only tuples, intervals and matrices are ordered. */
function compare(a: Node, b: Node, seed: number): boolean {
  spend(1);
  if (isMarked(a) || isMarked(b)) return sameMarked(a, b, seed);
  if (a.kind === 'relation' || b.kind === 'relation') return sameRelated(a, b, seed);
  if (a.kind === 'set' && b.kind === 'set') return sameInAnyOrder(a.items, b.items, seed);
  if (a.kind === 'union' || b.kind === 'union') return sameInAnyOrder(partsOf(a), partsOf(b), seed);
  if (a.kind === 'tuple' && b.kind === 'tuple') return a.brackets === b.brackets && sameInOrder(a.items, b.items, seed);
  if (a.kind === 'matrix' && b.kind === 'matrix') return shapeOf(a) === shapeOf(b) && sameInOrder(below(a), below(b), seed);
  return isExpression(a) && isExpression(b) && sameExpression(a, b, seed);
}

type Marked = Kind<'measured' | 'percent' | 'degree'>;
const isMarked = (node: Node): node is Marked => node.kind === 'measured' || node.kind === 'percent' || node.kind === 'degree';

function sameMarked(a: Node, b: Node, seed: number): boolean {
  if (isMarked(a) && isMarked(b)) return markOf(a) === markOf(b) && compare(a.of, b.of, seed);
  const [marked, other] = isMarked(a) ? [a, b] : [b as Marked, a];
  if (other.kind === 'relation') return sameRelated(marked, other, seed);
  if (compare(marked.of, other, seed)) return true;
  return marked.kind === 'percent' && compare(product([marked.of, number(rational(1n, 100n))]), other, seed);
}

const markOf = (node: Marked) => (node.kind === 'measured' ? node.unit : node.kind);

/** "x = 5" equals 5, and x > 2 equals the interval from 2 up. */
function sameRelated(a: Node, b: Node, seed: number): boolean {
  if (a.kind === 'relation' && b.kind === 'relation') return sameRelation(a, b, seed);
  const [relation, other] = a.kind === 'relation' ? [a, b] : [b as Kind<'relation'>, a];
  const said = other.kind === 'tuple' || other.kind === 'union' ? withInterval(relation) : undefined;
  const value = said ?? valueSaid(relation, seed);
  return value !== undefined && compare(value, other, seed);
}

/** A list of relations is a union, too: "x < 1 or x > 2". */
const partsOf = (node: Node): readonly Node[] => (node.kind === 'union' || node.kind === 'set' ? node.items : [node]);

const sameInOrder = (a: readonly Node[], b: readonly Node[], seed: number) =>
  a.length === b.length && a.every((item, index) => compare(item, b[index]!, seed));

const sameInAnyOrder = (a: readonly Node[], b: readonly Node[], seed: number) =>
  areAlike(a, b, (item, other) => compare(item, other, seed));

/** Whether the lists pair up one to one. */
function areAlike<T>(a: readonly T[], b: readonly T[], isSame: (one: T, other: T) => boolean): boolean {
  if (a.length !== b.length) return false;
  const left = [...b];
  return a.every((item) => {
    const found = left.findIndex((other) => isSame(item, other));
    if (found !== -1) left.splice(found, 1);
    return found !== -1;
  });
}

const shapeOf = ({ rows }: Kind<'matrix'>) => rows.map((row) => row.length).join();

const NO_EXPRESSION: ReadonlySet<Node['kind']> = new Set(['tuple', 'set', 'union', 'relation', 'matrix']);
const isExpression = (node: Node) => isInfinite(node) || !NO_EXPRESSION.has(node.kind);

/** Replaces ± by the list of both values: 1 ± √2. */
function bothSigns(node: Node): Node {
  if (!hasEitherSign(node)) return node;
  if (node.kind === 'set' || node.kind === 'tuple' || node.kind === 'union') {
    const items = node.items.flatMap((item) => {
      const both = bothSigns(item);
      return both !== item && both.kind === 'set' ? both.items : [both];
    });
    return { ...node, items };
  }
  return { kind: 'set', items: [signed(node, 1), signed(node, -1)] };
}

function hasEitherSign(node: Node): boolean {
  spend(1);
  return node.kind === 'either-sign' || below(node).some((child) => hasEitherSign(child));
}

function signed(node: Node, sign: 1 | -1): Node {
  if (node.kind !== 'either-sign') return rebuilt(node, (child) => signed(child, sign));
  const of = signed(node.of, sign);
  return node.sign * sign === 1 ? sum([of]) : negative(of);
}

type Relation = Kind<'relation'>;

/** The relation `side` `sign` 0. */
interface Link {
  readonly sign: '=' | '≠' | '<' | '≤';
  readonly side: Node;
}

/** Equal if one is a multiple of the other: y = 2x + 1 and 2x - y + 1 = 0. Links of chains (1 < x < 5) may be in any order. */
function sameRelation(a: Relation, b: Relation, seed: number): boolean {
  if (isNaming(a) && isNaming(b)) {
    return sameExpression(a.items[0]!, b.items[0]!, seed) && sameExpression(a.items.at(-1)!, b.items.at(-1)!, seed);
  }
  return areAlike(linksOf(a), linksOf(b), (one, other) => sameLink(one, other, seed));
}

function linksOf({ signs, items }: Relation): readonly Link[] {
  return signs.map((sign, index) => {
    const left = items[index]!;
    const right = items[index + 1]!;
    const upward = FLIPPED[sign];
    if (upward !== undefined) return { sign: upward, side: sum([right, negative(left)]) };
    return { sign: sign === '≈' ? '=' : (sign as Link['sign']), side: sum([left, negative(right)]) };
  });
}

const FLIPPED: Partial<Record<RelationSign, '<' | '≤'>> = { '>': '<', '≥': '≤' };

function sameLink(a: Link, b: Link, seed: number): boolean {
  const names = namesIn(a.side, b.side);
  if (a.sign !== b.sign || names.length === 0) return false;
  const points = pointsFor(names, seed);
  const isAllowed = (factor: number) => Number.isFinite(factor) && (a.sign === '<' || a.sign === '≤' ? factor > 0 : factor !== 0);
  const factors = points.flatMap((point) => exactFactor(a.side, b.side, point) ?? []);
  if (factors.length === points.length) {
    return isAllowed(factors[0]!.n > 0n ? 1 : -1) && factors.every((other) => same(factors[0]!, other));
  }
  const known = points.flatMap((point) => {
    const left = valueAt(a.side, point);
    const right = valueAt(b.side, point);
    return left === undefined || right === undefined ? [] : [left / right];
  });
  const [first = 0] = known;
  return (
    known.length >= FEWEST_POINTS &&
    isAllowed(first) &&
    known.every((factor) => Math.abs(factor - first) <= 1e-12 * Math.abs(first))
  );
}

function exactFactor(a: Node, b: Node, point: Point): Rational | undefined {
  const left = exactly(a, point);
  const right = exactly(b, point);
  return left === undefined || right === undefined || left.n === 0n || right.n === 0n ? undefined : over(left, right);
}

function valueAt(node: Node, point: Point): number | undefined {
  const value = exactly(node, point);
  return value === undefined ? nearly(node, point)?.value : Number(value.n) / Number(value.d);
}

/** Whether the left side only names the right one: "x = …", "f(x) = …". */
const isNaming = ({ signs, items }: Relation) => signs.every((sign) => sign === '=' || sign === '≈') && isName(items[0]!);

/** A variable, a function of one, f(x), or a segment, AB. */
function isName(node: Node): boolean {
  if (node.kind !== 'product') return node.kind === 'variable';
  const [first, second] = node.items;
  if (node.items.length !== 2 || first?.kind !== 'variable' || second?.kind !== 'variable') return false;
  return /^[fghpqrs]/.test(first.name) || (/^[A-Z]/.test(first.name) && /^[A-Za-z]/.test(second.name));
}

/** The value that an equation states, if any. Chains must hold: "2 + 2 = 5" does not state 5. For "√27 ≈ 5.2" it is the exact side. */
function valueSaid({ signs, items }: Relation, seed: number): Node | undefined {
  if (signs.some((sign) => sign !== '=' && sign !== '≈')) return undefined;
  const [name, ...others] = items as readonly [Node, ...Node[]];
  if (others.length === 1 && !isName(name) && isName(others[0]!)) return name;
  const skipped = isName(name) ? 1 : 0;
  const values = items.slice(skipped);
  const about = signs.slice(skipped).indexOf('≈');
  const exactOnes = about === -1 ? values : values.slice(0, about + 1);
  const last = exactOnes.at(-1)!;
  if (about !== -1 && !areClose(last, values[about + 1]!)) return undefined;
  return exactOnes.every((value) => value === last || sameExpression(value, last, seed)) ? last : undefined;
}

/** Whether one may be the other rounded: 5 ≈ 6 states nothing. */
function areClose(a: Node, b: Node): boolean {
  const left = valueAt(a, new Map());
  const right = valueAt(b, new Map());
  return left !== undefined && right !== undefined && Math.abs(left - right) <= 0.02 * Math.max(Math.abs(left), Math.abs(right));
}

/** The interval of an inequality with a lone variable on one side or in the middle; otherwise undefined. */
function withInterval({ signs, items }: Relation): Node | undefined {
  const isFalling = signs.every((sign) => FLIPPED[sign] !== undefined);
  const [first, second, third, ...more] = isFalling ? items.toReversed() : items;
  const upward = isFalling ? signs.toReversed().map((sign) => FLIPPED[sign]!) : signs;
  if (more.length > 0 || !upward.every((sign) => sign === '<' || sign === '≤')) return undefined;
  const infinity: Node = { kind: 'constant', name: 'infinity' };
  const between = (from: Node, fromSign: RelationSign, to: Node, toSign: RelationSign): Node => ({
    kind: 'tuple',
    brackets: `${fromSign === '<' ? '(' : '['}${toSign === '<' ? ')' : ']'}`,
    items: [from, to],
  });
  if (third === undefined && first!.kind === 'variable') return between(negative(infinity), '<', second!, upward[0]!);
  if (second!.kind !== 'variable') return undefined;
  return third === undefined ? between(first!, upward[0]!, infinity, '<') : between(first!, upward[0]!, third, upward[1]!);
}

const POINTS = 6;
/** From this index on, half of the variables are negative: a function may be defined on one side only. */
const POSITIVE_POINTS = 4;
const FEWEST_POINTS = 3;
/** Fractions with fewer bits differ from each other, and from irrational numbers, by more than the floating-point error. */
const MOST_KNOWN_BITS = 44;
const NOWHERE: Point = new Map();

/**
 * Compares written forms, then exact values, then values at several points, exact or within the floating-point error. The points are seeded
 * from both texts: a policy cannot write an expression that is right only there. Different if too few points can be compared.
 */
function sameExpression(a: Node, b: Node, seed: number): boolean {
  if (writtenForm(a) === writtenForm(b)) return true;
  if (isInfinite(a) || isInfinite(b)) return false;
  const names = namesIn(a, b);
  if (names.includes('i') && sameComplex(a, b, names, seed)) return true;
  if (names.length === 0) return agreeAt(a, b, NOWHERE) === true;
  const found = pointsFor(names, seed).map((point) => agreeAt(a, b, point));
  return !found.includes(false) && found.filter((agrees) => agrees === true).length >= FEWEST_POINTS;
}

/** Treats i as the imaginary unit. Exact values only. */
function sameComplex(a: Node, b: Node, names: readonly string[], seed: number): boolean {
  const others = names.filter((name) => name !== 'i');
  const points = others.length === 0 ? [NOWHERE] : pointsFor(others, seed);
  return points.every((point) => {
    const left = complexly(a, point);
    const right = complexly(b, point);
    return left !== undefined && right !== undefined && same(left.re, right.re) && same(left.im, right.im);
  });
}

/** Undefined if it cannot be decided. */
function agreeAt(a: Node, b: Node, point: Point): boolean | undefined {
  const left = exactly(a, point);
  const right = exactly(b, point);
  if (left !== undefined && right !== undefined) return same(left, right);
  // A long decimal can be close to any root; only a short one can be meant to equal it.
  const known = left ?? right;
  if (point === NOWHERE && known !== undefined && bitsOf(known.n) + bitsOf(known.d) > MOST_KNOWN_BITS) return false;
  const nearLeft = nearly(a, point);
  const nearRight = nearly(b, point);
  return nearLeft && nearRight && withinError(nearLeft, nearRight);
}

function withinError(a: Approximation, b: Approximation): boolean | undefined {
  const error = 2 * (a.error + b.error);
  const size = Math.max(Math.abs(a.value), Math.abs(b.value));
  const difference = Math.abs(a.value - b.value);
  if (difference > error) return false;
  // With a larger error, anything would agree.
  return error <= 1e-10 * size || error <= 1e-12 ? true : undefined;
}

function pointsFor(names: readonly string[], seed: number): readonly Point[] {
  let state = seed >>> 0;
  const draw = (below: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  return Array.from({ length: POINTS }, (_, index) => {
    const coordinate = (name: string, variable: number): readonly [string, Rational] => {
      const sign = index >= POSITIVE_POINTS && (index + variable) % 2 === 0 ? -1 : 1;
      return [name, rational(BigInt(sign * (1 + draw(211))), BigInt(53 + draw(40)))];
    };
    return new Map(names.map(coordinate));
  });
}

const namesIn = (a: Node, b: Node) => [...new Set([...variablesOf(a), ...variablesOf(b)])].sort();

function variablesOf(node: Node): readonly string[] {
  spend(1);
  return node.kind === 'variable' ? [node.name] : below(node).flatMap((child) => variablesOf(child));
}

/** Infinity, or a multiple of it. */
function isInfinite(node: Node): boolean {
  if (node.kind === 'product')
    return node.items.some(isInfinite) && node.items.every((item) => item.kind === 'number' || isInfinite(item));
  return node.kind === 'constant' && node.name === 'infinity';
}

const BELOW = new Set(['items', 'rows', 'base', 'exponent', 'of']);

/** Ignores the order of sums, products and sets, and the notation of numbers. */
function writtenForm(node: Node): string {
  const value = exactly(node, NOWHERE);
  if (value !== undefined) return `${value.n}/${value.d}`;
  spend(1);
  const { kind } = node;
  const forms = below(node).map((child) => writtenForm(child));
  if (kind === 'sum' || kind === 'product' || kind === 'set' || kind === 'union') forms.sort();
  // The node's own fields, without its children.
  const ownText = JSON.stringify(node, (key, value: unknown) => (BELOW.has(key) ? undefined : value));
  const shape = node.kind === 'matrix' ? shapeOf(node) : '';
  return `${ownText}${shape}(${forms.join(' ')})`;
}
