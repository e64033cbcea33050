/**
 * The value of an expression at a point: exactly, as a fraction, where that is possible; else as a floating-point number with a bound of its
 * error, so that "equal" can mean "equal as far as the arithmetic can tell", whatever the size of the numbers.
 *
 * Undefined: not known in this way, or not defined there (a pole, the root of a negative number).
 */
import { CALLS, type FunctionName, type Kind, type Node } from './nodes.ts';
import {
  absolute,
  bitsOf,
  minus,
  ONE,
  over,
  plus,
  power,
  type Rational,
  same,
  times,
  toNumber,
  whole,
  ZERO,
} from './rational.ts';
import { readable, spend, type Work } from './work.ts';

export type Point = ReadonlyMap<string, Rational>;

export interface Approximation {
  readonly value: number;
  /** How far the true value may be from it. */
  readonly error: number;
}

const ULP = 2 ** -52;
/** What is smaller has lost digits, or is not there at all. */
const TINIEST = 1e-280;
/** A term that is smaller than this share of a sum is mostly rounded away: 10^20 + √2 and 10^20 + √3 look alike. */
const SMALLEST_SHARE = 2 ** -26;
/** Of a fraction that a floating-point number stands for well enough. */
const MOST_FRACTION_BITS = 112;
const MOST_FACTORIAL = 170;

/** Too long a fraction is not known exactly either. */
export function exactly(node: Node, point: Point, work: Work): Rational | undefined {
  return readable(() => exact(node, point, work));
}

function exact(node: Node, point: Point, work: Work): Rational | undefined {
  spend(work, 1);
  switch (node.kind) {
    case 'number':
      return node.value;
    case 'variable':
      return point.get(node.name);
    case 'sum':
      return folded(node.items, ZERO, exact, plus, point, work);
    case 'product':
      return folded(node.items, ONE, exact, times, point, work);
    case 'power':
      return exactPower(node, point, work);
    case 'percent': {
      const of = exact(node.of, point, work);
      return of && times(of, { n: 1n, d: 100n }, work);
    }
    case 'degree':
    case 'measured':
      return exact(node.of, point, work);
    case 'call':
      return exactCall(node, point, work);
    default:
      return undefined;
  }
}

/** The values of all items, put together; undefined where one is not known. */
function folded<T>(
  items: readonly Node[],
  start: T,
  evaluate: (node: Node, point: Point, work: Work) => T | undefined,
  operation: (a: T, b: T, work: Work) => T,
  point: Point,
  work: Work,
): T | undefined {
  let total = start;
  for (const item of items) {
    const value = evaluate(item, point, work);
    if (value === undefined) return undefined;
    total = operation(total, value, work);
  }
  return total;
}

function exactPower({ base, exponent }: Kind<'power'>, point: Point, work: Work): Rational | undefined {
  const below = exact(base, point, work);
  const above = below && exact(exponent, point, work);
  return below && above && power(below, above, work);
}

function exactCall({ name, of }: Kind<'call'>, point: Point, work: Work): Rational | undefined {
  const value = exact(of, point, work);
  if (value === undefined) return undefined;
  const down = value.n / value.d - (value.n < 0n && value.n % value.d !== 0n ? 1n : 0n);
  if (name === 'abs') return absolute(value);
  if (name === 'floor') return whole(down);
  if (name === 'ceil') return whole(value.d === 1n ? down : down + 1n);
  if (name !== 'factorial' || value.d !== 1n || value.n < 0n || value.n > MOST_FACTORIAL) return undefined;
  let product = 1n;
  for (let factor = 2n; factor <= value.n; factor++) product *= factor;
  spend(work, 1 + Number(value.n));
  return whole(product);
}

export function nearly(node: Node, point: Point, work: Work): Approximation | undefined {
  const found = approximate(node, point, work);
  if (found === undefined || !Number.isFinite(found.value) || !Number.isFinite(found.error)) return undefined;
  return Math.abs(found.value) < TINIEST && (found.value !== 0 || found.error !== 0) ? undefined : found;
}

function approximate(node: Node, point: Point, work: Work): Approximation | undefined {
  spend(work, 1);
  switch (node.kind) {
    case 'number':
      return bitsOf(node.value.n) + bitsOf(node.value.d) > MOST_FRACTION_BITS ? undefined : rounded(toNumber(node.value));
    case 'variable': {
      const value = point.get(node.name);
      return value && rounded(toNumber(value));
    }
    case 'constant':
      return node.name === 'infinity' ? undefined : rounded(node.name === 'pi' ? Math.PI : Math.E);
    case 'sum':
      return folded(node.items, { value: 0, error: 0 }, nearly, added, point, work);
    case 'product':
      return folded(node.items, { value: 1, error: 0 }, nearly, multiplied, point, work);
    case 'power':
      return approximatePower(node, point, work);
    case 'percent': {
      const of = nearly(node.of, point, work);
      return of && multiplied(of, rounded(0.01));
    }
    case 'degree':
    case 'measured':
      return nearly(node.of, point, work);
    case 'call': {
      const exact = exactly(node, point, work);
      if (exact !== undefined) return rounded(toNumber(exact));
      const of = nearly(node.of, point, work);
      return of && called(node.name, of);
    }
    default:
      return undefined;
  }
}

const rounded = (value: number): Approximation => ({ value, error: Math.abs(value) * ULP });

function added(a: Approximation, b: Approximation): Approximation {
  const value = a.value + b.value;
  const [small, large] = [Math.abs(a.value), Math.abs(b.value)].sort((one, other) => one - other) as [number, number];
  if (small !== 0 && small < SMALLEST_SHARE * large) return { value, error: Number.NaN };
  return { value, error: a.error + b.error + Math.abs(value) * ULP };
}

