/** What graders of right and wrong return, and the check of the options that they are made with. */
import { checkOptionNames } from '../option-names.ts';
import type { ReadSaid } from './said.ts';

export interface Verdict {
  readonly value: number;
  readonly success: boolean;
}

export const verdict = (right: boolean): Verdict => ({ value: right ? 1 : 0, success: right });

/** What an option must be; `undefined` is always allowed. */
type Kind = 'boolean' | 'function' | 'amount' | readonly string[] | 'texts';

const EXPECTED: Readonly<Record<Extract<Kind, string>, string>> = {
  boolean: 'true or false',
  function: 'a function that returns the text to grade',
  amount: 'a finite number from 0 up',
  texts: 'a list of texts',
};

/** Throws GRADER_INVALID with everything that is wrong. */
export function checkOptions(grader: string, given: object, kinds: Readonly<Record<string, Kind>>): void {
  const faults = (): readonly string[] =>
    Object.entries(given).flatMap(([name, value]) => {
      const kind = Object.hasOwn(kinds, name) ? kinds[name] : undefined;
      if (kind === undefined || value === undefined || fits(value, kind)) return [];
      const expected = typeof kind === 'string' ? EXPECTED[kind] : kind.map((one) => `'${one}'`).join(' or ');
      return [`${name} is ${String(value)}, expected ${expected}`];
    });
  checkOptionNames(grader, given, Object.keys(kinds), { faults });
}

function fits(value: unknown, kind: Kind): boolean {
  if (kind === 'amount') return typeof value === 'number' && Number.isFinite(value) && value >= 0;
  if (kind === 'texts') return Array.isArray(value) && value.length > 0 && value.every((text) => typeof text === 'string');
  return typeof kind === 'string' ? typeof value === kind : (kind as readonly unknown[]).includes(value);
}

/** Every grader of texts may be told to read something else than the final answer. */
export interface TextOptions {
  /** Reads the text to grade; absent: the workflow's output, else the last message of the assistant. */
  readonly of?: ReadSaid;
}
