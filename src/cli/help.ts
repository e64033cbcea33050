/**
 * `trainyard help`: a verb's help, a page of docs/ (which the package contains), or what an error code means. Also what `--help` adds to each
 * verb: its group, examples, and the page to read.
 */
import { readdirSync, readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { ERROR_CODES, nearName, TrainyardError } from '../core/errors.ts';
import { ASIDE } from './flags.ts';
import { asCalled } from './output/text.ts';

const DOCS = new URL('../../docs/', import.meta.url);

/** In the order of `trainyard --help`: verb → page, examples. A verb that is missing here stands in no group. */
const GROUPS: Readonly<Record<string, Readonly<Record<string, readonly [page: string, ...examples: string[]]>>>> = {
  'Start:': {
    init: ['start', 'trainyard init my-agent', 'trainyard init --here agent.ts'],
    doctor: ['cli', 'trainyard doctor'],
    preflight: ['your-agent', 'trainyard preflight agent.ts', 'trainyard preflight agent.ts --probe'],
    try: ['debug-one-rollout', 'trainyard try agent.ts', 'trainyard try agent.ts --task 3 --temperature 0'],
  },
  'Measure:': {
    eval: [
      'measure-first',
      'trainyard eval agent.ts --n 4',
      'trainyard eval agent.ts --engine openai --model NAME --price 0.15,0.60',
    ],
    diff: ['evaluation', 'trainyard diff runs/eval-before runs/eval-after'],
  },
  'Train:': {
    train: ['first-run', 'trainyard train agent.ts', 'trainyard train agent.ts --steps 20 --tensorboard'],
    sft: ['warm-start', 'trainyard sft runs/eval-strong', 'trainyard sft conversations.jsonl --epochs 2'],
  },
  'Many machines:': {
    worker: ['scale', 'trainyard worker --store postgres://trainyard_worker@db.example.com/trainyard --concurrency 32'],
  },
  'Look:': {
    view: ['reference/view', 'trainyard view runs', 'trainyard view runs/mine --export run.html'],
    show: ['debug-one-rollout', 'trainyard show runs/my-run', 'trainyard show runs/my-run g000001-0'],
    replay: ['debug-one-rollout', 'trainyard replay runs/my-run g000001-0', 'trainyard replay runs/my-run g000001-0 --grade'],
    curate: ['curation', 'trainyard curate runs/my-run g000001-0 --reason "wrong answer in the task"'],
    verify: ['reference/verify', 'trainyard verify runs/my-run'],
  },
  'Models and servers:': {
    model: ['real-models', 'trainyard model get HuggingFaceTB/SmolLM2-135M-Instruct'],
    export: [
      'use-what-you-trained',
      'trainyard export runs/my-run --merged model',
      'trainyard export runs/my-run --tensorboard logs',
    ],
    serve: ['any-agent', 'trainyard serve', 'trainyard serve --model runs/my-run/checkpoints/step-000040'],
    tinker: ['tinker-server', 'trainyard tinker'],
    skyrl: ['real-models', 'trainyard skyrl --model HuggingFaceTB/SmolLM2-135M-Instruct'],
  },
  'More:': { help: ['cli', 'trainyard help first-run', 'trainyard help NO_SIGNAL'] },
};

/** Sorts the verbs into their groups, and ends the help of each with examples and its page. */
export function describeVerbs(program: Command): void {
  const placed = Object.entries(GROUPS).flatMap(([group, verbs]) =>
    Object.entries(verbs).map(([name, [page, ...examples]]) => ({ name, group, page, examples })),
  );
  const placeOf = (verb: Command): number => placed.findIndex(({ name }) => name === verb.name());
  (program.commands as Command[]).sort((a, b) => placeOf(a) - placeOf(b));
  for (const verb of program.commands) {
    const { group, page, examples } = placed[placeOf(verb)] ?? {};
    if (group === undefined || examples === undefined) continue;
    const lines = examples.map((example) => `  ${asCalled(example)}`).join('\n');
    verb
      .helpGroup(group)
      .addHelpText('after', `\n${asideOf(verb)}Examples:\n${lines}\n\nMore: ${asCalled(`trainyard help ${page}`)}`);
  }
  program.addHelpText('after', `\nPages and error codes: ${asCalled('trainyard help')}`);
}

/** Flags that are no settings and not on the first screen. */
function asideOf({ options }: Command): string {
  const flags = options.filter(({ hidden, long }) => hidden && ASIDE.includes(long ?? '')).map((option) => option.flags);
  return flags.length === 0 ? '' : `Also: ${flags.join(', ')}\n\n`;
}

/** Prints the topic; without one, what topics there are. Throws USAGE for an unknown one. */
export function helpCommand(program: Command, topic: string | undefined): void {
  const verb = program.commands.find((one) => one.name() === topic);
  const pages = pagesIn();
  const page = pages.find(({ name, path }) => topic === name || topic === path);
  if (topic === undefined) console.log(topicLines(pages).join('\n'));
  else if (verb !== undefined) verb.outputHelp();
  else if (page !== undefined) console.log(page.text.trimEnd());
  else if (Object.hasOwn(ERROR_CODES, topic)) console.log(codeLines(topic).join('\n'));
  else {
    const known = [...program.commands.map((one) => one.name()), ...pages.map(({ name }) => name), ...Object.keys(ERROR_CODES)];
    const near = nearName(topic, known);
    const hint = near === undefined ? 'trainyard help lists them' : `did you mean trainyard help ${near}?`;
    throw new TrainyardError('USAGE', `there is no help on ${JSON.stringify(topic)}`, { hint });
  }
}

/** Named like their files, without numbers and endings: `first-run` is guide/01-first-run.md. `path`: where a verb has the same name. */
function pagesIn() {
  return ['guide', 'reference'].flatMap((folder) => {
    const files = readdirSync(new URL(folder, DOCS)).filter((file) => file.endsWith('.md'));
    return files.map((file) => {
      const name = file.replace(/^\d+-/, '').slice(0, -'.md'.length);
      return { name, path: `${folder}/${name}`, text: readFileSync(new URL(`${folder}/${file}`, DOCS), 'utf8') };
    });
  });
}

function topicLines(pages: ReturnType<typeof pagesIn>): readonly string[] {
  const line = ({ path, text }: (typeof pages)[number]): string =>
    `  ${path.replace(/^guide\//, '').padEnd(28)}${/^# (.*)/m.exec(text)?.[1] ?? ''}`;
  const [guide, reference] = ['guide/', 'reference/'].map((folder) => pages.filter(({ path }) => path.startsWith(folder)));
  return [
    ...['Usage: trainyard help <topic>', '', 'Guide, to read in this order:', ...guide!.map(line)],
    ...['', 'Reference:', ...reference!.map(line)],
    ...['', 'Also: a verb (trainyard --help lists them), or an error code, such as NO_SIGNAL'],
  ].map(asCalled);
}

/** Its row of the table, without Markdown. */
function codeLines(code: string): readonly string[] {
  const row = readFileSync(new URL('reference/errors.md', DOCS), 'utf8')
    .split('\n')
    .find((line) => line.startsWith(`| \`${code}\` |`));
  const plain = row?.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1').split(/(?<!\\)\|/) ?? [];
  const [where, exit, meaning, remedy] = plain.slice(2).map((cell) => cell.trim());
  return [`${code} (${where}, exit code ${exit})`, `  ${meaning}`, `  ${remedy}`];
}