function multiplied(a: Approximation, b: Approximation): Approximation {
  const value = a.value * b.value;
  if (value === 0 && a.value !== 0 && b.value !== 0) return { value, error: Number.NaN };
  const error = Math.abs(a.value) * b.error + Math.abs(b.value) * a.error + a.error * b.error;
  return { value, error: error + Math.abs(value) * ULP };
}

function approximatePower({ base, exponent }: Kind<'power'>, point: Point, work: Work): Approximation | undefined {
  const below = nearly(base, point, work);
  const above = below && nearly(exponent, point, work);
  if (below === undefined || above === undefined) return undefined;
  const known = exactly(exponent, point, work);
  if (below.value === 0 && below.error === 0) return above.value > above.error ? { value: 0, error: 0 } : undefined;
  // So near to zero that its sign is not known, or whether it is a pole.
  if (Math.abs(below.value) <= 4 * below.error) return undefined;
  if (below.value < 0 && (known === undefined || known.d % 2n === 0n)) return undefined;
  const sign = below.value < 0 && known !== undefined && known.n % 2n !== 0n ? -1 : 1;
  const size = Math.abs(below.value);
  const value = sign * size ** above.value;
  if (value === 0) return undefined;
  const uncertain = known?.d === 1n ? 0 : above.error;
  const relative = (Math.abs(above.value) * below.error) / (size - below.error) + Math.abs(Math.log(size)) * uncertain;
  return { value, error: Math.abs(value) * (relative + 4 * ULP) };
}

function called(name: FunctionName, of: Approximation): Approximation | undefined {
  const [value, slope]: readonly [number, number] = CALLS[name](of.value);
  const isWhole =
    (name === 'floor' || name === 'ceil') && Math.floor(of.value - 4 * of.error) === Math.floor(of.value + 4 * of.error);
  if (isWhole) return { value, error: 0 };
  if (value === 0 && name === 'exp') return undefined;
  const error = 2 * slope * of.error + 4 * Math.abs(value) * ULP;
  return Number.isFinite(value) && Number.isFinite(error) ? { value, error } : undefined;
}

// ── with i as the imaginary unit ────────────────────────────────────────────────────────────────────────────────────────

interface Complex {
  readonly re: Rational;
  readonly im: Rational;
}

const MOST_POWER = 64n;

/**
 * Sums, products and whole powers of fractions, and roots of negative squares: exact, or undefined. Too long a number, or a division by zero,
 * is not known.
 */
export const complexly = (node: Node, point: Point, work: Work): Complex | undefined =>
  readable(() => complex(node, point, work));

export const sameComplexNumber = (a: Complex, b: Complex): boolean => same(a.re, b.re) && same(a.im, b.im);

function complex(node: Node, point: Point, work: Work): Complex | undefined {
  spend(work, 1);
  switch (node.kind) {
    case 'number':
      return { re: node.value, im: ZERO };
    case 'variable': {
      const value = node.name === 'i' ? ZERO : point.get(node.name);
      return value && { re: value, im: node.name === 'i' ? ONE : ZERO };
    }
    case 'sum':
      return folded(node.items, { re: ZERO, im: ZERO }, complex, complexSum, point, work);
    case 'product':
      return folded(node.items, { re: ONE, im: ZERO }, complex, complexProduct, point, work);
    case 'power':
      return raised(node, point, work);
    case 'call':
      return node.name === 'abs' ? sizeOf(complex(node.of, point, work), work) : undefined;
    default:
      return undefined;
  }
}

const complexSum = (a: Complex, b: Complex, work: Work): Complex => ({ re: plus(a.re, b.re, work), im: plus(a.im, b.im, work) });

const complexProduct = (a: Complex, b: Complex, work: Work): Complex => ({
  re: minus(times(a.re, b.re, work), times(a.im, b.im, work), work),
  im: plus(times(a.re, b.im, work), times(a.im, b.re, work), work),
});

const squareOf = ({ re, im }: Complex, work: Work): Rational => plus(times(re, re, work), times(im, im, work), work);

function inverseOf(of: Complex, work: Work): Complex {
  const square = squareOf(of, work);
  return { re: over(of.re, square, work), im: over({ n: -of.im.n, d: of.im.d }, square, work) };
}

function raised({ base, exponent }: Kind<'power'>, point: Point, work: Work): Complex | undefined {
  const below = complex(base, point, work);
  const above = below && complex(exponent, point, work);
  if (below === undefined || above === undefined || above.im.n !== 0n) return undefined;
  if (above.re.d !== 1n) return rootOf(below, above.re, work);
  const times = above.re.n < 0n ? -above.re.n : above.re.n;
  if (times > MOST_POWER) return undefined;
  let total: Complex = { re: ONE, im: ZERO };
  for (let i = 0n; i < times; i++) total = complexProduct(total, below, work);
  return above.re.n < 0n ? inverseOf(total, work) : total;
}

/** Of what is real; the square root of a negative one is imaginary. */
function rootOf(below: Complex, exponent: Rational, work: Work): Complex | undefined {
  if (below.im.n !== 0n) return undefined;
  const isImaginary = below.re.n < 0n && exponent.n === 1n && exponent.d === 2n;
  const root = power(isImaginary ? { n: -below.re.n, d: below.re.d } : below.re, exponent, work);
  return root && (isImaginary ? { re: ZERO, im: root } : { re: root, im: ZERO });
}

function sizeOf(of: Complex | undefined, work: Work): Complex | undefined {
  const size = of && power(squareOf(of, work), { n: 1n, d: 2n }, work);
  return size && { re: size, im: ZERO };
}
