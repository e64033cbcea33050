/** The verbs of the command line and their flags. docs/reference/cli.md is kept equal to them by a test. */
import { type Command, Option } from 'commander';
import { USUAL_ERROR_SHARE } from '../run/evaluation-settings.ts';
import { EVAL_DEFAULTS, TRAIN_DEFAULTS } from '../run/settings.ts';
import { ENGINES } from '../run/settings-check.ts';
import { ALGORITHMS, WEIGHTINGS } from '../trainer/advantages.ts';
import { curateCommand } from './curate.ts';
import { diffCommand } from './diff.ts';
import { evalCommand } from './eval.ts';
import {
  algorithm,
  duration,
  groupSize,
  natural,
  number,
  port,
  positive,
  roles,
  share,
  temperature,
  weighting,
} from './flag-values.ts';
import { preflightCommand } from './preflight.ts';
import { SERVE_DEFAULTS, serveCommand } from './serve.ts';
import { showCommand } from './show.ts';
import { TINKER_DEFAULTS, tinkerCommand } from './tinker.ts';
import { trainCommand } from './train.ts';
import { tryCommand } from './try.ts';
import { verifyCommand } from './verify.ts';

/** Told the exit code of the verb that ran. */
export type Ended = (code: number) => void;

export function addVerbs(program: Command, ended: Ended): void {
  addTrain(program, ended);
  addEval(program, ended);
  addDiff(program, ended);
  addTry(program, ended);
  addPreflight(program, ended);
  addServe(program, ended);
  addTinker(program, ended);
  addShow(program, ended);
  addCurate(program, ended);
  addVerify(program, ended);
}

function addTrain(program: Command, ended: Ended): void {
  const train = program.command('train').description('improve the policy on the tasks by reinforcement learning');
  shared(train.argument('[entry]', 'module that exports the workflow and the grader'))
    .option('--tasks <file>', 'tasks to train on: JSONL, CSV or Parquet (default: train.jsonl beside the entry)')
    .option('--run <dir>', 'directory of this run (default: runs/<entry>-<time>)')
    .option('--resume <dir>', 'go on with the run in this directory, with its settings')
    .option('--trainable <roles>', 'roles to train, separated by commas (default: those the workflow says)', roles);
  for (const [flag, meaning, parse, byDefault] of TRAIN_FLAGS) {
    train.option(flag, byDefault === undefined ? meaning : `${meaning} (default: ${byDefault})`, parse);
  }
  train.action(async (entry, flags) => ended(await trainCommand(entry, flags)));
}

function addEval(program: Command, ended: Ended): void {
  const evaluate = program.command('eval').description('measure the policy on held-out tasks');
  shared(evaluate.argument('[entry]', 'module that exports the workflow and the grader')).option(
    '--trainable <roles>',
    'roles that the policy plays, as in training (default: those the workflow says)',
    roles,
  );
  evaluationFlags(evaluate).action(async (entry, flags) => ended(await evalCommand(entry, flags)));
}

function addDiff(program: Command, ended: Ended): void {
  program
    .command('diff')
    .description('compare two evaluations task by task')
    .exitOverride()
    .argument('<a>', 'directory of an evaluation, or of a training run')
    .argument('<b>', 'directory of the one to compare with it')
    .option('--json', 'one JSON object', false)
    .action(async (a, b, flags) => ended(await diffCommand(a, b, flags)));
}

function addTry(program: Command, ended: Ended): void {
  const once = program.command('try').description('run one rollout of one task and show it turn by turn');
  withFlows(once.argument('[entry]', 'module that exports the workflow and the grader'))
    .exitOverride()
    .option('--task <id>', 'id of the task, or its number in the file (default: the first)')
    .option('--tasks <file>', 'file it is in: JSONL, CSV or Parquet (default: held-out.jsonl beside the entry)')
    .option('--model <dir>', 'model folder or checkpoint (default: the base policy that ships with Trainyard)')
    .option('--temperature <x>', 'of trainable roles (default: 1)', temperature)
    .option('--turns <n>', `most model calls of the rollout (default: ${EVAL_DEFAULTS.limits.turns})`, positive)
    .option('--trainable <roles>', 'roles to train, separated by commas (default: those the workflow says)', roles)
    .option('--seed <n>', `seed of everything random (default: ${EVAL_DEFAULTS.seed})`, natural)
    .option('--json', 'one JSON object a line', false)
    .action(async (entry, flags) => ended(await tryCommand(entry, flags)));
}

