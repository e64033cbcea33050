/**
 * What a grader may return, checked: a finite number, or a finite `value` with finite named `parts`.
 *
 * The result is a fresh plain object; anything else the grader put on its own is left behind. Nothing is rounded, clamped or
 * replaced: what is not a reward is an error, never a number.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Reward } from '../core/types.ts';
import { describeValue } from './describe.ts';

/** Parts are stored with every trajectory and become columns of reports. */
const MOST_PARTS = 256;

/** Throws GRADER_BAD_REWARD, saying what was returned. */
export function toReward(result: unknown): Reward {
  if (typeof result === 'number') return { value: finite(result, 'the grader returned') };
  if (typeof result !== 'object' || result === null || Array.isArray(result)) {
    throw badReward(`the grader returned ${describeValue(result)}, expected a number or { value, parts? }`);
  }
  if (!('value' in result)) throw badReward(`the grader returned ${describeValue(result)}, in which \`value\` is missing`);
  const value = finite(result.value, 'the grader returned an object whose `value` is');
  const parts = 'parts' in result ? result.parts : undefined;
  return parts === undefined ? { value } : { value, parts: toParts(parts) };
}

function toParts(parts: unknown): Readonly<Record<string, number>> {
  if (!isPlainObject(parts)) {
    throw badReward(`the grader returned \`parts\` that are ${describeValue(parts)}, expected an object of numbers`);
  }
  const entries = Object.entries(parts);
  if (entries.length > MOST_PARTS) throw badReward(`the grader returned ${entries.length} parts, expected at most ${MOST_PARTS}`);
  if (Object.hasOwn(parts, '__proto__'))
    throw badReward('the grader returned a part named "__proto__", expected an ordinary name');
  return Object.fromEntries(
    entries.map(([name, part]) => [name, finite(part, `the grader returned an object whose part ${describeValue(name)} is`)]),
  );
}

function finite(value: unknown, found: string): number {
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw badReward(`${found} ${describeValue(value)}, expected a finite number`);
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

function badReward(message: string): TrainyardError {
  return new TrainyardError('GRADER_BAD_REWARD', message, { hint: 'return a finite number, for example 1 or 0' });
}
