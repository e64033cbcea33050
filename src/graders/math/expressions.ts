/**
 * Whether two expressions are the same one: by their written form, exactly where they are fractions, else at several points, exact where the
 * point gives a fraction and as far as floating point can tell where it does not.
 *
 * The points are drawn from both texts, so that nobody can write an expression that is only right at them. Where too few points could be
 * compared, expressions are not the same.
 */
import { type Approximation, complexly, exactly, nearly, type Point, sameComplexNumber } from './evaluate.ts';
import { below, type Node } from './nodes.ts';
import { bitsOf, type Rational, rational, same } from './rational.ts';
import { spend, type Work } from './work.ts';

export interface Comparing {
  readonly work: Work;
  /** From which points are drawn. */
  readonly seed: number;
}

const POINTS = 6;
/** From here on half of the variables are negative, where functions may be undefined on one side only. */
const POSITIVE_POINTS = 4;
const FEWEST_POINTS = 3;
/** Fractions below this are further from each other, and from what is no fraction, than floating point errs. */
const MOST_KNOWN_BITS = 44;
const NOWHERE: Point = new Map();

export function sameExpression(a: Node, b: Node, comparing: Comparing): boolean {
  const { work } = comparing;
  if (writtenForm(a, work) === writtenForm(b, work)) return true;
  if (isInfinite(a) || isInfinite(b)) return false;
  const names = [...new Set([...variablesOf(a, work), ...variablesOf(b, work)])].sort();
  if (names.includes('i') && sameComplex(a, b, names, comparing)) return true;
  if (names.length === 0) return agreeAt(a, b, NOWHERE, work) === true;
  const found = pointsFor(names, comparing).map((point) => agreeAt(a, b, point, work));
  return !found.includes(false) && found.filter((agrees) => agrees === true).length >= FEWEST_POINTS;
}

/** With i as the imaginary unit; only where it can be computed exactly. */
function sameComplex(a: Node, b: Node, names: readonly string[], comparing: Comparing): boolean {
  const { work } = comparing;
  const points = names.length === 1 ? [NOWHERE] : pointsFor(names, comparing);
  return points.every((point) => {
    const [left, right] = [complexly(a, point, work), complexly(b, point, work)];
    return left !== undefined && right !== undefined && sameComplexNumber(left, right);
  });
}

/** Undefined where it cannot be told. */
function agreeAt(a: Node, b: Node, point: Point, work: Work): boolean | undefined {
  const [left, right] = [exactly(a, point, work), exactly(b, point, work)];
  if (left !== undefined && right !== undefined) return same(left, right);
  // A long decimal is near to every root; only a short one can be meant to be equal to it.
  const known = left ?? right;
  if (point === NOWHERE && known !== undefined && bitsOf(known.n) + bitsOf(known.d) > MOST_KNOWN_BITS) return false;
  const [nearLeft, nearRight] = [nearly(a, point, work), nearly(b, point, work)];
  return nearLeft && nearRight && withinError(nearLeft, nearRight);
}

function withinError(a: Approximation, b: Approximation): boolean | undefined {
  const error = 2 * (a.error + b.error);
  const size = Math.max(Math.abs(a.value), Math.abs(b.value));
  const difference = Math.abs(a.value - b.value);
  if (difference > error) return false;
  // With an error as large as this, anything would agree.
  return error <= 1e-10 * size || error <= 1e-12 ? true : undefined;
}

export function pointsFor(names: readonly string[], { work, seed }: Comparing): readonly Point[] {
  let state = seed >>> 0;
  const draw = (below: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  return Array.from({ length: POINTS }, (_, index) => {
    const coordinate = (name: string, variable: number): readonly [string, Rational] => {
      const sign = index >= POSITIVE_POINTS && (index + variable) % 2 === 0 ? -1 : 1;
      return [name, rational(BigInt(sign * (1 + draw(211))), BigInt(53 + draw(40)), work)];
    };
    return new Map(names.map(coordinate));
  });
}

export function variablesOf(node: Node, work: Work): readonly string[] {
  spend(work, 1);
  return node.kind === 'variable' ? [node.name] : below(node).flatMap((child) => variablesOf(child, work));
}

/** An infinity by itself, or a number of them. */
export function isInfinite(node: Node): boolean {
  if (node.kind === 'product')
    return node.items.some(isInfinite) && node.items.every((item) => item.kind === 'number' || isInfinite(item));
  return node.kind === 'constant' && node.name === 'infinity';
}

/** A text that is the same for expressions that differ only in the order of sums and products, or in how numbers are written. */
function writtenForm(node: Node, work: Work): string {
  const value = exactly(node, NOWHERE, work);
  if (value !== undefined) return `${value.n}/${value.d}`;
  spend(work, 1);
  const forms = below(node).map((child) => writtenForm(child, work));
  switch (node.kind) {
    case 'constant':
    case 'variable':
      return node.name;
    case 'sum':
    case 'product':
    case 'set':
    case 'union':
      return `${node.kind}(${forms.sort().join(' ')})`;
    case 'call':
      return `${node.name}(${forms.join(' ')})`;
    case 'tuple':
      return `${node.brackets}(${forms.join(' ')})`;
    case 'measured':
      return `${node.unit}(${forms.join(' ')})`;
    case 'relation':
      return `${node.signs.join('')}(${forms.join(' ')})`;
    case 'matrix':
      return `${node.rows.map((row) => row.length).join('+')}(${forms.join(' ')})`;
    case 'either-sign':
      return `±${node.sign}(${forms.join(' ')})`;
    default:
      return `${node.kind}(${forms.join(' ')})`;
  }
}
