/** What the values of flags are read as, and the settings they stand for; what they cannot be is said of the flag. */
import { InvalidArgumentError } from 'commander';
import { TrainyardError } from '../core/errors.ts';
import type { Limits } from '../core/types.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';

function refused(expected: string, text: string): InvalidArgumentError {
  return new InvalidArgumentError(`expected ${expected}, found ${JSON.stringify(text)}`);
}

export function number(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) throw refused('a number', text);
  return value;
}

const SECONDS = { s: 1, m: 60, h: 3600 } as const;

export function duration(text: string): number {
  const parsed = /^(\d+(?:\.\d+)?)([smh]?)$/.exec(text);
  if (parsed === null) throw refused('a time such as 90s, 10m or 2h', text);
  return Number(parsed[1]) * SECONDS[(parsed[2] || 's') as keyof typeof SECONDS];
}

/** One of these names; `words`: the list in words. */
export function oneOf(names: readonly string[], words = names.join(', ')): (text: string) => string {
  return (text) => {
    if (names.includes(text)) return text;
    throw refused(words, text);
  };
}

export function roles(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  if (names.some((name) => name === '')) throw new InvalidArgumentError('expected names separated by commas');
  return names;
}

export function natural(text: string): number {
  if (!/^\d{1,15}$/.test(text)) throw refused('a whole number, 0 or more', text);
  return Number(text);
}

function atMost(most: number, value: number): number {
  if (value > most) throw new InvalidArgumentError(`expected at most ${most}`);
  return value;
}

export function positive(text: string): number {
  const value = atMost(1_000_000, natural(text));
  if (value === 0) throw new InvalidArgumentError('expected at least 1');
  return value;
}

export function port(text: string): number {
  return atMost(65_535, natural(text));
}

/** From 0 to `most`; `what`: for the message. */
function upTo(most: number, what: string): (text: string) => number {
  return (text) => {
    const value = number(text);
    if (value < 0 || value > most) throw refused(`${what} from 0 to ${most}`, text);
    return value;
  };
}
export const temperature = upTo(2, 'a number');
export const share = upTo(1, 'a share');

export function groupSize(text: string): number {
  const value = positive(text);
  if (value < 2) throw new InvalidArgumentError('expected at least 2: a rollout is compared with the others of its group');
  return value;
}

export function entryGiven(entry: string | undefined, hint: string): string {
  if (entry !== undefined) return entry;
  throw new TrainyardError('USAGE', 'missing required argument: entry', { hint });
}

/** Flags that stand for a setting of another name. */
export interface LimitFlags {
  readonly turns?: number;
  /** Seconds. */
  readonly graderDeadline?: number;
}

export function withLimits<Flags extends LimitFlags>({
  turns,
  graderDeadline,
  ...flags
}: Flags): Omit<Flags, keyof LimitFlags> & { readonly limits?: Limits; readonly graderDeadlineMs?: number } {
  return {
    ...flags,
    ...(turns === undefined ? {} : { limits: { ...EVAL_DEFAULTS.limits, turns } }),
    ...(graderDeadline === undefined ? {} : { graderDeadlineMs: Math.round(1000 * graderDeadline) }),
  };
}
