/**
 * Whether two answers are the same: expressions, and what is made of them. A unit, a degree sign or a percent sign that only one of the
 * two has is not held against it; two that differ are. Sets, lists and unions have no order; tuples, intervals and matrices have one.
 */
import { exactly, nearly, type Point } from './evaluate.ts';
import { type Comparing, isInfinite, pointsFor, sameExpression, variablesOf } from './expressions.ts';
import { below, type Kind, type Node, negative, number, product, type RelationSign, rebuilt, sum } from './nodes.ts';
import { over, type Rational, rational, same } from './rational.ts';
import { spend, type Work } from './work.ts';

export function sameValue(a: Node, b: Node, comparing: Comparing): boolean {
  return compare(bothSigns(a, comparing.work), bothSigns(b, comparing.work), comparing);
}

function compare(a: Node, b: Node, comparing: Comparing): boolean {
  spend(comparing.work, 1);
  if (isMarked(a) || isMarked(b)) return sameMarked(a, b, comparing);
  if (a.kind === 'relation' || b.kind === 'relation') return sameRelated(a, b, comparing);
  if (a.kind === 'set' && b.kind === 'set') return sameInAnyOrder(a.items, b.items, comparing);
  if (a.kind === 'union' || b.kind === 'union') return sameInAnyOrder(partsOf(a), partsOf(b), comparing);
  if (a.kind === 'tuple' && b.kind === 'tuple') return a.brackets === b.brackets && sameInOrder(a.items, b.items, comparing);
  if (a.kind === 'matrix' && b.kind === 'matrix') return sameShape(a, b) && sameInOrder(below(a), below(b), comparing);
  return isExpression(a) && isExpression(b) && sameExpression(a, b, comparing);
}

type Marked = Kind<'measured' | 'percent' | 'degree'>;
const isMarked = (node: Node): node is Marked => node.kind === 'measured' || node.kind === 'percent' || node.kind === 'degree';

function sameMarked(a: Node, b: Node, comparing: Comparing): boolean {
  if (isMarked(a) && isMarked(b)) return markOf(a) === markOf(b) && compare(a.of, b.of, comparing);
  const [marked, other] = isMarked(a) ? [a, b] : [b as Marked, a];
  if (other.kind === 'relation') return sameRelated(marked, other, comparing);
  if (compare(marked.of, other, comparing)) return true;
  return marked.kind === 'percent' && compare(product([marked.of, number(rational(1n, 100n, comparing.work))]), other, comparing);
}

const markOf = (node: Marked): string => (node.kind === 'measured' ? node.unit : node.kind);

/** "x = 5" says 5, and x > 2 is the interval from 2 up. */
function sameRelated(a: Node, b: Node, comparing: Comparing): boolean {
  if (a.kind === 'relation' && b.kind === 'relation') return sameRelation(a, b, comparing);
  const [relation, other] = a.kind === 'relation' ? [a, b] : [b as Kind<'relation'>, a];
  const said = other.kind === 'tuple' || other.kind === 'union' ? withInterval(relation) : undefined;
  const value = said ?? valueSaid(relation, comparing);
  return value !== undefined && compare(value, other, comparing);
}

/** The parts of a union; a list of relations is one too: "x < 1 or x > 2". */
const partsOf = (node: Node): readonly Node[] => (node.kind === 'union' || node.kind === 'set' ? node.items : [node]);

const sameInOrder = (a: readonly Node[], b: readonly Node[], comparing: Comparing): boolean =>
  a.length === b.length && a.every((item, index) => compare(item, b[index]!, comparing));

const sameInAnyOrder = (a: readonly Node[], b: readonly Node[], comparing: Comparing): boolean =>
  areAlike(a, b, (item, other) => compare(item, other, comparing));

/** Whether each has one of the others to itself that is the same. */
function areAlike<T>(a: readonly T[], b: readonly T[], isSame: (one: T, other: T) => boolean): boolean {
  if (a.length !== b.length) return false;
  const left = [...b];
  return a.every((item) => {
    const found = left.findIndex((other) => isSame(item, other));
    if (found !== -1) left.splice(found, 1);
    return found !== -1;
  });
}

