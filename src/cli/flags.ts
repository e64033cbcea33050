/**
 * The command line's flags: those of settings, which the table of settings says, how `--set` reads them, and the lists of the other flags that
 * verbs share. verbs.ts says which verb has which.
 */
import { InvalidArgumentError, Option } from 'commander';
import { nearName, TrainyardError } from '../core/errors.ts';
import { type Kind, seconds, type Verb, whole } from '../settings/kinds.ts';
import { camel, flagOf, isFirst, type Row, rowOf, rowsOf, shownDefault } from '../settings/setting-rows.ts';

/** Reads texts as values of a kind. `others`: settings that a text may have been meant for. */
function reads(kind: Kind<unknown>, others: readonly Row[] = []): (text: string) => unknown {
  return (text) => {
    const value = kind.read === undefined ? text : kind.read(text);
    if (value !== undefined && kind.accepts(value)) return value;
    const expected = (value === undefined && kind.textForm) || kind.expected;
    // Other libraries call by one name what has two here.
    const other = others.find((row) => row.kind.choices?.includes(text));
    const hint = other === undefined ? '' : `; did you mean ${flagOf(other)} ${text}?`;
    throw new InvalidArgumentError(`expected ${expected}, found ${JSON.stringify(text)}${hint}`);
  };
}

export const natural = reads(whole(0));
export const positive = reads(whole(1, 1_000_000));
const port = reads(whole(0, 65_535));
const share = reads(rowOf('maxErrorShare')!.kind);
const duration = reads(seconds);

/** Parser of the value, or the allowed values. */
type Parse = ((text: string) => unknown) | readonly string[];
/** The default is only displayed; it comes from the setting of the same name. A flag that is not given stays absent. */
export type Flag = readonly [flag: string, meaning: string, parse?: Parse | undefined, byDefault?: unknown];

export const ENTRY = ['[entry]', 'module that exports the workflow and the grader'] as const;
const FILES = 'JSONL, CSV or Parquet';

/** What a setting means, for help: its first sentence. */
function shortMeaning({ meaning, kind }: Row): string {
  const [first = ''] = meaning.split(/\.(?: |$)/, 1);
  const choices = kind.choices === undefined ? '' : `: ${kind.choices.join(', ')}`;
  return `${/^[A-Z][a-z ]/.test(first) ? first.charAt(0).toLowerCase() : first.charAt(0)}${first.slice(1)}${choices}`;
}

/** `--steps <n>`. */
export function usageOf(row: Row): string {
  return `--${flagOf(row)} ${row.placeholder ?? row.kind.placeholder}`;
}

/** A flag for each setting of a command. Those that are not for the first screen are hidden: `--set` is the way to say them. */
export function settingOptions(verb: Verb): readonly Option[] {
  const rows = rowsOf(verb).filter((row) => flagOf(row) !== '');
  return rows.map((row) => {
    const usual = shownDefault(row);
    const option = new Option(usageOf(row), `${shortMeaning(row)}${usual === undefined ? '' : ` (default: ${usual})`}`);
    // What may hold a secret is checked with the other settings: commander would repeat it.
    if (!row.kind.isSecret) option.argParser(reads(row.kind, rows));
    return option.hideHelp(!isFirst(row, verb));
  });
}

export function setOption(): Option {
  const option = new Option('--set <name=value>', 'any other setting; trainyard help settings lists them');
  return option.argParser((text: string, others: readonly string[] = []) => [...others, text]);
}

const NOT_SET = ['config', 'use', 'resume', 'set'];

/** Flags as commander has them → settings by their names, such as `limits.turns`, those of `--set` included, and other flags by theirs. */
export function settingsIn(verb: Verb, flags: object, options: readonly Option[]): Readonly<Record<string, unknown>> {
  const names = new Map(rowsOf(verb).map((row) => [camel(flagOf(row)), row.name]));
  const { set = [], ...said } = flags as { readonly set?: readonly string[] };
  const all = [...Object.entries(said), ...set.map((text) => valueSet(text, options))];
  return Object.fromEntries(all.map(([flag, value]) => [names.get(flag) ?? flag, value]));
}

