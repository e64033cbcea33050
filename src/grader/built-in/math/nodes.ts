/**
 * What a written answer is, once it is read: an expression, or a list, tuple, set, relation or matrix of expressions.
 *
 * Subtraction and division are sums and products with a negative or inverse: fewer kinds, and fewer spellings of one thing.
 */
import { type Rational, whole } from './rational.ts';

export const FUNCTIONS = [
  'sin',
  'cos',
  'tan',
  'cot',
  'sec',
  'csc',
  'arcsin',
  'arccos',
  'arctan',
  'sinh',
  'cosh',
  'tanh',
  'ln',
  'log',
  'exp',
  'abs',
  'floor',
  'ceil',
  'factorial',
] as const;
export type FunctionName = (typeof FUNCTIONS)[number];

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
  switch (node.kind) {
    case 'number':
    case 'constant':
    case 'variable':
      return [];
    case 'sum':
    case 'product':
    case 'tuple':
    case 'set':
    case 'union':
    case 'relation':
      return node.items;
    case 'power':
      return [node.base, node.exponent];
    case 'matrix':
      return node.rows.flat();
    default:
      return [node.of];
  }
}

/** The same node over other ones, in the order of `below`. */
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
