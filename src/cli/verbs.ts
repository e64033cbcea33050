/**
 * Declares the command line's verbs; flags.ts has their flags, and a test keeps the verbs of docs/reference/cli.md equal to these. Each verb's
 * implementation is loaded only when it is called.
 */
import { Argument, type Command, Option } from 'commander';
import { TrainyardError } from '../core/errors.ts';
import type { Verb } from '../settings/kinds.ts';
import { SERVE_DEFAULTS, SKYRL_DEFAULTS, TINKER_DEFAULTS } from '../settings/server-defaults.ts';
import { nested } from '../settings/setting-rows.ts';
import {
  ASIDE,
  BESIDE,
  CONFIG,
  ENTRY,
  EVAL,
  EXPORT,
  FILTER,
  type Flag,
  INIT,
  natural,
  PREFLIGHT,
  PURPOSE,
  positive,
  REPLAY,
  SERVE,
  SKYRL,
  STORE,
  setOption,
  settingOptions,
  settingsIn,
  TINKER,
  TRAIN,
  TRY,
  VIEW,
  WORKER,
} from './flags.ts';
import { describeVerbs, helpCommand } from './help.ts';

export type Ended = (code: number) => void;
type Values = Readonly<Record<string, unknown>>;
/** Commands that take settings from a config file. */
export type ConfiguredVerb = Exclude<Verb, 'sft' | 'serve'>;

/** Adds a verb with its flags. */
function verbIn(
  program: Command,
  name: string,
  description: string,
  json: string,
  flags: readonly (Flag | Option)[] = [],
  defaults: object = {},
): Command {
  const verb = program.command(name).description(description).exitOverride();
  for (const flag of flags) verb.addOption(flag instanceof Option ? flag : optionOf(flag, defaults));
  return verb.option('--json', json, false);
}

/** The default is only shown: the command has it of its own. */
function optionOf([flag, meaning, parse, given]: Flag, defaults: object): Option {
  const plain = new Option(flag);
  const byDefault = given ?? (defaults as Readonly<Record<string, unknown>>)[plain.attributeName()];
  const isSaid = byDefault === undefined || meaning.includes('(default: ');
  const option = new Option(flag, isSaid ? meaning : `${meaning} (default: ${byDefault})`);
  if (typeof parse === 'function') option.argParser(parse);
  else if (parse !== undefined) option.choices(parse);
  return option;
}

/** Adds a verb that has settings: a flag for each, and `--set` for any of them. What few need is not on the first screen. */
function verbWithSettings(program: Command, name: Verb, description: string, json: string, flags: readonly Flag[] = []): Command {
  const verb = verbIn(program, name, description, json, [...settingOptions(name), ...flags], SERVE_DEFAULTS);
  if (name === 'serve') return verb;
  for (const option of verb.options) if (ASIDE.includes(option.long ?? '')) option.hideHelp();
  return verb.addOption(setOption());
}

/** Loads a command when it is called, and calls it with the arguments and flags. */
type Load = () => Promise<(...given: never[]) => Promise<number>>;

/** Adds a verb whose settings may also come from a config file. Its command is not run if what the file says was to be printed. */
function configuredVerb(
  program: Command,
  ended: Ended,
  name: ConfiguredVerb,
  description: string,
  json: string,
  flags: readonly Flag[],
  load: Load,
): void {
  verbWithSettings(program, name, description, json, [...flags, ...CONFIG])
    .argument(...ENTRY)
    .action(async (entry: string | undefined, given: Values, { options }: Command) => {
      const { withConfig } = await import('./with-config.ts');
      const configured = await withConfig(name, entry, settingsIn(name, given, options));
      if (configured !== undefined) ended(await (await load())(configured.entry as never, configured.flags as never));
    });
}

