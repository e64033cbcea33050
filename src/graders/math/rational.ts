/**
 * Exact arithmetic for what people write with digits: fractions of whole numbers of any size up to a bound. Invariant: the denominator is
 * positive and the fraction is in lowest terms, so two are equal where their parts are.
 *
 * Everything that reads or computes what a model wrote spends from one budget, so that no text takes long: one unit is a token, a node or
 * a small operation, at most some microseconds. `Unreadable` is thrown where a text is not mathematics that can be compared here, or is too
 * much of it. It never leaves the graders.
 */
export class Unreadable extends Error {}

const MOST_WORK = 40_000;
let left = 0;

/** One comparison: whatever it reads and computes shares one budget. Everything here is synchronous, so there is only one at a time. */
export function withinBudget<T>(compute: () => T, most = MOST_WORK): T {
  left = most;
  return compute();
}

/** Below 0 where it was not enough. */
export const budgetLeft = (): number => left;

export function spend(units: number): void {
  left -= units;
  if (left < 0) throw new Unreadable('too much to compute');
}

/** What `read` gives; undefined where it is unreadable. Other errors are faults of ours and pass. */
export function readable<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (thrown) {
    if (thrown instanceof Unreadable) return undefined;
    throw thrown;
  }
}

export interface Rational {
  readonly n: bigint;
  readonly d: bigint;
}

/** Of a numerator or denominator. Some 1200 decimal digits. */
const MOST_BITS = 4096;
/** Of a root that is taken exactly. */
const MOST_ROOT = 64n;

export const ZERO: Rational = { n: 0n, d: 1n };
export const ONE: Rational = { n: 1n, d: 1n };
export const whole = (n: bigint | number): Rational => ({ n: BigInt(n), d: 1n });

export const bitsOf = (n: bigint): number => n.toString(16).length * 4;
const abs = (n: bigint): bigint => (n < 0n ? -n : n);

export function rational(n: bigint, d: bigint): Rational {
  if (d === 0n) throw new Unreadable('a division by zero');
  const bits = Math.max(bitsOf(n), bitsOf(d));
  // Not exact: the greatest common divisor is what costs, and it may still bring a long fraction below the bound.
  if (bits > 2 * MOST_BITS + 8) throw new Unreadable('a number that is too long');
  spend(1 + bits / 16);
  let [a, b] = [abs(n), abs(d)];
  while (b > 0n) [a, b] = [b, a % b];
  const sign = d < 0n ? -1n : 1n;
  const lowest = { n: (sign * n) / a, d: (sign * d) / a };
  if (bits > MOST_BITS && Math.max(bitsOf(lowest.n), bitsOf(lowest.d)) > MOST_BITS)
    throw new Unreadable('a number that is too long');
  return lowest;
}

export const plus = (a: Rational, b: Rational): Rational => rational(a.n * b.d + b.n * a.d, a.d * b.d);
export const times = (a: Rational, b: Rational): Rational => rational(a.n * b.n, a.d * b.d);
export const over = (a: Rational, b: Rational): Rational => rational(a.n * b.d, a.d * b.n);
export const minus = (a: Rational, b: Rational): Rational => rational(a.n * b.d - b.n * a.d, a.d * b.d);
export const same = (a: Rational, b: Rational): boolean => a.n === b.n && a.d === b.d;
export const absolute = ({ n, d }: Rational): Rational => ({ n: abs(n), d });
export const atMost = (a: Rational, b: Rational): boolean => a.n * b.d <= b.n * a.d;

/** Undefined where the power is not a fraction, or too long to be written out. */
export function power(base: Rational, exponent: Rational): Rational | undefined {
  const { n: top, d: root } = exponent;
  if (root !== 1n) {
    const rooted = exactRoot(base, root);
    return rooted && power(rooted, whole(top));
  }
  if (base.n === 0n) return top > 0n ? ZERO : undefined;
  if (base.d === 1n && abs(base.n) === 1n) return base.n === 1n || top % 2n === 0n ? ONE : base;
  if (abs(top) > BigInt(MOST_BITS)) return undefined;
  const times = Number(abs(top));
  const bits = Math.max(bitsOf(base.n), bitsOf(base.d)) * times;
  if (bits > MOST_BITS) return undefined;
  spend(1 + bits / 16);
  const [n, d] = [base.n ** BigInt(times), base.d ** BigInt(times)];
  return top >= 0n ? { n, d } : rational(d, n);
}

function exactRoot(base: Rational, root: bigint): Rational | undefined {
  if (root > MOST_ROOT || (base.n < 0n && root % 2n === 0n)) return undefined;
  const n = wholeRoot(abs(base.n), root);
  const d = wholeRoot(base.d, root);
  return n === undefined || d === undefined ? undefined : { n: base.n < 0n ? -n : n, d };
}

/** By Newton's method from above; undefined where it is no whole number. */
function wholeRoot(n: bigint, root: bigint): bigint | undefined {
  if (n < 2n) return n;
  const bits = bitsOf(n);
  let guess = 1n << (BigInt(bits) / root + 1n);
  for (;;) {
    spend(1 + bits / 16);
    const next = ((root - 1n) * guess + n / guess ** (root - 1n)) / root;
    if (next >= guess) return guess ** root === n ? guess : undefined;
    guess = next;
  }
}

/** `12`, `.5`, `3.`, with an exponent of ten. Digits only: signs and separators are the reader's business. */
export function fromDecimal(digits: string, exponent: number): Rational {
  const [left = '', right = ''] = digits.split('.');
  const places = right.length - exponent;
  if (left.length + right.length + Math.abs(places) > MOST_BITS / 4) throw new Unreadable('a number that is too long');
  const n = BigInt(`${left}${right}` || '0');
  return places >= 0 ? rational(n, 10n ** BigInt(places)) : whole(n * 10n ** BigInt(-places));
}

/** The exact value of a finite number as it is written in decimal. */
export function fromNumber(value: number): Rational {
  const [digits = '0', exponent = '0'] = String(Math.abs(value)).split('e');
  const size = fromDecimal(digits, Number(exponent));
  return value < 0 ? { n: -size.n, d: size.d } : size;
}

export function toNumber({ n, d }: Rational): number {
  const extra = BigInt(Math.max(0, Math.max(bitsOf(n), bitsOf(d)) - 1000));
  if (extra === 0n) return Number(n) / Number(d);
  return d >> extra === 0n ? (n < 0n ? -Infinity : Infinity) : Number(n >> extra) / Number(d >> extra);
}