function addPreflight(program: Command, ended: Ended): void {
  const check = program
    .command('preflight')
    .description('check an entry and its tasks, and say everything that is wrong; runs nothing');
  withFlows(check.argument('[entry]', 'module that exports the workflow and the grader'))
    .exitOverride()
    .option('--tasks <file>', 'tasks to train on: JSONL, CSV or Parquet (default: train.jsonl beside the entry, if it exists)')
    .option(
      '--held-out <file>',
      'tasks to evaluate on: JSONL, CSV or Parquet (default: held-out.jsonl beside the entry, if it exists)',
    )
    .option('--min-tasks <n>', 'refuse fewer tasks to train on', positive, TRAIN_DEFAULTS.minTasks)
    .option('--json', 'one JSON object', false)
    .action(async (entry, flags) => ended(await preflightCommand(entry, flags)));
}

function addServe(program: Command, ended: Ended): void {
  program
    .command('serve')
    .description('put the policy at a URL, and capture what agents do with it')
    .exitOverride()
    .option('--model <dir>', 'model folder (default: the base policy that ships with Trainyard)')
    .option('--host <address>', `address to listen on; others than loopback need a token (default: ${SERVE_DEFAULTS.host})`)
    .option('--port <n>', 'port to listen on (default: a free one)', port)
    .option('--token <secret>', 'admin key; better in the environment, as TRAINYARD_TOKEN')
    .option('--run <dir>', 'directory to keep rollouts in (default: runs/serve-<time>)')
    .option('--entry <file>', 'module that exports a grader, for trajectories of agent flows')
    .option('--tasks <file>', 'tasks with the answers that it grades by: JSONL, CSV or Parquet')
    .option(
      '--group <n>',
      `trajectories of a prompt that make a group, for /fetch_batch (default: ${SERVE_DEFAULTS.group})`,
      positive,
    )
    .option('--max-groups <n>', 'groups that may wait to be fetched (default: any number)', positive)
    .option('--group-timeout <time>', 'hand out a group with what it has after 90s, 10m or 2h (default: never)', duration)
    .option('--temperature <x>', `of sampling, whatever agents ask for (default: ${SERVE_DEFAULTS.temperature})`, temperature)
    .option('--threads <n>', `threads of the embedded policy (default: the cores, here ${SERVE_DEFAULTS.threads})`, positive)
    .option('--seed <n>', `seed of sampling (default: ${SERVE_DEFAULTS.seed})`, natural)
    .option('--json', 'one JSON object a line', false)
    .action(async (flags) => ended(await serveCommand(flags)));
}

function addTinker(program: Command, ended: Ended): void {
  program
    .command('tinker')
    .description('serve the Tinker API on a model folder, so that Tinker programs train it here')
    .exitOverride()
    .option('--model <dir>', 'model folder (default: the base policy that ships with Trainyard)')
    .option('--host <address>', `address to listen on; others than loopback need a key (default: ${TINKER_DEFAULTS.host})`)
    .option('--port <n>', 'port to listen on (default: a free one)', port)
    .option(
      '--api-key <key>',
      'begins with tml-; better in the environment, as TINKER_API_KEY (default: the one kept in --state)',
    )
    .option('--state <dir>', `directory to keep saved weights in (default: ${TINKER_DEFAULTS.state})`)
    .option('--threads <n>', `threads of each model (default: the cores, here ${TINKER_DEFAULTS.threads})`, positive)
    .option('--json', 'one JSON object a line', false)
    .action(async (flags) => ended(await tinkerCommand(flags)));
}

