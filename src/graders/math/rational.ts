/**
 * Exact fractions of bigints up to a size limit. Invariant: the denominator is positive and the fraction is in lowest terms.
 *
 * Reading and computing what a model wrote spends from one budget, so that no text takes long. One unit is a token, a node or a small
 * operation: at most a few microseconds. `Unreadable` means unsupported mathematics or too much of it; it never leaves the graders.
 */
export class Unreadable extends Error {}

const MOST_WORK = 40_000;
let left = 0;

/** Gives one comparison a shared budget. A module variable suffices, because everything here is synchronous. */
export function withinBudget<T>(compute: () => T, most = MOST_WORK): T {
  left = most;
  return compute();
}

export const budgetLeft = (): number => left;

export function spend(units: number): void {
  left -= units;
  if (left < 0) throw new Unreadable('too much to compute');
}

/** Returns undefined if `read` throws `Unreadable`. Other errors are bugs and pass through. */
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

/** Largest numerator or denominator, in bits: about 1200 decimal digits. */
const MOST_BITS = 4096;
/** Largest degree of a root that is taken exactly. */
const MOST_ROOT = 64n;

export const ZERO: Rational = { n: 0n, d: 1n };
export const ONE: Rational = { n: 1n, d: 1n };
export const whole = (n: bigint | number): Rational => ({ n: BigInt(n), d: 1n });

export const bitsOf = (n: bigint): number => n.toString(16).length * 4;
const abs = (n: bigint): bigint => (n < 0n ? -n : n);

export function rational(n: bigint, d: bigint): Rational {
  if (d === 0n) throw new Unreadable('a division by zero');
  const bits = Math.max(bitsOf(n), bitsOf(d));
  // A loose bound on the cost of the gcd, which may still bring the fraction below MOST_BITS.
  if (bits > 2 * MOST_BITS + 8) throw new Unreadable('a number that is too long');
  spend(1 + bits / 16);
  let a = abs(n);
  let b = abs(d);
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

/** Undefined if the power is irrational or too long. */
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
  const n = base.n ** BigInt(times);
  const d = base.d ** BigInt(times);
  return top >= 0n ? { n, d } : rational(d, n);
}

function exactRoot(base: Rational, root: bigint): Rational | undefined {
  if (root > MOST_ROOT || (base.n < 0n && root % 2n === 0n)) return undefined;
  const n = wholeRoot(abs(base.n), root);
  const d = wholeRoot(base.d, root);
  return n === undefined || d === undefined ? undefined : { n: base.n < 0n ? -n : n, d };
}

/** Newton's method from above; undefined if the root is not a whole number. */
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

/** Reads `12`, `.5` or `3.`, times ten to the exponent. Callers remove signs and separators first. */
export function fromDecimal(digits: string, exponent: number): Rational {
  const [left = '', right = ''] = digits.split('.');
  const places = right.length - exponent;
  if (left.length + right.length + Math.abs(places) > MOST_BITS / 4) throw new Unreadable('a number that is too long');
  const n = BigInt(`${left}${right}` || '0');
  return places >= 0 ? rational(n, 10n ** BigInt(places)) : whole(n * 10n ** BigInt(-places));
}

/** The exact value of a number's shortest decimal form: 0.1 is 1/10. */
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