export function addVerbs(program: Command, ended: Ended): void {
  const add = verbIn.bind(null, program);
  const addConfigured = configuredVerb.bind(null, program, ended);
  const runs =
    (load: Load) =>
    async (...given: unknown[]): Promise<void> =>
      ended(await (await load())(...(given as never[])));
  const events = 'one JSON event a line';
  const objects = 'one JSON object a line';
  const object = 'one JSON object';

  add('init', 'write a project that is ready to measure and train, or say what to change in an agent', object, INIT)
    .argument('[folder]', 'new folder for it (default: my-agent)')
    .action(runs(async () => (await import('./init.ts')).initCommand));
  const improving = 'improve the policy on the tasks by reinforcement learning';
  addConfigured('train', improving, events, [...TRAIN, BESIDE], async () => (await import('./train.ts')).trainCommand);
  verbWithSettings(program, 'sft', 'teach the policy what a run’s successes, or a file’s conversations, say', events)
    .argument('<from>', 'directory of a run, or a JSONL file in OpenAI’s fine-tuning format')
    .action(async (from, flags, { options }) => {
      const { sftCommand } = await import('./train.ts');
      ended(await sftCommand(from, nested(Object.entries(settingsIn('sft', flags, options))) as never));
    });
  const measuring = 'measure the policy on held-out tasks';
  addConfigured('eval', measuring, events, [...EVAL, BESIDE], async () => (await import('./eval.ts')).evalCommand);
  add('diff', 'compare two evaluations task by task', object, [STORE])
    .argument('<a>', 'directory of an evaluation, or of a training run')
    .argument('<b>', 'directory of the one to compare with it')
    .action(runs(async () => (await import('./eval.ts')).diffCommand));
  const trying = 'run one rollout of one task and show it turn by turn';
  addConfigured('try', trying, objects, TRY, async () => (await import('./try.ts')).tryCommand);
  const checking = 'check an entry and its tasks, and say everything that is wrong; without --probe nothing is run';
  addConfigured('preflight', checking, object, PREFLIGHT, async () => (await import('./preflight.ts')).preflightCommand);
  verbWithSettings(program, 'serve', 'put the policy at a URL, and capture what agents do with it', objects, SERVE).action(
    async (flags, { options }) => {
      const { serveCommand } = await import('./serve.ts');
      ended(await serveCommand(settingsIn('serve', flags, options) as never));
    },
  );
  add('worker', 'run rollouts for a run with --workers external, on any machine that reaches its database', objects, WORKER)
    .argument('[entry]', 'where the entry is here (default: where the coordinator has it)')
    .action(runs(async () => (await import('./worker.ts')).workerCommand));
  add(
    'tinker',
    'serve the Tinker API on a model folder, so that Tinker programs train it here',
    objects,
    TINKER,
    TINKER_DEFAULTS,
  ).action(runs(async () => (await import('./serve.ts')).tinkerCommand));
  add('skyrl', 'start SkyRL’s Tinker server on this machine’s GPU, for --engine tinker', objects, SKYRL, SKYRL_DEFAULTS).action(
    runs(async () => (await import('./serve.ts')).skyrlCommand),
  );
  add('model', 'get: download a model of the Hugging Face hub into the local cache, for --model', objects)
    .addArgument(new Argument('<what>', 'what to do').choices(['get']))
    .argument('<name>', 'its name at the hub, such as HuggingFaceTB/SmolLM2-135M-Instruct')
    .argument('[file]', 'of a repository of GGUF files: the one to download')
    .action(runs(async () => (await import('./model.ts')).modelCommand));
  add('export', 'write trained weights, or rollouts as training data, for other programs', object, EXPORT)
    .argument('<run>', 'directory of a run, of which the best checkpoint is taken, a checkpoint, or a PEFT folder; a store file')
    .action(runs(async () => (await import('./export.ts')).exportCommand));
  add('show', 'show what a run kept: its rollouts, or one of them turn by turn', objects, [PURPOSE, FILTER, STORE])
    .option('--forks', 'only rollouts whose conversations did not simply go on', false)
    .option('--limit <n>', 'rollouts to show, the latest', positive, 50)
    .argument('<run>', 'directory of a run, or a store file; with --store, also its id')
    .argument('[rollout]', 'id of the rollout to show turn by turn')
    .action(runs(async () => (await import('./show.ts')).showCommand));
  add('replay', 'run a stored rollout’s workflow again against the recorded answers, and show what differs', objects, REPLAY)
    .argument('<run>', 'directory of a training run or an evaluation')
    .argument('<rollout>', 'id of the rollout')
    .action(runs(async () => (await import('./replay.ts')).replayCommand));
  add('view', 'show runs in the browser: curves, rollouts, single tokens', objects, VIEW, { host: SERVE_DEFAULTS.host })
    .argument('[runs...]', 'directories of runs, folders of them, or store files (default: runs)', ['runs'])
    .action(runs(async () => (await import('./view.ts')).viewCommand));
  const curating = 'leave rollouts or turns of a run out of training, or take that back; without rollouts: what is left out';
  add('curate', curating, objects, [STORE])
    .option('--turn <n>', 'only this turn of them, counted from 0', natural)
    .option('--reason <text>', 'why; kept with the mark')
    .option('--undo', 'take it back', false)
    .argument('<run>', 'directory of a run, or a store file; with --store, also its id')
    .argument('[rollouts...]', 'ids of the rollouts that are meant')
    .action(runs(async () => (await import('./show.ts')).curateCommand));
  const verifying = 'do a run again from its store, and say whether turns, rewards, steps and checkpoints are as they were kept';
  add('verify', verifying, object, [STORE])
    .argument('<run>', 'directory of a training run or an evaluation')
    .action(runs(async () => (await import('./show.ts')).verifyCommand));
  add('doctor', 'look at what training on this machine needs, and say what is missing', object).action(
    runs(async () => (await import('./doctor.ts')).doctorCommand),
  );
  // Commander's own knows only verbs.
  const help = program.helpCommand(false).command('help').description('show a page of the guide, or what an error code means');
  help
    .exitOverride()
    .argument('[topic]', 'a verb, a page or an error code (default: lists them)')
    .action((topic) => helpCommand(program, topic));
  describeVerbs(program);
}

export function entryGiven(entry: string | undefined, hint: string): string {
  if (entry !== undefined) return entry;
  throw new TrainyardError('USAGE', 'missing required argument: entry', hint);
}
