/**
 * Whether two answers are the same: expressions, and what is made of them. A unit, a degree sign or a percent sign that only one of the
 * two has is not held against it; two that differ are. Sets, lists and unions have no order; tuples, intervals and matrices have one.
 */
import { type Comparing, isInfinite, sameExpression } from './expressions.ts';
import { below, type Kind, type Node, negative, number, product, rebuilt, sum } from './nodes.ts';
import { rational } from './rational.ts';
import { sameRelation, valueSaid, withInterval } from './relations.ts';
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

function sameInAnyOrder(a: readonly Node[], b: readonly Node[], comparing: Comparing): boolean {
  if (a.length !== b.length) return false;
  const left = [...b];
  return a.every((item) => {
    const found = left.findIndex((other) => compare(item, other, comparing));
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