const sameShape = (a: Kind<'matrix'>, b: Kind<'matrix'>): boolean =>
  a.rows.map((row) => row.length).join() === b.rows.map((row) => row.length).join();

const NO_EXPRESSION: ReadonlySet<Node['kind']> = new Set(['tuple', 'set', 'union', 'relation', 'matrix']);
const isExpression = (node: Node): boolean => isInfinite(node) || !NO_EXPRESSION.has(node.kind);

/** Two values in place of one with ±: 1 ± √2 is the list of both. */
function bothSigns(node: Node, work: Work): Node {
  if (!hasEitherSign(node, work)) return node;
  if (node.kind === 'set' || node.kind === 'tuple' || node.kind === 'union') {
    const items = node.items.flatMap((item) => {
      const both = bothSigns(item, work);
      return both !== item && both.kind === 'set' ? both.items : [both];
    });
    return { ...node, items };
  }
  return { kind: 'set', items: [signed(node, 1), signed(node, -1)] };
}

function hasEitherSign(node: Node, work: Work): boolean {
  spend(work, 1);
  return node.kind === 'either-sign' || below(node).some((child) => hasEitherSign(child, work));
}

function signed(node: Node, sign: 1 | -1): Node {
  if (node.kind !== 'either-sign') return rebuilt(node, (child) => signed(child, sign));
  const of = signed(node.of, sign);
  return node.sign * sign === 1 ? sum([of]) : negative(of);
}

// ── equations and inequalities ──────────────────────────────────────────────────────────────────────────────────────────

type Relation = Kind<'relation'>;

/** `side` stands in `sign` to zero. */
interface Link {
  readonly sign: '=' | '≠' | '<' | '≤';
  readonly side: Node;
}

/**
 * Two are the same where one is the other times a number: y = 2x + 1 and 2x - y + 1 = 0, x > 5 and 5 < x. Chains (1 < x < 5) are the same
 * where their links are, in any order.
 */
function sameRelation(a: Relation, b: Relation, comparing: Comparing): boolean {
  if (isNaming(a) && isNaming(b)) {
    return sameExpression(a.items[0]!, b.items[0]!, comparing) && sameExpression(a.items.at(-1)!, b.items.at(-1)!, comparing);
  }
  return areAlike(linksOf(a), linksOf(b), (one, other) => sameLink(one, other, comparing));
}

function linksOf({ signs, items }: Relation): readonly Link[] {
  return signs.map((sign, index) => {
    const [left, right] = [items[index]!, items[index + 1]!];
    const difference = (from: Node, to: Node): Node => sum([from, negative(to)]);
    if (sign === '>' || sign === '≥') return { sign: sign === '>' ? '<' : '≤', side: difference(right, left) };
    return { sign: sign === '≈' ? '=' : sign, side: difference(left, right) };
  });
}

function sameLink(a: Link, b: Link, comparing: Comparing): boolean {
  if (a.sign !== b.sign) return false;
  const { work } = comparing;
  const names = [...new Set([...variablesOf(a.side, work), ...variablesOf(b.side, work)])].sort();
  if (names.length === 0) return false;
  const points = pointsFor(names, comparing);
  const isDirected = a.sign === '<' || a.sign === '≤';
  const factors = points.flatMap((point) => exactFactor(a.side, b.side, point, work) ?? []);
  if (factors.length === points.length) {
    const [factor] = factors;
    return factor !== undefined && (!isDirected || factor.n > 0n) && factors.every((other) => same(factor, other));
  }
  const known = points.flatMap((point) => nearFactor(a.side, b.side, point, work) ?? []);
  const [first] = known;
  if (first === undefined || known.length < 3 || first === 0 || !Number.isFinite(first)) return false;
  return (!isDirected || first > 0) && known.every((factor) => Math.abs(factor - first) <= 1e-12 * Math.abs(first));
}

function exactFactor(a: Node, b: Node, point: Point, work: Work): Rational | undefined {
  const [left, right] = [exactly(a, point, work), exactly(b, point, work)];
  return left === undefined || right === undefined || left.n === 0n || right.n === 0n ? undefined : over(left, right, work);
}

