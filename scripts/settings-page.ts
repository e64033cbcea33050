/** Prints docs/reference/settings.md from the table of settings. */
import { usageOf } from '../src/cli/flags.ts';
import type { Verb } from '../src/settings/kinds.ts';
import { flagOf, isFirst, type Row, rowsOf, shownDefault } from '../src/settings/setting-rows.ts';

const VERBS: readonly Verb[] = ['train', 'eval', 'try', 'sft'];

const INTRO = `Every setting: how to say it on the command line, its name in TypeScript and in a [config file](cli.md) if that is another, its default,
and the commands that have it. What begins with dashes is on the first screen of \`train --help\` or \`eval --help\`; the others follow \`--set\`, as in
\`trainyard train agent.ts --set lora-rank=16\`. (They are flags too, \`--lora-rank 16\`.) Times are 90s, 10m or 2h on the command line and numbers
elsewhere: milliseconds where the name ends in \`Ms\`, else seconds. \`preflight --probe\` takes what \`train\` does, but for \`split\`, \`run\`,
\`store\`, \`workers\` and \`from\`. [Training](training.md) and [evaluation](evaluation.md) say what the settings do.`;

export function settingsPage(): string {
  const sections = [...Map.groupBy(rowsOf(), ({ section }) => section)];
  const listed = sections.map(([title, rows]) => `## ${title}\n\n${rows.map(line).join('\n')}`);
  const free = rowsOf().flatMap(({ name, mayChange }) => (mayChange === undefined ? [] : [`\`${name}\``]));
  const going = `A resumed run keeps its settings. It takes other values of ${free.join(', ')}, and refuses others by name. An evaluation behind
an API keeps its \`baseURL\`, and rollouts in a file cannot move to a \`store\`.`;
  const parts = ['<!-- Generated from the code: npm run build:docs -->', '# Settings', INTRO, ...listed];
  return `${[...parts, '## What may change on resume', going].join('\n\n')}\n`;
}

function line(row: Row): string {
  const usual = defaultOf(row);
  const facts = [
    ...(flagOf(row) === row.name || flagOf(row) === '' ? [] : [`\`${row.name}\``]),
    ...(usual === undefined ? [] : [`default ${usual.replaceAll(/[<>]/g, '\\$&')}`]),
    verbsOf(row),
  ];
  return `- **\`${typedAs(row)}\`** (${facts.join('; ')}): ${meaningOf(row)}`;
}

/** `--steps <n>` if that is on the first screen of a command's help, else `lora-rank=<n>`, for `--set`. */
function typedAs(row: Row): string {
  if (flagOf(row) === '') return row.name;
  const isFlag = (['train', 'eval'] as const).some((verb) => isFirst(row, verb)) || verbsOf(row) === 'sft';
  return isFlag ? usageOf(row) : usageOf(row).slice(2).replace(' ', '=');
}

/** The meaning, the values to choose from, and what differs by command. */
function meaningOf(row: Row): string {
  const choices =
    row.kind.choices === undefined ? '' : ` One of ${row.kind.choices.map((choice) => `\`${choice}\``).join(', ')}.`;
  const others = Object.entries(row.for ?? {}).flatMap(([verb, { meaning }]) =>
    meaning === undefined ? [] : [` For \`${verb}\`: ${meaning}`],
  );
  return [row.meaning, choices, ...others].join('');
}

function defaultOf(row: Row): string | undefined {
  const others = Object.entries(row.for ?? {}).flatMap(([verb, variant]) => {
    const shown = variant.shown === undefined && variant.usual === undefined ? undefined : shownDefault({ ...row, ...variant });
    return shown === undefined ? [] : [`${verb} ${shown}`];
  });
  const usual = shownDefault(row);
  return usual === undefined ? undefined : [usual, ...others].join('; ');
}

/** A probe of preflight takes nearly what a training does. */
function verbsOf({ verbs }: Row): string {
  const own = verbs.replaceAll('*', '').split(' ');
  return VERBS.filter((verb) => own.includes(verb)).join(', ');
}
