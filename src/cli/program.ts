/**
 * The command line, and how a command ends: exit 0 ok, 1 failure, 2 usage or configuration, 4 success below what was asked,
 * 128 and the signal's number where one ended it.
 */
import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { ERROR_CODES, TrainyardError } from '../core/errors.ts';
import { errorEvent, type RunEvent } from '../core/events.ts';
import { quietFrameworks } from '../processes/agent-process.ts';
import { outliveReaders } from './guard.ts';
import { EXIT_OF, type Interrupt } from './interrupt.ts';
import { asCalled, IS_NPM_SCRIPT } from './phrases.ts';
import { jsonLines, textLines } from './report.ts';
import { printable } from './screen/width.ts';
import { addVerbs, type Ended } from './verbs.ts';

const VERSION: string = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version;

export function buildProgram(ended: Ended = () => {}): Command {
  const program = new Command('trainyard')
    .description('Train the TypeScript agent you already have.')
    .version(VERSION)
    .exitOverride();
  program.configureOutput({ outputError: () => {} });
  addVerbs(program, ended);
  return program;
}

/** Returns the exit code; never throws. */
export async function runCli(argv: readonly string[]): Promise<number> {
  outliveReaders();
  const emit = argv.includes('--json') ? jsonLines(process.stdout) : textLines(process.stdout);
  quietFrameworks();
  try {
    let code = 0;
    await buildProgram((of) => {
      code = of;
    }).parseAsync([...argv], { from: 'user' });
    return code;
  } catch (thrown) {
    if (thrown instanceof CommanderError) return usage(thrown, emit, verbIn(argv));
    const error = thrown instanceof TrainyardError ? thrown : undefined;
    fail(emit, errorEvent(thrown));
    if (error === undefined && thrown instanceof Error) process.stderr.write(`${thrown.stack}\n`);
    if (error?.code === 'CANCELLED') return EXIT_OF[error.cause as Interrupt] ?? EXIT_OF.SIGINT;
    return error === undefined ? 1 : ERROR_CODES[error.code].exit;
  }
}

function verbIn([first]: readonly string[]): string | undefined {
  return buildProgram()
    .commands.map((verb) => verb.name())
    .find((name) => name === first);
}

function usage(thrown: CommanderError, emit: (event: RunEvent) => void, verb: string | undefined): number {
  if (thrown.exitCode === 0) return 0;
  if (thrown.code === 'commander.help') return 2;
  const message = thrown.message.replace(/^error: /, '').replaceAll('\n', ' ');
  // Of `npm run trainyard eval x.ts --n 4` npm keeps the flag for itself, and passes on the 4.
  const isSwallowed = IS_NPM_SCRIPT && thrown.code === 'commander.excessArguments';
  const help = `see trainyard ${verb === undefined ? '' : `${verb} `}--help`;
  const hint = isSwallowed ? `npm swallows flags that do not follow --: npm run trainyard -- ${verb ?? '<verb>'} …` : help;
  fail(emit, { type: 'error', code: 'USAGE', message, hint });
  return 2;
}

/** Errors go to stderr for people and, with --json, also to stdout as the last event. */
function fail(emit: (event: RunEvent) => void, shown: RunEvent & { readonly type: 'error' }): void {
  const event = { ...shown, ...(shown.hint === undefined ? {} : { hint: asCalled(shown.hint) }) };
  emit(event);
  // Who stopped it knows that it is no error.
  const head = event.code === 'CANCELLED' ? capitalised(event.message) : `error ${event.code}: ${event.message}`;
  const lines = [head, ...(event.hint === undefined ? [] : [`  ${event.hint}`])];
  process.stderr.write(`${lines.map(printable).join('\n')}\n`);
}

function capitalised(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
}