function nearFactor(a: Node, b: Node, point: Point, work: Work): number | undefined {
  const [left, right] = [valueAt(a, point, work), valueAt(b, point, work)];
  return left === undefined || right === undefined ? undefined : left / right;
}

function valueAt(node: Node, point: Point, work: Work): number | undefined {
  const value = exactly(node, point, work);
  return value === undefined ? nearly(node, point, work)?.value : Number(value.n) / Number(value.d);
}

/** "x = …", "f(x) = …": the left side is a name for the right one. */
const isNaming = ({ signs, items }: Relation): boolean =>
  signs.every((sign) => sign === '=' || sign === '≈') && isName(items[0]!);

/** A variable; a function of one, f(x); a segment, AB. */
const isName = (node: Node): boolean => {
  if (node.kind === 'variable') return true;
  if (node.kind !== 'product' || node.items.length !== 2) return false;
  const [first, second] = node.items as readonly [Node, Node];
  if (first.kind !== 'variable' || second.kind !== 'variable') return false;
  return /^[fghpqrs]/.test(first.name) || (/^[A-Z]/.test(first.name) && /^[A-Za-z]/.test(second.name));
};

/**
 * What an equation says its value is; undefined where it says none. A chain has to be true as far as it can be followed: "2 + 2 = 5" does not
 * say 5. Of "√27 ≈ 5.2" it is the exact side.
 */
function valueSaid(relation: Relation, comparing: Comparing): Node | undefined {
  const { signs, items } = relation;
  if (signs.some((sign) => sign !== '=' && sign !== '≈')) return undefined;
  const backwards = signs.length === 1 && !isName(items[0]!) && isName(items[1]!) ? items[0] : undefined;
  if (backwards !== undefined) return backwards;
  const values = isName(items[0]!) && items.length > 1 ? items.slice(1) : items;
  const firstSign = items.length - values.length;
  const about = signs.indexOf('≈', firstSign);
  const exactOnes = about === -1 ? values : values.slice(0, about - firstSign + 1);
  const last = exactOnes.at(-1)!;
  if (about !== -1 && !areClose(last, values[about - firstSign + 1]!, comparing.work)) return undefined;
  return exactOnes.every((value) => value === last || sameExpression(value, last, comparing)) ? last : undefined;
}

/** Whether one may be a rounded other: 5 ≈ 6 says nothing. */
function areClose(a: Node, b: Node, work: Work): boolean {
  const [left, right] = [valueAt(a, new Map(), work), valueAt(b, new Map(), work)];
  return left !== undefined && right !== undefined && Math.abs(left - right) <= 0.02 * Math.max(Math.abs(left), Math.abs(right));
}

/** The interval of an inequality in one variable that stands alone; undefined where it is none. */
function withInterval({ signs, items }: Relation): Node | undefined {
  const flipped: Partial<Record<RelationSign, RelationSign>> = { '>': '<', '≥': '≤' };
  const isFalling = signs.every((sign) => flipped[sign] !== undefined);
  const ordered = isFalling ? items.toReversed() : items;
  const upward = isFalling ? signs.toReversed().map((sign) => flipped[sign]!) : signs;
  if (!upward.every((sign) => sign === '<' || sign === '≤')) return undefined;
  const infinity: Node = { kind: 'constant', name: 'infinity' };
  const [first, second, third] = ordered;
  const made = (from: Node, fromSign: RelationSign, to: Node, toSign: RelationSign): Node => ({
    kind: 'tuple',
    brackets: `${fromSign === '<' ? '(' : '['}${toSign === '<' ? ')' : ']'}`,
    items: [from, to],
  });
  if (ordered.length === 3 && second!.kind === 'variable') return made(first!, upward[0]!, third!, upward[1]!);
  if (ordered.length !== 2) return undefined;
  if (first!.kind === 'variable') return made(negative(infinity), '<', second!, upward[0]!);
  return second!.kind === 'variable' ? made(first!, upward[0]!, infinity, '<') : undefined;
}