/** `lora-rank=16`, or `loraRank=16`, as the flag of that name is read. Throws USAGE. */
function valueSet(text: string, options: readonly Option[]): readonly [flag: string, value: unknown] {
  const [, name = text, value] = /^([^=]+)=(.*)$/s.exec(text) ?? [];
  const row = rowOf(name);
  const flag = row === undefined ? name : flagOf(row);
  const usable = options.filter((option) => (option.required || option.optional) && !NOT_SET.includes(option.attributeName()));
  const option = usable.find((one) => one.long === `--${flag}` || one.attributeName() === flag);
  if (option === undefined) {
    const near = nearName(
      flag,
      usable.map((one) => one.name()),
    );
    throw wrong(name, `this command has no such setting${near === undefined ? '' : `, did you mean ${near}?`}`);
  }
  if (value === undefined) throw wrong(name, `expected a value, as in --set ${option.flags.slice(2).replace(' ', '=')}`);
  try {
    return [option.attributeName(), option.parseArg === undefined ? value : option.parseArg(value, undefined)];
  } catch (thrown) {
    throw thrown instanceof InvalidArgumentError ? wrong(name, thrown.message) : thrown;
  }
}

function wrong(name: string, message: string): TrainyardError {
  return new TrainyardError('USAGE', `--set ${name}: ${message}`, 'trainyard help settings lists every setting');
}

/** Where a part of a message begins with the name of a setting, and names that are no English words. */
const NAMES =
  /(?<=^|; |: )[a-z][\w.]*(?=: | was )|(?<=begun with )[\w.]+|(?<!--set |[\w/.-])[a-z]+[A-Z]\w*(?![\w/-])|(?<!--set )\blimits\.\w+/g;

/** A message with settings by what was typed: `clipHigh: expected …` becomes `--clip-high`, or `--set clip-high`. Others keep their names. */
export function asTyped(message: string, argv: readonly string[]): string {
  const typed = argv.map((word, i) => ({ word: word.split('=', 1)[0]!, isSet: argv[i - 1] === '--set' }));
  return message.replaceAll(NAMES, (name) => {
    const row = rowOf(name);
    const flag = row && flagOf(row);
    const found = typed.find(({ word, isSet }) => (isSet ? word === flag || word === name : word === `--${flag}`));
    return found === undefined ? name : `${found.isSet ? '--set ' : ''}${found.word}`;
  });
}

const CHECKPOINT: Flag = [
  '--checkpoint <dir>',
  'instead of --model: a checkpoint, or the directory of a run, of which the best is taken',
];

export const STORE: Flag = [
  '--store <url>',
  'PostgreSQL database of the run, if it has one, with its password (default: the one in its run.json)',
];
const TENSORBOARD: Flag = [
  '--tensorboard [dir]',
  'write TensorBoard files while it goes (default: tensorboard in the run’s directory)',
];

export const TRAIN: readonly Flag[] = [
  ['--resume <dir>', 'go on with the run in this directory, with its settings'],
  TENSORBOARD,
];

export const EVAL: readonly Flag[] = [
  CHECKPOINT,
  ['--resume <dir>', 'go on with the evaluation in this directory, with its settings'],
  ['--retry-failed', 'with --resume: run failed rollouts and gradings again'],
  ['--min-success <share>', 'exit with 4 if success is below this, from 0 to 1', share],
  ['--junit <file>', 'write a JUnit report, a test case for each task'],
  ['--report <file>', 'write a JSON report, with every task and rollout'],
  TENSORBOARD,
];

export const TRY: readonly Flag[] = [
  ['--task <id>', 'id of the task, or its number in the file (default: the first)'],
  CHECKPOINT,
];

export const REPLAY: readonly Flag[] = [
  ['--grade', 'only grade what was stored, with the grader as it is now'],
  ['--entry <file>', 'module to run instead of the run’s entry'],
  STORE,
];

export const PREFLIGHT: readonly Flag[] = [
  ['--probe', 'run a group of a few tasks, and say whether a training has anything to learn from; most settings are for it'],
];

/** For the commands that a config file can say everything to. */
export const CONFIG: readonly Flag[] = [
  ['--config <file>', 'settings for this command (default: trainyard.config.ts, .mts, .js or .mjs, or trainyard.toml, if here)'],
  ['--no-config', 'take nothing from a config file'],
  ['--use <name>', 'take the settings of this run of the config file, on top of its others'],
  ['--print-config', 'show every setting and where it comes from, and run nothing'],
];

/** Flags for few, which the first screen only names. */
export const ASIDE: readonly string[] = ['--retry-failed', '--tensorboard', '--no-config', '--use', '--print-config', '--json'];

export const INIT: readonly Flag[] = [
  ['--client <name>', 'openai, anthropic, ai-sdk, openai-agents, langchain, strands, mastra or plain (default: asks; openai)'],
  ['--model-kind <kind>', 'where the model is (default: asks; local)', ['local', 'api', 'tinker']],
  ['--task <name>', 'task to start from (default: asks; shop)', ['shop', 'triage']],
  ['--here <file>', 'instead: say which lines of this agent to change, and add a config file and example tasks'],
  ['--yes', 'ask nothing'],
];