function addShow(program: Command, ended: Ended): void {
  program
    .command('show')
    .description('show what a run kept: its rollouts, or one of them turn by turn')
    .exitOverride()
    .argument('<run>', 'directory of a run, or a store file')
    .argument('[rollout]', 'id of the rollout to show turn by turn')
    .addOption(new Option('--purpose <which>', 'only rollouts of training, or of evaluations').choices(['train', 'eval']))
    .option('--forks', 'only rollouts whose conversations did not simply go on', false)
    .option('--limit <n>', 'rollouts to show, the latest', positive, 50)
    .option('--json', 'one JSON object a line', false)
    .action(async (run, rollout, flags) => ended(await showCommand(run, rollout, flags)));
}

function addVerify(program: Command, ended: Ended): void {
  program
    .command('verify')
    .description('do a run again from its store, and say whether turns, rewards, steps and checkpoints are as they were kept')
    .exitOverride()
    .argument('<run>', 'directory of a training run or an evaluation')
    .option('--json', 'one JSON object', false)
    .action(async (run, flags) => ended(await verifyCommand(run, flags)));
}

function addCurate(program: Command, ended: Ended): void {
  program
    .command('curate')
    .description('leave rollouts or turns of a run out of training, or take that back; without rollouts: what is left out')
    .exitOverride()
    .argument('<run>', 'directory of a run, or a store file')
    .argument('[rollouts...]', 'ids of the rollouts that are meant')
    .option('--turn <n>', 'only this turn of them, counted from 0', natural)
    .option('--reason <text>', 'why; kept with the mark')
    .option('--undo', 'take it back', false)
    .option('--json', 'one JSON object a line', false)
    .action(async (run, rollouts, flags) => ended(await curateCommand(run, rollouts, flags)));
}

function evaluationFlags(command: Command): Command {
  return command
    .option('--n <k>', 'rollouts per task (default: 1)', positive)
    .option('--rows <list>', 'rows of the task file, such as 3,7,10-20 (default: all)')
    .option('--temperature <x>', 'of sampling (default: 0, or 1 with several rollouts per task)', temperature)
    .option('--checkpoint <dir>', 'instead of --model: a checkpoint, or the directory of a run, of which the best is taken')
    .option('--run <dir>', 'directory of this evaluation (default: runs/eval-<entry>-<time>)')
    .option('--resume <dir>', 'go on with the evaluation in this directory, with its settings')
    .option('--retry-failed', 'with --resume: run failed rollouts and gradings again', false)
    .option('--max-error-share <x>', `stop when more of the gradings fail, 0 to 1 (default: ${USUAL_ERROR_SHARE})`, share)
    .option('--min-success <share>', 'exit with 4 if success is below this, from 0 to 1', share)
    .option('--junit <file>', 'write a JUnit report, a test case for each task')
    .option('--report <file>', 'write a JSON report, with every task and rollout');
}

