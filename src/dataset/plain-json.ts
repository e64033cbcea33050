/** Whether a value is JSON that is kept exactly: rows given as values may hold anything, and JSON text may hold numbers that no number holds. */
import { MAX_NESTING } from '../core/json.ts';
import { TOO_LARGE } from './rows.ts';

/** What is wrong, with its path; undefined where nothing is. A cycle is found as too deep. */
export function jsonProblem(value: unknown, path: string, depth = 0): string | undefined {
  if (depth > MAX_NESTING) return `${path.slice(0, 80)}: nested deeper than ${MAX_NESTING} levels`;
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return undefined;
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) return `${path}: expected a finite number, found ${value}`;
    return Number.isInteger(value) && !Number.isSafeInteger(value) ? `${path}: ${TOO_LARGE}` : undefined;
  }
  if (typeof value !== 'object') return `${path}: expected JSON, found ${typeof value}`;
  if (!Array.isArray(value) && !isPlain(value)) return `${path}: expected JSON, found a ${value.constructor?.name ?? 'value'}`;
  for (const [key, item] of Object.entries(value)) {
    const problem = jsonProblem(item, `${path}.${key.slice(0, 40)}`, depth + 1);
    if (problem !== undefined) return problem;
  }
  return undefined;
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
