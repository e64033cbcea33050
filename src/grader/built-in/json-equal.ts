/** Whether two JSON values are equal, as far as a grader cares: numbers within a tolerance, lists in any order. The order of keys never counts. */
import type { Json } from '../../core/types.ts';

export interface JsonEquality {
  /** How far numbers may be apart, as a share of the expected one, or absolutely where that is below 1. Default 0. */
  readonly tolerance?: number;
  /** Whether lists are compared as bags: the same items, as often, in any order. Default false. */
  readonly anyOrder?: boolean;
  /** Whether objects may have more members than expected. Default false. */
  readonly moreMembers?: boolean;
}

export function jsonEqual(expected: Json, found: Json, how: JsonEquality = {}): boolean {
  if (typeof expected === 'number' && typeof found === 'number') {
    const most = (how.tolerance ?? 0) * Math.max(1, Math.abs(expected));
    return expected === found || Math.abs(expected - found) <= most;
  }
  if (isList(expected)) return isList(found) && listsEqual(expected, found, how);
  if (isObject(expected)) return isObject(found) && objectsEqual(expected, found, how);
  return expected === found;
}

export function isObject(value: Json): value is { readonly [key: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function isList(value: Json): value is readonly Json[] {
  return Array.isArray(value);
}

function objectsEqual(
  expected: { readonly [key: string]: Json },
  found: { readonly [key: string]: Json },
  how: JsonEquality,
): boolean {
  const keys = Object.keys(expected);
  if (!how.moreMembers && Object.keys(found).length !== keys.length) return false;
  return keys.every((key) => Object.hasOwn(found, key) && jsonEqual(expected[key]!, found[key]!, how));
}

function listsEqual(expected: readonly Json[], found: readonly Json[], how: JsonEquality): boolean {
  if (expected.length !== found.length) return false;
  if (!how.anyOrder) return expected.every((one, i) => jsonEqual(one, found[i]!, how));
  return mostPairs(expected.length, found.length, (e, f) => jsonEqual(expected[e]!, found[f]!, how)) === expected.length;
}

/**
 * How many of `left` things can be paired with different ones of `right` others. Taking the first that fits would not do: with a tolerance,
 * or with arguments that are a subset, it can take away the only one that fits another.
 */
export function mostPairs(left: number, right: number, fits: (left: number, right: number) => boolean): number {
  const fitting = Array.from({ length: left }, (_, l) => Array.from({ length: right }, (_, r) => r).filter((r) => fits(l, r)));
  const partner = new Map<number, number>();
  const place = (l: number, tried: Set<number>): boolean =>
    fitting[l]!.some((r) => {
      if (tried.has(r)) return false;
      tried.add(r);
      const other = partner.get(r);
      if (other !== undefined && !place(other, tried)) return false;
      partner.set(r, l);
      return true;
    });
  return Array.from({ length: left }, (_, l) => place(l, new Set())).filter(Boolean).length;
}
