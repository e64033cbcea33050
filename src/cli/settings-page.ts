/** Every setting in words: `trainyard help settings` and docs/reference/settings.md, both written from the table of settings. */
import { flagOf, isFirst, type Row, rowsOf, shownDefault } from '../settings/rows.ts';
import type { Verb } from '../settings/table.ts';
import { usageOf } from './flags.ts';

const VERBS: readonly Verb[] = ['train', 'eval', 'try', 'sft'];

/** By title, in the order of the table. */
function sections(): ReadonlyMap<string, readonly Row[]> {
  return Map.groupBy(rowsOf(), ({ section }) => section);
}

/** `--steps <n>` if that is on the first screen of a command's help, else `lora-rank=<n>`, for `--set`. */
function typedAs(row: Row): string {
  if (flagOf(row) === '') return '';
  const isFlag = (['train', 'eval'] as const).some((verb) => isFirst(row, verb)) || verbsOf(row) === 'sft';
  return isFlag ? usageOf(row) : usageOf(row).slice(2).replace(' ', '=');
}

/** The meaning, the values to choose from, and what differs by command. */
function meaningOf(row: Row): string {
  const choices = row.kind.choices === undefined ? '' : ` One of ${row.kind.choices.join(', ')}.`;
  const others = Object.entries(row.for ?? {}).flatMap(([verb, { meaning }]) =>
    meaning === undefined ? [] : [` ${verb}: ${meaning}`],
  );
  return [row.meaning, choices, ...others].join('');
}

function defaultOf(row: Row): string {
  const others = Object.entries(row.for ?? {}).flatMap(([verb, variant]) => {
    const shown = variant.shown === undefined && variant.usual === undefined ? undefined : shownDefault({ ...row, ...variant });
    return shown === undefined ? [] : [`${verb}: ${shown}`];
  });
  return [shownDefault(row) ?? 'none', ...others].join('; ');
}

/** A probe of preflight takes nearly what a training does. */
function verbsOf({ verbs }: Row): string {
  const own = verbs.replaceAll('*', '').split(' ');
  return VERBS.filter((verb) => own.includes(verb)).join(', ');
}

export function settingsLines(): readonly string[] {
  return [
    'Settings, by what they are on the command line (without dashes: after --set) and in config files, if that is another name.',
    ...[...sections()].flatMap(([title, rows]) => ['', `${title}:`, ...rows.flatMap(linesOf)]),
  ];
}

function linesOf(row: Row): readonly string[] {
  const other = flagOf(row) === row.name ? '' : `  (${row.name})`;
  return [`  ${typedAs(row)}${other}`, `      ${meaningOf(row)} Default: ${defaultOf(row)}. For ${verbsOf(row)}.`];
}

const INTRO = `The first column is the name in TypeScript and in a [config file](cli.md). The second is the flag, or what to write
after \`--set\`: \`--set lora-rank=16\`. Settings without a flag there have one too, but \`--help\` does not show it. \`trainyard help settings\` prints
this list. Times are written as 90s, 10m or 2h on the command line, and as numbers elsewhere: milliseconds where the name ends in \`Ms\`, else
seconds. \`preflight --probe\` takes what \`train\` does, but for \`split\`, \`run\`, \`store\`, \`workers\` and \`from\`.
[Training](training.md) and [evaluation](evaluation.md) say what they do.`;

/** For docs/. */
export function settingsPage(): string {
  const code = (text: string): string => (text === '' ? '' : `\`${text}\``);
  const plain = (text: string): string => text.replaceAll(/[<>|]/g, '\\$&');
  const line = (row: Row): string =>
    `| ${[code(row.name), code(typedAs(row)), plain(defaultOf(row)), plain(meaningOf(row)), verbsOf(row)].join(' | ')} |`;
  const table = ([title, rows]: readonly [string, readonly Row[]]): string =>
    [`## ${title}`, '', '| setting | flag or name | default | meaning | for |', '|---|---|---|---|---|', ...rows.map(line)].join(
      '\n',
    );
  const free = rowsOf().flatMap(({ name, mayChange }) => (mayChange === undefined ? [] : [code(name)]));
  const going = `A resumed run keeps its settings. It takes other values of ${free.join(', ')}, and refuses others by name. An evaluation behind
an API keeps its \`baseURL\`, and rollouts in a file cannot move to a \`store\`.`;
  const parts = [
    '<!-- Generated from the code: npm run build:docs -->',
    '# Settings',
    INTRO,
    ...[...sections()].map(table),
    '## What may change on resume',
    going,
  ];
  return `${parts.join('\n\n')}\n`;
}
