/**
 * The command line and its exit codes: 0 ok, 1 failure, 2 usage or configuration, 4 success below `--min-success`, 128 plus the number of
 * the signal that ended it.
 */
import { constants } from 'node:os';
import { Command, CommanderError } from 'commander';
import { printableLine } from '../core/describe.ts';
import { ERROR_CODES } from '../core/error-codes.ts';
import { TrainyardError } from '../core/errors.ts';
import { errorEvent, lineOf, type RunEvent } from '../core/events.ts';
import { ownRelease } from '../settings/settings.ts';
import { asTyped } from './flags.ts';
import { filterOutput } from './output/terminal.ts';
import { asCalled, IS_NPM_SCRIPT } from './output/text.ts';
import { addVerbs, type Ended } from './verbs.ts';

export function buildProgram(ended: Ended = () => {}): Command {
  const program = new Command('trainyard')
    .description('Train the TypeScript agent you already have.')
    .version(ownRelease())
    .exitOverride()
    .configureOutput({ outputError: () => {} })
    // Before any user code is loaded.
    .hook('preAction', async () => (await import('../processes/agent-process.ts')).quietFrameworks());
  addVerbs(program, ended);
  return program;
}

/** Returns the exit code; never throws. */
export async function runCli(argv: readonly string[]): Promise<number> {
  outliveReaders();
  const json = argv.includes('--json');
  filterOutput(json);
  try {
    let code = 0;
    await buildProgram((of) => {
      code = of;
    }).parseAsync([...argv], { from: 'user' });
    return code;
  } catch (thrown) {
    if (thrown instanceof CommanderError) return usage(thrown, json, argv[0]);
    const event = errorEvent(thrown);
    fail({ ...event, message: asTyped(event.message, argv) }, json);
    if (!(thrown instanceof TrainyardError)) {
      if (thrown instanceof Error) process.stderr.write(`${thrown.stack}\n`);
      return 1;
    }
    const { code, cause } = thrown;
    return code === 'CANCELLED' ? exitOf(cause as NodeJS.Signals | undefined) : ERROR_CODES[code].exit;
  }
}

export function exitOf(signal: NodeJS.Signals = 'SIGINT'): number {
  return 128 + (constants.signals[signal] ?? constants.signals.SIGINT);
}

/** A command goes on when its output cannot be written: the reader left, the terminal closed, the disk is full. The exit code tells the last. */
export function outliveReaders(): void {
  for (const out of [process.stdout, process.stderr]) out.on('error', () => {});
}

function usage({ exitCode, code, message }: CommanderError, json: boolean, first: string | undefined): number {
  if (exitCode === 0) return 0;
  if (code === 'commander.help') return 2;
  const verb = buildProgram().commands.find((one) => one.name() === first) && `${first} `;
  // For `npm run trainyard eval x.ts --n 4`, npm takes the flag itself and passes on only the 4.
  const isSwallowed = IS_NPM_SCRIPT && code === 'commander.excessArguments';
  const hint = isSwallowed
    ? `npm swallows flags that do not follow --: npm run trainyard -- ${verb ?? '<verb> '}…`
    : `see trainyard ${verb ?? ''}--help${code === 'commander.unknownOption' ? ', and trainyard help settings' : ''}`;
  fail({ type: 'error', code: 'USAGE', message: message.replace(/^error: /, '').replaceAll('\n', ' '), hint }, json);
  return 2;
}

/** Errors go to stderr and, with --json, also to stdout as the last event. */
function fail(shown: RunEvent & { readonly type: 'error' }, json: boolean): void {
  const event = { ...shown, ...(shown.hint === undefined ? {} : { hint: asCalled(shown.hint) }) };
  if (json) process.stdout.write(lineOf(event));
  const { code, message, hint } = event;
  // A user who stopped the command does not see that as an error.
  const head = code === 'CANCELLED' ? `${message.charAt(0).toUpperCase()}${message.slice(1)}` : `error ${code}: ${message}`;
  process.stderr.write(`${[head, ...(hint === undefined ? [] : [`  ${hint}`])].map(printableLine).join('\n')}\n`);
}
