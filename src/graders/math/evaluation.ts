/**
 * The syntax tree of an answer, and its value at a point: exact, as a complex number of fractions, if possible; else floating-point with an
 * error bound, so that "equal" means "equal within the error" at any magnitude. Subtraction and division are sums and products with a
 * negative or an inverse. Values are undefined if unknown or nonexistent (a pole, the logarithm of a negative number).
 */
import {
  absolute,
  bitsOf,
  minus,
  ONE,
  over,
  plus,
  type Rational,
  power as rationalPower,
  readable,
  spend,
  times,
  toNumber,
  whole,
  ZERO,
} from './rational.ts';

/** The functions: each returns its value and the absolute value of its derivative. */
export const CALLS = {
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
} satisfies Readonly<Record<string, (x: number) => readonly [value: number, slope: number]>>;
export type FunctionName = keyof typeof CALLS;

export type RelationSign = '=' | '≈' | '≠' | '<' | '≤' | '>' | '≥';

export type Node =
  | { readonly kind: 'number'; readonly value: Rational }
  | { readonly kind: 'constant'; readonly name: 'pi' | 'e' | 'infinity' }
  | { readonly kind: 'variable'; readonly name: string }
  | { readonly kind: 'sum' | 'product'; readonly items: readonly Node[] }
  | { readonly kind: 'power'; readonly base: Node; readonly exponent: Node }
  | { readonly kind: 'call'; readonly name: FunctionName; readonly of: Node }
  /** ±, or ∓ if `sign` is -1. */
  | { readonly kind: 'either-sign'; readonly sign: 1 | -1; readonly of: Node }
  | { readonly kind: 'percent' | 'degree'; readonly of: Node }
  | { readonly kind: 'measured'; readonly of: Node; readonly unit: string }
  /** Ordered: a pair or an interval with its brackets. A ratio has the brackets `::`. */
  | { readonly kind: 'tuple'; readonly brackets: string; readonly items: readonly Node[] }
  /** Unordered. A list without brackets is a set, too. */
  | { readonly kind: 'set' | 'union'; readonly items: readonly Node[] }
  | { readonly kind: 'relation'; readonly signs: readonly RelationSign[]; readonly items: readonly Node[] }
  | { readonly kind: 'matrix'; readonly rows: readonly (readonly Node[])[] };

export type Kind<K extends Node['kind']> = Extract<Node, { readonly kind: K }>;

export const number = (value: Rational): Node => ({ kind: 'number', value });
const MINUS_ONE = number(whole(-1));

export const sum = (items: readonly Node[]): Node => (items.length === 1 ? items[0]! : { kind: 'sum', items });
export const product = (items: readonly Node[]): Node => (items.length === 1 ? items[0]! : { kind: 'product', items });
export const negative = (of: Node): Node =>
  of.kind === 'number' ? number({ n: -of.value.n, d: of.value.d }) : { kind: 'product', items: [MINUS_ONE, of] };
export const isMinusOne = (node: Node): boolean => node.kind === 'number' && node.value.n === -1n && node.value.d === 1n;
export const power = (base: Node, exponent: Node): Node => ({ kind: 'power', base, exponent });
export const inverse = (base: Node): Node => power(base, MINUS_ONE);
export const root = (base: Node, degree: Node = number(whole(2))): Node => power(base, inverse(degree));
export const call = (name: FunctionName, of: Node): Node => ({ kind: 'call', name, of });

export function below(node: Node): readonly Node[] {
  const found: Node[] = [];
  rebuilt(node, (child) => {
    found.push(child);
    return child;
  });
  return found;
}

export function rebuilt(node: Node, change: (child: Node) => Node): Node {
  if ('items' in node) return { ...node, items: node.items.map(change) };
  if ('of' in node) return { ...node, of: change(node.of) };
  if (node.kind === 'power') return { ...node, base: change(node.base), exponent: change(node.exponent) };
  return node.kind === 'matrix' ? { ...node, rows: node.rows.map((row) => row.map(change)) } : node;
}

export type Point = ReadonlyMap<string, Rational>;

/** A number system to evaluate in. Undefined means unknown. */
interface Arithmetic<T> {
  readonly number: (value: Rational) => T | undefined;
  /** A constant, or a variable without a value at the point. */
  readonly named: (name: string) => T | undefined;
  readonly plus: (a: T, b: T) => T;
  readonly times: (a: T, b: T) => T;
  readonly power: (base: T, node: Kind<'power'>, point: Point) => T | undefined;
  readonly call: (node: Kind<'call'>, point: Point) => T | undefined;
  readonly isKnown: (value: T) => boolean;
}

