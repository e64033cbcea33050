/**
 * The flags of a command as the settings they are, and the names that its messages give them: `clipHigh: expected …` becomes what was typed,
 * `--clip-high` or `--set clip-high`. A name from a config file stays as it is there.
 */
import { TrainyardError } from '../core/errors.ts';
import { camel, flagOf, isFirst, nested, rowsOf } from '../settings/setting-rows.ts';
import type { Verb } from '../settings/table.ts';

type Values = Readonly<Record<string, unknown>>;
/** The name of a setting → how it is said on the command line. Undefined for what this command has not. */
export type Typed = (name: string) => string | undefined;

export interface Settled {
  /** By the names of settings, such as `limits.turns`. */
  readonly settings: Values;
  /** Flags that are no settings. */
  readonly others: Values;
  /** Both, as commands take them: with groups of settings. */
  readonly flags: Values;
  readonly typed: Typed;
}

/** `set`: flags that were said by `--set`. */
export function settled(verb: Verb, given: Values, set: readonly string[] = []): Settled {
  const rows = new Map(rowsOf(verb).map((row) => [camel(flagOf(row)), row]));
  const entries = Object.entries(given);
  const settings = Object.fromEntries(
    entries.flatMap(([flag, value]) => (rows.has(flag) ? [[rows.get(flag)!.name, value] as const] : [])),
  );
  const others = Object.fromEntries(entries.filter(([flag]) => !rows.has(flag)));
  const byName = new Map([...rows].map(([flag, row]) => [row.name, { flag, row }]));
  const typed: Typed = (name) => {
    const { flag, row } = byName.get(name) ?? {};
    if (flag === undefined || row === undefined || flag === '') return undefined;
    const isFlag = set.includes(flag) ? false : Object.hasOwn(given, flag) || isFirst(row, verb);
    return `${isFlag ? '--' : '--set '}${flagOf(row)}`;
  };
  return { settings, others, flags: { ...others, ...nested(Object.entries(settings)) }, typed };
}

/** What it does, with the settings in messages by the names that were typed. */
export async function inTypedNames<T>(typed: Typed, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (thrown) {
    if (thrown instanceof TrainyardError && (thrown.code === 'USAGE' || thrown.code === 'RESUME_IMPOSSIBLE'))
      thrown.message = asTyped(thrown.message, typed);
    throw thrown;
  }
}

/** Where a part of the message begins with a name, and names that are no English words. */
const NAMES = /(?<=^|; |: )[a-z][\w.]*(?=: | was )|(?<![\w/.-])[a-z]+[A-Z]\w*(?![\w/-])|\blimits\.\w+/g;

export function asTyped(message: string, typed: Typed): string {
  return message.replaceAll(NAMES, (name) => typed(name) ?? name);
}
