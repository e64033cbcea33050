/**
 * What follows from the table of settings: their types, names and flags, the defaults of a command, what is wrong with values. A group such as
 * `limits` is one value in TypeScript and in config files, and a row for each member here: `limits.turns`.
 */
import { kindOf } from '../core/describe.ts';
import { nearName } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { Kind, Setting, Verb } from './kinds.ts';
import { SETTINGS } from './table.ts';

type Table = typeof SETTINGS;
type ValueOf<Row> = Row extends { readonly kind: Kind<infer T> } ? T : { readonly [Name in keyof Row]: ValueOf<Row[Name]> };
type VerbsOf<Row> = Row extends { readonly verbs: infer V } ? V : { [Name in keyof Row]: VerbsOf<Row[Name]> }[keyof Row];
/** The settings of a command, all of them there. */
export type SettingsOf<V extends Verb> = {
  readonly [Name in keyof Table as VerbsOf<Table[Name]> extends `${string}${V}${string}` ? Name : never]: ValueOf<Table[Name]>;
};

type Values = Readonly<Record<string, unknown>>;
/** A row and the name of its setting, such as `limits.turns`. */
export interface Row extends Setting {
  readonly name: string;
}

function rowsIn(table: object, prefix = ''): readonly Row[] {
  return Object.entries(table).flatMap(([key, value]: [string, Setting | object]) =>
    'kind' in value ? [{ ...value, name: `${prefix}${key}` }] : rowsIn(value, `${prefix}${key}.`),
  );
}

const ROWS: readonly Row[] = rowsIn(SETTINGS);
const BY_NAME: ReadonlyMap<string, Row> = new Map(ROWS.map((row) => [row.name, row]));
const GROUPS: ReadonlySet<string> = new Set(ROWS.flatMap(({ name }) => (name.includes('.') ? [name.split('.', 1)[0]!] : [])));

export function rowOf(name: string): Row | undefined {
  return BY_NAME.get(name);
}

/** All, or those of a command, as they are there. */
export function rowsOf(verb?: Verb): readonly Row[] {
  if (verb === undefined) return ROWS;
  return ROWS.filter(({ verbs }) => verbsIn(verbs).includes(verb)).map((row) => ({ ...row, ...row.for?.[verb] }));
}

const verbsIn = (verbs: string): readonly string[] => verbs.split(/ \*?|^\*/);

/** On the first screen of the command's help. */
export function isFirst({ verbs }: Row, verb: Verb): boolean {
  return verbs.split(' ').includes(`*${verb}`);
}

/** Without dashes: `lora-rank`. Empty for what is an argument. */
export function flagOf({ name, flag }: Pick<Row, 'name' | 'flag'>): string {
  return flag ?? name.replaceAll('.', '-').replaceAll(/[A-Z]+/g, (letters) => `-${letters.toLowerCase()}`);
}

/** The default in words; undefined where there is none. */
export function shownDefault({ shown, usual, kind }: Row): string | undefined {
  if (shown !== undefined || usual === undefined) return shown;
  return kind.show?.(usual) ?? String(usual);
}

/** `limits.turns` → its value, of each setting that is there; a group that is none is left whole. */
export function flat(values: object): readonly (readonly [name: string, value: unknown])[] {
  return Object.entries(values).flatMap(([name, value]) =>
    GROUPS.has(name) && isObject(value)
      ? Object.entries(value).map(([member, own]) => [`${name}.${member}`, own] as const)
      : [[name, value] as const],
  );
}

/** The other way. */
export function nested(entries: Iterable<readonly [name: string, value: unknown]>): Values {
  const all: Record<string, unknown> = {};
  for (const [name, value] of entries) {
    const [group, member] = name.split('.') as [string, string?];
    if (member === undefined) all[name] = value;
    else all[group] = { ...(all[group] as Values | undefined), [member]: value };
  }
  return all;
}

/** Of settings whose default follows from no other. */
function defaultsOf<V extends Verb>(verb: V): SettingsOf<V> {
  const rows = rowsOf(verb).filter(({ isDerived }) => !isDerived);
  return nested(rows.map(({ name, usual }) => [name, usual])) as SettingsOf<V>;
}

export const EVAL_DEFAULTS = defaultsOf('eval');
export const TRAIN_DEFAULTS = defaultsOf('train');
export const SFT_DEFAULTS = defaultsOf('sft');

export interface Fault {
  readonly name: string;
  readonly message: string;
}

/** What is wrong with values, and names that no setting has. `isWhole`: every setting of the command must be there. */
export function faultsIn(values: object, verb?: Verb, isWhole = false): readonly Fault[] {
  const rows = new Map(rowsOf(verb).map((row) => [row.name, row]));
  const there = new Map(flat(values));
  const missing = isWhole ? [...rows.keys()].filter((name) => !there.has(name)).map((name) => [name, undefined] as const) : [];
  return [...there, ...missing].flatMap(([name, value]) => {
    const row = rows.get(name);
    const message = row === undefined ? unknownSetting(name, [...rows.values()]) : faultOf(row, value);
    return message === undefined ? [] : [{ name, message }];
  });
}

/** Repeats numbers only: a text may be a secret. */
function faultOf({ kind }: Row, value: unknown): string | undefined {
  if (kind.accepts(value)) return undefined;
  return `expected ${kind.expected}, found ${typeof value === 'number' ? value : kindOf(value)}`;
}

function unknownSetting(name: string, rows: readonly Row[]): string {
  if (GROUPS.has(name)) return 'expected an object of settings';
  const elsewhere = rowOf(name);
  if (elsewhere !== undefined)
    return `expected none here, it is a setting of ${verbsIn(elsewhere.verbs).filter(Boolean).join(', ')}`;
  const meant = rows.find((row) => flagOf(row) === name || camel(flagOf(row)) === name)?.name;
  const near =
    meant ??
    nearName(
      name,
      rows.map((row) => row.name),
    );
  return `unknown setting${near === undefined ? '' : `, did you mean ${near}?`}`;
}

export function camel(flag: string): string {
  return flag.replaceAll(/-(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** What `preflight` looks at without a probe. */
export function isChecked(name: string): boolean {
  return rowOf(name)?.section === 'Agent and tasks';
}