function evaluate<T>(by: Arithmetic<T>, node: Node, point: Point): T | undefined {
  spend(1);
  const value = evaluated(by, node, point);
  return value !== undefined && by.isKnown(value) ? value : undefined;
}

function evaluated<T>(by: Arithmetic<T>, node: Node, point: Point): T | undefined {
  const at = (child: Node) => evaluate(by, child, point);
  switch (node.kind) {
    case 'number':
      return by.number(node.value);
    case 'constant':
      return by.named(node.name);
    case 'variable': {
      const value = point.get(node.name);
      return value === undefined ? by.named(node.name) : by.number(value);
    }
    case 'sum':
      return folded(node.items, at, by.plus);
    case 'product':
      return folded(node.items, at, by.times);
    case 'percent':
      return folded([node.of, HUNDREDTH], at, by.times);
    case 'degree':
    case 'measured':
      return at(node.of);
    case 'power': {
      const base = at(node.base);
      return base && by.power(base, node, point);
    }
    case 'call':
      return by.call(node, point);
    default:
      return undefined;
  }
}

function folded<T>(items: readonly Node[], at: (node: Node) => T | undefined, operation: (a: T, b: T) => T): T | undefined {
  let total: T | undefined;
  for (const item of items) {
    const value = at(item);
    if (value === undefined) return undefined;
    total = total === undefined ? value : operation(total, value);
  }
  return total;
}

const HUNDREDTH = number({ n: 1n, d: 100n });

export interface Complex {
  readonly re: Rational;
  readonly im: Rational;
}

const MOST_POWER = 64n;
const MOST_FACTORIAL = 170;
const HALF: Rational = { n: 1n, d: 2n };
const real = (re: Rational): Complex => ({ re, im: ZERO });
const isReal = ({ im }: Complex) => im.n === 0n;

const EXACT: Arithmetic<Complex> = {
  number: real,
  named: (name) => (name === 'i' ? { re: ZERO, im: ONE } : undefined),
  plus: (a, b) => ({ re: plus(a.re, b.re), im: isReal(a) && isReal(b) ? ZERO : plus(a.im, b.im) }),
  times: (a, b) => {
    if (isReal(a) && isReal(b)) return real(times(a.re, b.re));
    return { re: minus(times(a.re, b.re), times(a.im, b.im)), im: plus(times(a.re, b.im), times(a.im, b.re)) };
  },
  power: (base, node, point) => {
    const exponent = evaluate(EXACT, node.exponent, point);
    return exponent && isReal(exponent) ? exactPower(base, exponent.re) : undefined;
  },
  call: (node, point) => {
    const of = evaluate(EXACT, node.of, point);
    return of && exactCall(node.name, of);
  },
  isKnown: () => true,
};

/** Also undefined if the value is not real. */
export function exactly(node: Node, point: Point): Rational | undefined {
  const value = complexly(node, point);
  return value && isReal(value) ? value.re : undefined;
}

/** Treats i as the imaginary unit, unless the point gives it a value. Undefined if a fraction becomes too long. */
export const complexly = (node: Node, point: Point): Complex | undefined => readable(() => evaluate(EXACT, node, point));

/** Complex bases take whole exponents only. The square root of a negative number is imaginary. */
function exactPower(base: Complex, exponent: Rational): Complex | undefined {
  if (isReal(base)) {
    const isImaginary = base.re.n < 0n && exponent.n === 1n && exponent.d === 2n;
    const found = rationalPower(isImaginary ? { n: -base.re.n, d: base.re.d } : base.re, exponent);
    return found && (isImaginary ? { re: ZERO, im: found } : real(found));
  }
  const size = exponent.n < 0n ? -exponent.n : exponent.n;
  if (exponent.d !== 1n || size > MOST_POWER) return undefined;
  let total = real(ONE);
  for (let i = 0n; i < size; i++) total = EXACT.times(total, base);
  if (exponent.n >= 0n) return total;
  const square = squareOf(total);
  return { re: over(total.re, square), im: over({ n: -total.im.n, d: total.im.d }, square) };
}

const squareOf = ({ re, im }: Complex) => plus(times(re, re), times(im, im));

