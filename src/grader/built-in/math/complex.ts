/**
 * The value of an expression at a point with i as the imaginary unit: sums, products and whole powers of fractions, and roots of negative
 * squares. Exact, or undefined.
 */
import type { Point } from './evaluate.ts';
import type { Kind, Node } from './nodes.ts';
import { minus, ONE, over, plus, power, type Rational, same, times, ZERO } from './rational.ts';
import { readable, spend, type Work } from './work.ts';

export interface Complex {
  readonly re: Rational;
  readonly im: Rational;
}

const MOST_POWER = 64n;

/** Too long a number, or a division by zero, is not known. */
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
      return folded(node.items, { re: ZERO, im: ZERO }, added, point, work);
    case 'product':
      return folded(node.items, { re: ONE, im: ZERO }, multiplied, point, work);
    case 'power':
      return raised(node, point, work);
    case 'call':
      return node.name === 'abs' ? sizeOf(complex(node.of, point, work), work) : undefined;
    default:
      return undefined;
  }
}

function folded(
  items: readonly Node[],
  start: Complex,
  operation: (a: Complex, b: Complex, work: Work) => Complex,
  point: Point,
  work: Work,
): Complex | undefined {
  let total = start;
  for (const item of items) {
    const value = complex(item, point, work);
    if (value === undefined) return undefined;
    total = operation(total, value, work);
  }
  return total;
}

const added = (a: Complex, b: Complex, work: Work): Complex => ({ re: plus(a.re, b.re, work), im: plus(a.im, b.im, work) });

const multiplied = (a: Complex, b: Complex, work: Work): Complex => ({
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
  for (let i = 0n; i < times; i++) total = multiplied(total, below, work);
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
