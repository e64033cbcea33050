/**
 * What a row of the table of settings is made of: the kind of its value, which says what it accepts, how a text of the command line becomes one and
 * the words for both; and what else there is to say about a setting. Kinds are zod's schemas in small, because `trainyard --help` must not wait for a
 * library to load, and because a text, a config file and TypeScript shall be told the same. Knows no setting.
 */
import type { Entry } from '../rollout/discovery.ts';
import { isDatabaseUrl, STORE_URL } from '../store/url.ts';
import type { TaskSource } from '../tasks/rows.ts';
import type { EngineName, LossName, Price } from './settings.ts';

export interface Kind<T> {
  /** Ends `expected …`. */
  readonly expected: string;
  accepts(value: unknown): boolean;
  /** In help: `<n>`. */
  readonly placeholder: string;
  /** The value of a text, or undefined. Without it a text is its own value. */
  read?(text: string): unknown;
  /** Ends `expected …` for a text that cannot be read, if that is not `expected`. */
  readonly textForm?: string;
  /** How a value is shown, if not by `String`. */
  show?(value: T): string;
  readonly choices?: readonly string[];
  /** It may hold a password: no message repeats it, so that commander must not refuse it. */
  readonly isSecret?: true;
  /** A path, which is relative to what says it; or also a value in its place. */
  readonly isPath?: true | 'or value';
  /** Only for the type. */
  readonly type?: T;
}

export function orNone<T>(kind: Kind<T>): Kind<T | undefined> {
  return { ...(kind as Kind<T | undefined>), accepts: (value) => value === undefined || kind.accepts(value) };
}

/** `why`: reason for the bounds. */
export function whole(least: number, most = Number.MAX_SAFE_INTEGER, why = ''): Kind<number> {
  const bounds = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
  return {
    expected: `a whole number ${bounds}${why}`,
    accepts: (value) => Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most,
    placeholder: '<n>',
    read: (text) => (/^\d{1,15}$/.test(text) ? Number(text) : undefined),
  };
}

export function decimal(expected: string, isWithin: (value: number) => boolean): Kind<number> {
  return {
    expected,
    accepts: (value) => Number.isFinite(value) && isWithin(value as number),
    placeholder: '<x>',
    read: numberIn,
  };
}

function numberIn(text: string): number | undefined {
  const value = Number(text);
  return text.trim() === '' || !Number.isFinite(value) ? undefined : value;
}

const SECONDS = { s: 1, m: 60, h: 3600 } as const;
const TIME = 'a time such as 90s, 10m or 2h';

function secondsIn(text: string): number | undefined {
  const parsed = /^(\d+(?:\.\d+)?)([smh]?)$/.exec(text);
  return parsed === null ? undefined : Number(parsed[1]) * SECONDS[(parsed[2] || 's') as keyof typeof SECONDS];
}

export const seconds: Kind<number> = {
  ...decimal('seconds, a number above 0', (value) => value > 0),
  placeholder: '<time>',
  read: secondsIn,
  textForm: TIME,
  show: (value) => `${value}s`,
};

/** Longer timers fire at once. */
const LONGEST_MS = 2 ** 31 - 1;
export const milliseconds: Kind<number> = {
  ...seconds,
  expected: `milliseconds, a whole number from 1 to ${LONGEST_MS}`,
  accepts: whole(1, LONGEST_MS).accepts,
  read: (text) => Math.round(1000 * (secondsIn(text) ?? Number.NaN)) || undefined,
  show: (value) => `${value / 1000}s`,
};

export function oneOf<const T extends string>(choices: readonly T[], placeholder = '<name>'): Kind<T> {
  const expected = choices.join(', ').replace(/, ([^,]*)$/, ' or $1');
  return { expected, accepts: (value) => choices.includes(value as T), placeholder, choices };
}

export function text(placeholder: string, expected = 'a text'): Kind<string> {
  return { expected, accepts: (value) => typeof value === 'string' && value !== '', placeholder };
}

export function path(placeholder = '<dir>'): Kind<string> {
  return { ...text(placeholder, 'a path'), isPath: true };
}

/** Only this value. */
export function only<const T extends string | true>(value: T, expected: string, placeholder: string): Kind<T> {
  const read = (given: string): unknown => (given === String(value) ? value : undefined);
  return { expected, accepts: (given) => given === value, placeholder, read };
}

