/**
 * The verbs and flags of the command line, and how a command ends: exit 0 ok, 1 failure, 2 usage or configuration,
 * 130 interrupted. docs/reference/cli.md is kept equal to the flags by a test.
 */
import { readFileSync } from 'node:fs';
import { Command, CommanderError, InvalidArgumentError } from 'commander';
import { ERROR_CODES, TrainyardError } from '../core/errors.ts';
import { errorEvent, type RunEvent } from '../core/events.ts';
import { EVAL_DEFAULTS, TRAIN_DEFAULTS } from '../run/settings.ts';
import { evalCommand } from './eval.ts';
import { jsonLines, textLines } from './report.ts';
import { trainCommand } from './train.ts';

const VERSION: string = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version;

export function buildProgram(): Command {
  const program = new Command('trainyard')
    .description('Train the TypeScript agent you already have.')
    .version(VERSION)
    .exitOverride();
  program.configureOutput({ outputError: () => {} });
  const train = program.command('train').description('improve the policy on the tasks by reinforcement learning');
  shared(train)
    .option('--tasks <file>', 'tasks to train on, JSONL (default: train.jsonl beside the entry)')
    .option('--steps <n>', 'optimizer steps', positive, TRAIN_DEFAULTS.steps)
    .option('--group <n>', 'rollouts per group, at least 2', groupSize, TRAIN_DEFAULTS.group)
    .option('--groups-per-step <n>', 'groups with signal per step', positive, TRAIN_DEFAULTS.groupsPerStep)
    .option('--run <dir>', 'directory of this run (default: runs/<entry>-<time>)')
    .action(trainCommand);
  const evaluate = program.command('eval').description('measure the policy on held-out tasks');
  shared(evaluate).action(evalCommand);
  return program;
}

function shared(command: Command): Command {
  return command
    .exitOverride()
    .argument('<entry>', 'module that exports the workflow and the grader')
    .option('--held-out <file>', 'tasks to evaluate on, JSONL (default: held-out.jsonl beside the entry)')
    .option('--model <dir>', 'model folder (default: the base policy that ships with Trainyard)')
    .option('--concurrency <n>', 'rollouts at once', positive, EVAL_DEFAULTS.concurrency)
    .option('--seed <n>', 'seed of everything random', natural, EVAL_DEFAULTS.seed)
    .option('--transcripts <n>', 'held-out conversations to show', natural, EVAL_DEFAULTS.transcripts)
    .option('--json', 'one JSON event a line', false);
}

function natural(text: string): number {
  if (!/^\d{1,15}$/.test(text)) throw new InvalidArgumentError(`expected a whole number, found ${JSON.stringify(text)}`);
  return Number(text);
}

function positive(text: string): number {
  const value = natural(text);
  if (value > 1_000_000) throw new InvalidArgumentError('expected at most 1000000');
  if (value === 0) throw new InvalidArgumentError('expected at least 1');
  return value;
}

function groupSize(text: string): number {
  const value = positive(text);
  if (value < 2) throw new InvalidArgumentError('expected at least 2: a rollout is compared with the others of its group');
  return value;
}

/** Returns the exit code; never throws. */
export async function runCli(argv: readonly string[]): Promise<number> {
  const emit = argv.includes('--json') ? jsonLines(process.stdout) : textLines(process.stdout);
  try {
    await buildProgram().parseAsync([...argv], { from: 'user' });
    return 0;
  } catch (thrown) {
    if (thrown instanceof CommanderError) return usage(thrown, emit);
    const error = thrown instanceof TrainyardError ? thrown : undefined;
    fail(emit, errorEvent(thrown));
    if (error === undefined && thrown instanceof Error) process.stderr.write(`${thrown.stack}\n`);
    if (error?.code === 'CANCELLED') return 130;
    return error === undefined ? 1 : ERROR_CODES[error.code].exit;
  }
}

function usage(thrown: CommanderError, emit: (event: RunEvent) => void): number {
  if (thrown.exitCode === 0) return 0;
  if (thrown.code === 'commander.help') return 2;
  const message = thrown.message.replace(/^error: /, '').replaceAll('\n', ' ');
  fail(emit, { type: 'error', code: 'USAGE', message, hint: 'see trainyard --help' });
  return 2;
}

/** Errors go to stderr for people and, with --json, also to stdout as the last event. */
function fail(emit: (event: RunEvent) => void, event: RunEvent & { readonly type: 'error' }): void {
  emit(event);
  process.stderr.write(`error ${event.code}: ${event.message}${event.hint === undefined ? '' : `\n  ${event.hint}`}\n`);
}
