/**
 * `trainyard help`: a verb's help, a page of docs/ (which the package contains), or what an error code means. Also what `--help` adds to each
 * verb: its group, examples, and the page to read.
 */
import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { ERROR_CODES, type ErrorCode, WARNINGS, type WarningCode } from '../core/error-codes.ts';
import { nearName, TrainyardError } from '../core/errors.ts';
import { ASIDE } from './flags.ts';
import { asCalled } from './output/text.ts';

const DOCS = new URL('../../docs/', import.meta.url);

/** In the order of `trainyard --help`: verb → page, examples. A verb that is missing here stands in no group. */
const GROUPS: Readonly<Record<string, Readonly<Record<string, readonly [page: string, ...examples: string[]]>>>> = {
  'Start:': {
    init: ['start', 'trainyard init my-agent', 'trainyard init --here agent.ts'],
    doctor: ['cli', 'trainyard doctor'],
    preflight: ['your-agent', 'trainyard preflight agent.ts', 'trainyard preflight agent.ts --probe'],
    try: ['look-and-debug', 'trainyard try agent.ts', 'trainyard try agent.ts --task 3 --temperature 0'],
  },
  'Measure:': {
    eval: ['measure', 'trainyard eval agent.ts --n 4', 'trainyard eval agent.ts --engine openai --model NAME'],
    diff: ['evaluation', 'trainyard diff runs/eval-before runs/eval-after'],
  },
  'Train:': {
    train: ['guide/train', 'trainyard train agent.ts', 'trainyard train agent.ts --steps 20 --view'],
    sft: ['guide/train', 'trainyard sft runs/eval-strong', 'trainyard sft conversations.jsonl --epochs 2'],
  },
  'Many machines:': {
    worker: ['many-machines', 'trainyard worker --store postgres://trainyard_worker@db.example.com/trainyard --concurrency 32'],
  },
  'Look:': {
    view: ['reference/view', 'trainyard view runs', 'trainyard view runs/mine --export run.html'],
    show: ['look-and-debug', 'trainyard show runs/my-run', 'trainyard show runs/my-run g000001-0'],
    replay: ['look-and-debug', 'trainyard replay runs/my-run g000001-0', 'trainyard replay runs/my-run g000001-0 --grade'],
    curate: ['reference/view', 'trainyard curate runs/my-run g000001-0 --reason "wrong answer in the task"'],
    verify: ['store', 'trainyard verify runs/my-run'],
  },
  'Models and servers:': {
    model: ['real-models', 'trainyard model get HuggingFaceTB/SmolLM2-135M-Instruct'],
    export: ['take-it-out', 'trainyard export runs/my-run --merged model', 'trainyard export runs/my-run --tensorboard logs'],
    serve: ['any-agent', 'trainyard serve', 'trainyard serve --model runs/my-run/checkpoints/step-000040'],
    tinker: ['reference/tinker', 'trainyard tinker'],
    skyrl: ['real-models', 'trainyard skyrl --model HuggingFaceTB/SmolLM2-135M-Instruct'],
  },
  'More:': { help: ['cli', 'trainyard help start', 'trainyard help NO_SIGNAL'] },
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
  const verbs = program.commands.map((one) => one.name());
  const verb = program.commands.find((one) => one.name() === topic);
  const pages = pagesIn(indexText());
  const page = pages.find(({ name, path }) => topic === name || topic === path);
  if (topic === undefined) console.log(topicLines(verbs).join('\n'));
  else if (verb !== undefined) verb.outputHelp();
  else if (page !== undefined)
    console.log(
      readFileSync(new URL(`${page.path}.md`, DOCS), 'utf8')
        .replace(/^<!--.*-->\s*/, '')
        .trimEnd(),
    );
  else if (isCode(topic)) console.log(codeLines(topic).join('\n'));
  else {
    const codes = Object.keys({ ...WARNINGS, ...ERROR_CODES });
    const near = nearName(topic, [...verbs, ...pages.map(({ name }) => name), ...codes]);
    const hint = near === undefined ? 'trainyard help lists them' : `did you mean trainyard help ${near}?`;
    throw new TrainyardError('USAGE', `there is no help on ${JSON.stringify(topic)}`, hint);
  }
}

/** Lists every page, in reading order. */
const indexText = (): string => readFileSync(new URL('README.md', DOCS), 'utf8');

/** Named like their files: `start` is guide/start.md. */
function pagesIn(index: string) {
  const links = index.matchAll(/^- \[(.+?)\]\(((?:[\w-]+\/)?([\w-]+))\.md\)/gm);
  return [...links].map(([, title = '', path = '', name = '']) => ({ title, path, name }));
}

/** Under the headings of the index. A page with the name of a verb is asked for by its path. */
function topicLines(verbs: readonly string[]): readonly string[] {
  const sections = indexText()
    .split('\n## ')
    .flatMap((section) => {
      const lines = pagesIn(section).map(
        ({ title, path, name }) => `  ${(verbs.includes(name) ? path : name).padEnd(20)}${title}`,
      );
      return lines.length === 0 ? [] : ['', `${section.slice(0, section.indexOf('\n'))}:`, ...lines];
    });
  const also = 'Also: a verb (trainyard --help lists them), or an error code, such as NO_SIGNAL';
  return ['Usage: trainyard help <topic>', ...sections, '', also].map(asCalled);
}

function isCode(topic: string): topic is WarningCode {
  return Object.hasOwn(ERROR_CODES, topic) || Object.hasOwn(WARNINGS, topic);
}

/** Without the links of the reference page. */
function codeLines(code: WarningCode): readonly string[] {
  const plain = (text: string): string => `  ${text.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')}`;
  const warning = (WARNINGS as Readonly<Record<string, string>>)[code];
  if (warning !== undefined) return [`${code} (warning)`, plain(warning)];
  const { boundary, exit, meaning, remedy } = ERROR_CODES[code as ErrorCode];
  return [`${code} (${boundary}, exit code ${exit})`, plain(meaning), plain(remedy)];
}
