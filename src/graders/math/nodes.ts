/**
 * What a written answer is, once it is read: an expression, or a list, tuple, set, relation or matrix of expressions.
 *
 * Subtraction and division are sums and products with a negative or inverse: fewer kinds, and fewer spellings of one thing.
 */
import { type Rational, whole } from './rational.ts';

/** What functions give, each with the size of its derivative. */
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
  /** Both signs at once; `sign` says which of them comes first. */
  | { readonly kind: 'either-sign'; readonly sign: 1 | -1; readonly of: Node }
  | { readonly kind: 'percent' | 'degree'; readonly of: Node }
  | { readonly kind: 'measured'; readonly of: Node; readonly unit: string }
  /** In order, with the brackets around it: ordered pairs and intervals. A ratio has colons. */
  | { readonly kind: 'tuple'; readonly brackets: string; readonly items: readonly Node[] }
  /** In no order; a list without brackets too. */
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
export const inverse = (base: Node): Node => ({ kind: 'power', base, exponent: MINUS_ONE });
export const root = (base: Node, degree: Node = number(whole(2))): Node => ({ kind: 'power', base, exponent: inverse(degree) });
export const call = (name: FunctionName, of: Node): Node => ({ kind: 'call', name, of });

/** The nodes directly below. */
export function below(node: Node): readonly Node[] {
  const found: Node[] = [];
  rebuilt(node, (child) => {
    found.push(child);
    return child;
  });
  return found;
}

/** The same node over other ones. */
export function rebuilt(node: Node, change: (child: Node) => Node): Node {
  switch (node.kind) {
    case 'number':
    case 'constant':
    case 'variable':
      return node;
    case 'sum':
    case 'product':
    case 'tuple':
    case 'set':
    case 'union':
    case 'relation':
      return { ...node, items: node.items.map(change) };
    case 'power':
      return { ...node, base: change(node.base), exponent: change(node.exponent) };
    case 'matrix':
      return { ...node, rows: node.rows.map((row) => row.map(change)) };
    default:
      return { ...node, of: change(node.of) };
  }
}
