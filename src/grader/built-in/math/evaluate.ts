/**
 * The value of an expression at a point: exactly, as a fraction, where that is possible; else as a floating-point number with a bound of its
 * error, so that "equal" can mean "equal as far as the arithmetic can tell", whatever the size of the numbers.
 *
 * Undefined: not known in this way, or not defined there (a pole, the root of a negative number).
 */
import type { FunctionName, Kind, Node } from './nodes.ts';
import { absolute, bitsOf, ONE, plus, power, type Rational, times, toNumber, whole, ZERO } from './rational.ts';
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
      return folded(node.items, ZERO, plus, point, work);
    case 'product':
      return folded(node.items, ONE, times, point, work);
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

function folded(
  items: readonly Node[],
  start: Rational,
  operation: (a: Rational, b: Rational, work: Work) => Rational,
  point: Point,
  work: Work,
): Rational | undefined {
  let total = start;
  for (const item of items) {
    const value = exact(item, point, work);
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
      return combined(node.items, { value: 0, error: 0 }, added, point, work);
    case 'product':
      return combined(node.items, { value: 1, error: 0 }, multiplied, point, work);
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

function combined(
  items: readonly Node[],
  start: Approximation,
  operation: (a: Approximation, b: Approximation) => Approximation,
  point: Point,
  work: Work,
): Approximation | undefined {
  let total = start;
  for (const item of items) {
    const value = nearly(item, point, work);
    if (value === undefined) return undefined;
    total = operation(total, value);
  }
  return total;
}

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

/** Each with the size of its derivative. */
const CALLS: Readonly<Record<FunctionName, (x: number) => readonly [value: number, slope: number]>> = {
  sin: (x) => [Math.sin(x), 1],
  cos: (x) => [Math.cos(x), 1],
  tan: (x) => [Math.tan(x), 1 + Math.tan(x) ** 2],
  cot: (x) => [1 / Math.tan(x), 1 + Math.tan(x) ** -2],
  sec: (x) => [1 / Math.cos(x), Math.abs(Math.tan(x) / Math.cos(x))],
  csc: (x) => [1 / Math.sin(x), Math.abs(1 / Math.tan(x) / Math.sin(x))],
  arcsin: (x) => [Math.asin(x), 1 / Math.sqrt(1 - x * x)],
  arccos: (x) => [Math.acos(x), 1 / Math.sqrt(1 - x * x)],
  arctan: (x) => [Math.atan(x), 1],
  sinh: (x) => [Math.sinh(x), Math.cosh(x)],
  cosh: (x) => [Math.cosh(x), Math.abs(Math.sinh(x))],
  tanh: (x) => [Math.tanh(x), 1],
  ln: (x) => [Math.log(x), Math.abs(1 / x)],
  log: (x) => [Math.log10(x), Math.abs(1 / x)],
  exp: (x) => [Math.exp(x), Math.exp(x)],
  abs: (x) => [Math.abs(x), 1],
  floor: (x) => [Math.floor(x), Number.NaN],
  ceil: (x) => [Math.ceil(x), Number.NaN],
  factorial: () => [Number.NaN, 0],
};

function called(name: FunctionName, of: Approximation): Approximation | undefined {
  const [value, slope] = CALLS[name](of.value);
  const isWhole =
    (name === 'floor' || name === 'ceil') && Math.floor(of.value - 4 * of.error) === Math.floor(of.value + 4 * of.error);
  if (isWhole) return { value, error: 0 };
  if (value === 0 && name === 'exp') return undefined;
  const error = 2 * slope * of.error + 4 * Math.abs(value) * ULP;
  return Number.isFinite(value) && Number.isFinite(error) ? { value, error } : undefined;
}