function exactCall(name: FunctionName, of: Complex): Complex | undefined {
  if (name === 'abs') {
    const size = isReal(of) ? absolute(of.re) : rationalPower(squareOf(of), HALF);
    return size && real(size);
  }
  if (!isReal(of)) return undefined;
  const { n, d } = of.re;
  const down = n / d - (n < 0n && n % d !== 0n ? 1n : 0n);
  if (name === 'floor') return real(whole(down));
  if (name === 'ceil') return real(whole(d === 1n ? down : down + 1n));
  if (name !== 'factorial' || d !== 1n || n < 0n || n > MOST_FACTORIAL) return undefined;
  let total = 1n;
  for (let factor = 2n; factor <= n; factor++) total *= factor;
  spend(1 + Number(n));
  return real(whole(total));
}

export interface Approximation {
  readonly value: number;
  /** Bound on the distance from the true value. */
  readonly error: number;
}

const ULP = 2 ** -52;
/** Smaller magnitudes may have lost digits or underflowed. */
const TINIEST = 1e-280;
/** A term below this share of a sum is mostly rounded away: 10^20 + √2 and 10^20 + √3 look alike. */
const SMALLEST_SHARE = 2 ** -26;
/** Total bits of the largest fraction that converts accurately to floating point. */
const MOST_FRACTION_BITS = 112;
const CONSTANTS: ReadonlyMap<string, number> = new Map([
  ['pi', Math.PI],
  ['e', Math.E],
]);
const UNKNOWN: Approximation = { value: Number.NaN, error: Number.NaN };

const rounded = (value: number): Approximation => ({ value, error: Math.abs(value) * ULP });

const NEAR: Arithmetic<Approximation> = {
  number: (value) => (bitsOf(value.n) + bitsOf(value.d) > MOST_FRACTION_BITS ? undefined : rounded(toNumber(value))),
  named: (name) => rounded(CONSTANTS.get(name) ?? Number.NaN),
  plus: (a, b) => {
    const [small, large] = [Math.abs(a.value), Math.abs(b.value)].sort((one, other) => one - other) as [number, number];
    if (small !== 0 && small < SMALLEST_SHARE * large) return UNKNOWN;
    const value = a.value + b.value;
    return { value, error: a.error + b.error + Math.abs(value) * ULP };
  },
  times: (a, b) => {
    const value = a.value * b.value;
    if (value === 0 && a.value !== 0 && b.value !== 0) return UNKNOWN;
    const error = Math.abs(a.value) * b.error + Math.abs(b.value) * a.error + a.error * b.error;
    return { value, error: error + Math.abs(value) * ULP };
  },
  power: (base, node, point) => {
    const exponent = nearly(node.exponent, point);
    return exponent && nearPower(base, exponent, exactly(node.exponent, point));
  },
  call: (node, point) => {
    const known = exactly(node, point);
    if (known !== undefined) return rounded(toNumber(known));
    const of = nearly(node.of, point);
    return of && nearCall(node.name, of);
  },
  isKnown: ({ value, error }) =>
    Number.isFinite(value) && Number.isFinite(error) && (Math.abs(value) >= TINIEST || (value === 0 && error === 0)),
};

export const nearly = (node: Node, point: Point): Approximation | undefined => evaluate(NEAR, node, point);

/** `known`: the exact exponent, if there is one. */
function nearPower(base: Approximation, exponent: Approximation, known: Rational | undefined): Approximation | undefined {
  if (base.value === 0 && base.error === 0) return exponent.value > exponent.error ? { value: 0, error: 0 } : undefined;
  // Too close to zero to know the sign, or whether there is a pole.
  if (Math.abs(base.value) <= 4 * base.error) return undefined;
  if (base.value < 0 && (known === undefined || known.d % 2n === 0n)) return undefined;
  const sign = base.value < 0 && known !== undefined && known.n % 2n !== 0n ? -1 : 1;
  const size = Math.abs(base.value);
  const value = sign * size ** exponent.value;
  if (value === 0) return undefined;
  const uncertain = known?.d === 1n ? 0 : exponent.error;
  const relative = (Math.abs(exponent.value) * base.error) / (size - base.error) + Math.abs(Math.log(size)) * uncertain;
  return { value, error: Math.abs(value) * (relative + 4 * ULP) };
}

function nearCall(name: FunctionName, of: Approximation): Approximation | undefined {
  const [value, slope]: readonly [number, number] = CALLS[name](of.value);
  const isStep = name === 'floor' || name === 'ceil';
  if (isStep && Math.floor(of.value - 4 * of.error) === Math.floor(of.value + 4 * of.error)) return { value, error: 0 };
  if (value === 0 && name === 'exp') return undefined;
  return { value, error: 2 * slope * of.error + 4 * Math.abs(value) * ULP };
}