/** Numbers of a training run; each is the setting of the same name. */
const TRAIN_FLAGS: readonly (readonly [flag: string, meaning: string, parse: (text: string) => unknown, byDefault: unknown])[] = [
  ['--min-tasks <n>', 'refuse fewer tasks to train on', positive, TRAIN_DEFAULTS.minTasks],
  ['--split <share>', 'hold out this share of the tasks, such as 0.1, instead of a file', share, undefined],
  ['--steps <n>', 'optimizer steps', positive, TRAIN_DEFAULTS.steps],
  ['--group <n>', 'rollouts per group, at least 2', groupSize, TRAIN_DEFAULTS.group],
  ['--groups-per-step <n>', 'groups with signal per step', positive, TRAIN_DEFAULTS.groupsPerStep],
  ['--staleness <k>', 'policy versions rollouts may run ahead of training; 0 waits', natural, TRAIN_DEFAULTS.staleness],
  ['--algorithm <name>', `how rewards become advantages: ${ALGORITHMS.join(', ')}`, algorithm, TRAIN_DEFAULTS.algorithm],
  ['--weighting <what>', `what counts alike in a step: ${WEIGHTINGS.join(', ')}`, weighting, TRAIN_DEFAULTS.weighting],
  ['--turn-discount <x>', 'how much of what later turns earn counts for a turn, 0 to 1', share, undefined],
  ['--max-error-share <x>', 'end the run when more of the gradings fail, 0 to 1', share, TRAIN_DEFAULTS.maxErrorShare],
  ['--learning-rate <x>', 'of the first steps; it falls to a tenth', number, TRAIN_DEFAULTS.learningRate],
  ['--temperature <x>', 'of training rollouts', number, TRAIN_DEFAULTS.temperature],
  ['--clip-low <x>', 'how far below 1 PPO lets the ratio count', number, TRAIN_DEFAULTS.clipLow],
  ['--clip-high <x>', 'how far above 1 PPO lets the ratio count', number, TRAIN_DEFAULTS.clipHigh],
  ['--kl <x>', 'KL penalty against the policy training began with', number, TRAIN_DEFAULTS.kl],
  ['--eval-every <n>', 'steps between evaluations on the way; 0 for none', natural, TRAIN_DEFAULTS.evalEvery],
  ['--eval-tasks <n>', 'held-out tasks of those evaluations', positive, TRAIN_DEFAULTS.evalTasks],
  [
    '--patience <n>',
    'end after so many of them, in a row, no better than an earlier one; 0 never',
    natural,
    TRAIN_DEFAULTS.patience,
  ],
  ['--checkpoint-every <n>', 'steps between checkpoints', positive, TRAIN_DEFAULTS.checkpointEvery],
  ['--max-time <time>', 'begin no step after 90s, 10m or 2h', duration, undefined],
  ['--max-tokens <n>', 'begin no step after so many sampled tokens', positive, undefined],
];

function withFlows(command: Command): Command {
  return command
    .option('--flow <name>', 'the agent flow to run, by its name; a task’s agent_name chooses another')
    .option('--flows <file>', 'YAML list of agent flows; then the entry may be left out');
}

function shared(command: Command): Command {
  return withFlows(command)
    .exitOverride()
    .option('--held-out <file>', 'tasks to evaluate on: JSONL, CSV or Parquet (default: held-out.jsonl beside the entry)')
    .option('--model <dir>', 'model folder or checkpoint (default: the base policy that ships with Trainyard)')
    .addOption(
      new Option(
        '--engine <where>',
        `where the policy is: in this process, or at the Tinker server of TINKER_BASE_URL and TINKER_API_KEY (default: ${EVAL_DEFAULTS.engine})`,
      ).choices(ENGINES),
    )
    .option('--base-model <name>', 'the Tinker server’s name of the model (default: the only one it has)')
    .option('--lora-rank <n>', `rank of the adapter a Tinker server trains (default: ${EVAL_DEFAULTS.loraRank})`, positive)
    .option('--call-tokens <n>', `most tokens one model call may sample (default: ${EVAL_DEFAULTS.callTokens})`, positive)
    .option('--turns <n>', `most model calls of one rollout (default: ${EVAL_DEFAULTS.limits.turns})`, positive)
    .option('--concurrency <n>', `rollouts at once (default: ${EVAL_DEFAULTS.concurrency})`, positive)
    .option(
      '--workflow-workers <n>',
      `processes of a workflow with isolation "process" (default: two a core, at most 16, here ${EVAL_DEFAULTS.workflowWorkers})`,
      positive,
    )
    .option('--grader-workers <n>', `processes that grade (default: ${EVAL_DEFAULTS.graderWorkers})`, positive)
    .option(
      '--grader-deadline <time>',
      `for one grading, such as 90s or 10m (default: ${EVAL_DEFAULTS.graderDeadlineMs / 1000}s)`,
      duration,
    )
    .option('--threads <n>', `threads of the embedded policy (default: the cores, here ${EVAL_DEFAULTS.threads})`, positive)
    .option('--seed <n>', `seed of everything random (default: ${EVAL_DEFAULTS.seed})`, natural)
    .option('--transcripts <n>', 'held-out conversations to show (default: 0)', natural)
    .option('--json', 'one JSON event a line', false);
}
