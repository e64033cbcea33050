/**
 * Runs the real command: in a process of its own, or many commands one after another in one process. Entries lie in a scratch folder inside
 * the package so that they can import `trainyard`.
 */
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll } from 'vitest';
import type { RunEvent } from '../../src/core/events.ts';

export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export async function scratch(): Promise<{
  readonly dir: string;
  write(name: string, text: string): Promise<string>;
  remove(): Promise<void>;
}> {
  await mkdir(join(ROOT, 'runs'), { recursive: true });
  const dir = await mkdtemp(join(ROOT, 'runs', 'test-'));
  return {
    dir,
    write: async (name, text) => {
      await writeFile(join(dir, name), text);
      return join(dir, name);
    },
    remove: () => rm(dir, { recursive: true, force: true }),
  };
}

/** One for all tests of a file. */
export function useScratch(): Pick<Awaited<ReturnType<typeof scratch>>, 'dir' | 'write'> {
  let home: Awaited<ReturnType<typeof scratch>>;
  beforeAll(async () => {
    home = await scratch();
  });
  afterAll(() => home.remove());
  return {
    get dir() {
      return home.dir;
    },
    write: (name, text) => home.write(name, text),
  };
}

/** `shell` is run before the command, in the same process: for limits. */
export function start(args: readonly string[], cwd = ROOT, shell = ':') {
  const command = [process.execPath, '--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts'), ...args];
  const child = spawn('sh', ['-c', `${shell}; exec "$@"`, 'sh', ...command], { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  const ended = new Promise<Ended>((resolve) => child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr })));
  const early = ended.then((how) => Promise.reject(new Error(`the command ended: ${JSON.stringify(how)}`)));
  early.catch(() => undefined);
  /** Resolves as soon as standard output contains the text; rejects where the command ends without it. */
  const prints = async (text: string): Promise<void> => {
    while (!stdout.includes(text)) await Promise.race([once(child.stdout, 'data'), early]);
  };
  return { child, ended, prints, stdout: () => stdout };
}

/** Begins a command; `first` is the first line that it prints with `--json`. */
export async function started<First>(args: readonly string[], cwd?: string, shell?: string) {
  const command = start(args, cwd, shell);
  await command.prints('\n');
  return { ...command, first: JSON.parse(command.stdout().split('\n')[0]!) as First };
}

/** Begins a command and kills it with SIGKILL as soon as its output contains the text. */
export async function killedAt(text: string, args: readonly string[]): Promise<void> {
  const { child, ended, prints } = start(args);
  await prints(text);
  child.kill('SIGKILL');
  await ended;
}

/** What a command printed with `--json`. */
export const jsonLines = <T = RunEvent>(text: string): T[] =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as T);

/** The same, to look into whatever it holds. */
// biome-ignore lint/suspicious/noExplicitAny: tests compare what they find
export const saidIn = ({ stdout }: Pick<Ended, 'stdout'>): readonly any[] => jsonLines(stdout);

export const trainyard = (...args: readonly string[]): Promise<Ended> => start(args).ended;

let shared: ChildProcess | undefined;
let commands = 0;

/**
 * The same in one process for all commands of a test file, which saves starting one for each. For commands that get no signal, do not leave
 * the process and need no environment of their own. An entry is imported once: give each text its own file name.
 */
export async function sharedTrainyard(...argv: readonly string[]): Promise<Ended> {
  if (shared === undefined) {
    const execArgv = ['--conditions=trainyard-source'];
    shared = fork(join(ROOT, 'test/fixtures/cli/many-commands.ts'), { execArgv, cwd: ROOT }).setMaxListeners(0);
    shared.unref();
    shared.channel?.unref();
  }
  const [child, id] = [shared, ++commands];
  return await new Promise((resolve, reject) => {
    const failed = (code: number | null): void =>
      reject(new Error(`the process of the commands exited with ${code} in: ${argv.join(' ')}`));
    const answered = (answer: { readonly id: number; readonly ended: Ended }): void => {
      if (answer.id !== id) return;
      child.off('message', answered).off('exit', failed);
      resolve(answer.ended);
    };
    child.on('message', answered).once('exit', failed);
    child.send({ id, argv });
  });
}