export const SERVE: readonly Flag[] = [
  ['--host <address>', 'address to listen on; others than loopback need a token'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--token <secret>', 'admin key; better in the environment, as TRAINYARD_TOKEN'],
  ['--run <dir>', 'directory to keep rollouts in (default: runs/serve-<time>)'],
  ['--store <url>', 'PostgreSQL database to keep them in: postgres://user@host/database (default: a file in that directory)'],
  ['--entry <file>', 'module that exports a grader, for trajectories of agent flows'],
  ['--tasks <file>', `tasks with the answers that it grades by: ${FILES}`],
  ['--group <n>', 'trajectories of a prompt that make a group, for /fetch_batch', positive],
  ['--max-groups <n>', 'groups that may wait to be fetched (default: any number)', positive],
  ['--group-timeout <time>', 'hand out a group with what it has after 90s, 10m or 2h (default: never)', duration],
  [
    '--temperature <x>',
    'of sampling, whatever agents ask for (default: 1; behind an API, what they ask for)',
    reads(rowOf('temperature')!.kind),
  ],
];

export const TINKER: readonly Flag[] = [
  ['--model <model>', 'as for train (default: the base policy that ships with Trainyard)'],
  ['--host <address>', 'address to listen on; others than loopback need a key'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--api-key <key>', 'begins with tml-; better in the environment, as TINKER_API_KEY (default: the one kept in --state)'],
  ['--state <dir>', 'directory to keep saved weights in'],
  ['--threads <n>', 'threads of each model', positive],
];

export const SKYRL: readonly Flag[] = [
  ['--model <model>', 'folder in Hugging Face layout with safetensors, or Owner/Name after trainyard model get'],
  ['--python <path>', 'a Python that has SkyRL (default: one of its own, made from PyPI in the cache folder)'],
  ['--cpu', 'run without a GPU, slowly, to try it out'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--sequences <n>', 'sequences sampled at once', positive],
  ['--rows <n>', 'sequences trained on at once; fewer need less memory', positive],
  ['--lora-rank <n>', 'highest rank of an adapter', reads(whole(1, 1024))],
  ['--context <n>', 'most tokens of a prompt and its answer', reads(whole(32, 1_000_000))],
  ['--call-tokens <n>', 'most tokens of an answer without compiling again', positive],
];

export const PURPOSE: Flag = ['--purpose <which>', 'only rollouts of training, or of evaluations', ['train', 'eval']];

export const FILTER: Flag = ['--filter <expr>', 'only rollouts that pass, such as: reward<0.2 && turns>5 && tool~search'];

export const VIEW: readonly Flag[] = [
  ['--host <address>', 'address to listen on; others than loopback need a token'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--token <token>', 'for links that work any number of times; better in the environment, as TRAINYARD_VIEW_TOKEN'],
  ['--export <file>', 'instead, write the page with what it shows to one HTML file'],
  FILTER,
  ['--limit <n>', 'rollouts of each run in that file with conversations and tokens, the latest', positive, 50],
  ['--rollout <id>', 'only this rollout in that file'],
  STORE,
];

export const BESIDE: Flag = ['--view', 'show the run in the browser while it goes on'];

export const EXPORT: readonly Flag[] = [
  ['--adapter <dir>', 'write the adapter as a PEFT folder'],
  ['--merged <dir>', 'write the whole model as a Hugging Face folder, with the adapter merged'],
  ['--dtype <format>', 'numbers of the whole model (default: as the base has them)', ['f32', 'f16', 'bf16']],
  ['--gguf-adapter <file>', 'write the adapter as a GGUF file, for llama.cpp and Ollama'],
  ['--base <model>', 'base model of the adapter (default: the one it was trained on)'],
  ['--format <name>', 'instead, write rollouts as training data', ['jsonl', 'parquet', 'trl', 'verl', 'openai']],
  ['--to <file>', 'file to write them to'],
  ['--tensorboard <dir>', 'instead, write the numbers of the run’s events as TensorBoard files'],
  PURPOSE,
  ['--only <which>', 'only such rollouts (default: by the format)', ['successes', 'graded', 'all']],
  FILTER,
  STORE,
];

export const WORKER: readonly Flag[] = [
  ['--store <url>', 'PostgreSQL database that the coordinator keeps its rollouts in: postgres://user@host/database'],
  ['--concurrency <n>', 'rollouts at once (default: 8)', positive],
  ['--run <id>', 'work only for the run with this id, as its run.json has it (default: the one that has been open for longest)'],
  ['--threads <n>', 'threads of the embedded policy', positive],
  ['--grace <seconds>', 'time for rollouts in hand to end after SIGTERM, before they are given back (default: 60)', positive],
];
