/**
 * What a judge replied, read strictly: JSON with the check that it was given and a finite number for every score. A number outside of the
 * scale is moved to its end and counted; anything else is no verdict.
 *
 * No message quotes the reply: a judge that was shown the answer may repeat it, and messages are logged.
 */

import { isObject } from '../built-in/json-equal.ts';
import { jsonInText } from '../built-in/json-in-text.ts';
import type { JudgedBy } from './question.ts';

export interface Verdict {
  /** One for each criterion, or the only one. */
  readonly scores: readonly number[];
  /** How many of them were outside of the scale. */
  readonly clamped: number;
}

/** The verdict, or what is wrong with it. */
export function verdictIn(reply: string, { scale: [low, high], criteria }: JudgedBy, check: string): Verdict | string {
  const said = jsonInText(reply)?.value;
  if (said === undefined || !isObject(said)) return 'its reply is no JSON object';
  if (said['check'] !== check) return 'its verdict does not repeat the check it was given, as if it followed somebody else';
  const { scores } = said;
  // Without criteria the score stands in the verdict itself.
  const given = criteria.length === 0 ? said : scores !== undefined && isObject(scores) ? scores : {};
  const names = criteria.length === 0 ? ['score'] : criteria.map(({ name }) => name);
  const found = names.map((name) => (Object.hasOwn(given, name) ? given[name] : undefined));
  const bad = found.findIndex((score) => typeof score !== 'number' || !Number.isFinite(score));
  if (bad !== -1) return `its ${JSON.stringify(names[bad])} is ${kindOf(found[bad])}, expected a number`;
  const numbers = found as readonly number[];
  const kept = numbers.map((score) => Math.min(high, Math.max(low, score)));
  return { scores: kept, clamped: kept.filter((score, i) => score !== numbers[i]).length };
}

function kindOf(value: unknown): string {
  if (value === undefined) return 'missing';
  if (typeof value === 'number') return 'not finite';
  return value === null ? 'null' : typeof value === 'string' ? 'a text' : `a ${typeof value}`;
}