export const url: Kind<string> = {
  ...text('<url>', 'an address that begins with http:// or https://'),
  isSecret: true,
  accepts: (value) => typeof value === 'string' && /^https?:$/.test(URL.parse(value)?.protocol ?? ''),
};

export const database: Kind<string> = {
  ...text('<url>', STORE_URL.replace(/^expected /, '')),
  isSecret: true,
  accepts: (value) => typeof value === 'string' && isDatabaseUrl(value),
};

export const variable: Kind<string> = {
  ...text('<name>', 'the name of an environment variable'),
  accepts: (value) => typeof value === 'string' && /^[A-Za-z_]\w*$/.test(value),
};

export const names: Kind<readonly string[]> = {
  expected: 'names, one or more',
  accepts: (value) => Array.isArray(value) && value.length > 0 && value.every((name) => typeof name === 'string' && name !== ''),
  placeholder: '<roles>',
  read: (given) => given.split(',').map((name) => name.trim()),
  textForm: 'names separated by commas',
};

export const prices: Kind<Price> = {
  expected: 'two prices, of prompt and of sampled tokens, such as 0.15,0.60',
  accepts: (value) => Array.isArray(value) && value.length === 2 && value.every((price) => Number.isFinite(price) && price >= 0),
  placeholder: '<in,out>',
  read: (given) => given.split(',').map(numberIn),
};

export const taskSource: Kind<TaskSource> = {
  expected: 'a path, or a list or iterable of rows',
  accepts: (value) => (typeof value === 'string' ? value !== '' : isIterable(value)),
  placeholder: '<file>',
  isPath: 'or value',
};

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value);
}

export const entryKind: Kind<string | Entry> = {
  expected: 'a path or { workflow, grader? }',
  accepts: (value) =>
    typeof value === 'string' ? value !== '' : typeof value === 'object' && value !== null && 'workflow' in value,
  placeholder: '',
  isPath: 'or value',
};

export type Verb = 'train' | 'eval' | 'try' | 'preflight' | 'sft' | 'serve';

/** What of a row may differ by command. */
interface Variant {
  readonly usual?: unknown;
  /** The default in words. */
  readonly shown?: string;
  readonly meaning?: string;
}

interface More extends Variant {
  /** The flag, if it is not the name in kebab case. */
  readonly flag?: string;
  readonly placeholder?: string;
  /**
   * It may change when a run is resumed: it decides how much is done, how fast, where or what is shown, but no result. `own`: it is also not
   * taken over by a run that trains `from` another.
   */
  readonly mayChange?: true | 'own';
  /** Not taken over by a run that trains `from` another: it is about how that one sampled, or what it began with. */
  readonly isOwn?: true;
  /** It means nothing with another loss, or another engine. */
  readonly ofLoss?: LossName;
  readonly ofEngine?: EngineName;
  readonly for?: Readonly<
    Partial<Record<Verb, Variant & Pick<More, 'flag' | 'placeholder'> & { readonly kind?: Kind<unknown> }>>
  >;
}

export interface Setting<T = unknown, V extends string = string> extends More {
  readonly kind: Kind<T>;
  /** Commands that have it; a star before one: on the first screen of its help. */
  readonly verbs: V;
  /** The first sentence is for the first screen; `help settings` and the page have all. */
  readonly meaning: string;
  /** Its default follows from other settings. */
  readonly isDerived: boolean;
  readonly section: string;
}

export function setting<const V extends string, T>(
  verbs: V,
  kind: Kind<T>,
  usual: T,
  meaning: string,
  more: More = {},
): Setting<T, V> {
  return { verbs, kind, usual, meaning, isDerived: false, section: '', ...more };
}

/** Undefined unless it is set. */
export function optional<const V extends string, T>(
  verbs: V,
  kind: Kind<T>,
  meaning: string,
  more?: More,
): Setting<T | undefined, V> {
  return setting<V, T | undefined>(verbs, orNone(kind), undefined, meaning, more);
}

/** Its default, `shown`, follows from other settings. */
export function derived<const V extends string, T>(
  verbs: V,
  kind: Kind<T>,
  shown: string,
  meaning: string,
  more?: More,
): Setting<T, V> {
  return { ...setting(verbs, kind, undefined as T, meaning, more), shown, isDerived: true };
}

export function section<const Rows extends Readonly<Record<string, object>>>(title: string, rows: Rows): Rows {
  return Object.fromEntries(
    Object.entries(rows).map(([name, row]) => [name, 'kind' in row ? { ...row, section: title } : section(title, row as Rows)]),
  ) as Rows;
}
