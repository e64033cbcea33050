/**
 * Programs that a check runs: one that is waited for, and a server that is stopped when the check is over.
 *
 * Both have a time limit. What a program wrote is told when it fails, its end at least.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Program {
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly limitMs: number;
}

/** Our command line, run from its source by this very Node. */
export const TRAINYARD: Pick<Program, 'command' | 'args'> = {
  command: process.execPath,
  args: ['--conditions=trainyard-source', join(import.meta.dirname, '../../src/cli/main.ts')],
};

/** What it wrote, in five minutes at most; in the root of the repository. */
export function trainyard(...args: readonly string[]): Promise<string> {
  const cwd = join(import.meta.dirname, '../..');
  return runProgram({ ...TRAINYARD, args: [...TRAINYARD.args, ...args], cwd, limitMs: 300_000 });
}

const KEPT_CHARACTERS = 200_000;
const TOLD_LINES = 25;
const GRACE_MS = 10_000;

/** What it wrote, on both streams. Throws when it fails or takes longer than its limit. `onLine` gets its lines as they come. */
export async function runProgram(program: Program, onLine?: (line: string) => void): Promise<string> {
  const { child, text } = start(program, onLine);
  const timer = setTimeout(() => child.kill('SIGKILL'), program.limitMs);
  const code = await ended(child).finally(() => clearTimeout(timer));
  if (code !== 0) throw new Error(`${shown(program)} ended with ${code}:\n${lastLines(text())}`);
  return text();
}

/** A server, once `url` answers at all. Disposing of it ends it. */
export async function startServer(program: Program, url: string): Promise<AsyncDisposable & { log(): string }> {
  const { child, text } = start(program);
  const end = ended(child);
  const stop = async () => {
    child.kill('SIGTERM');
    const killer = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
    await end.finally(() => clearTimeout(killer));
  };
  const deadline = Date.now() + program.limitMs;
  while (!(await answers(url))) {
    if (child.exitCode === null && child.signalCode === null && Date.now() < deadline) {
      await sleep(200);
      continue;
    }
    await stop();
    throw new Error(`${shown(program)} did not come up at ${url}:\n${lastLines(text())}`);
  }
  return { log: text, [Symbol.asyncDispose]: stop };
}

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await once(server.close(), 'close');
  return port;
}

function start(program: Program, onLine?: (line: string) => void): { readonly child: ChildProcess; text(): string } {
  const { command, args, env, cwd } = program;
  const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  // Whatever ends this process ends what it started.
  const kill = (): void => void child.kill('SIGKILL');
  process.once('exit', kill);
  child.once('close', () => process.off('exit', kill));
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      text = `${text}${line}\n`.slice(-KEPT_CHARACTERS);
      onLine?.(line);
    });
  }
  return { child, text: () => text };
}

async function ended(child: ChildProcess): Promise<number | string> {
  const [code, signal] = await once(child, 'close');
  return code ?? signal ?? 'nothing';
}

async function answers(url: string): Promise<boolean> {
  try {
    await (await fetch(url, { signal: AbortSignal.timeout(2000) })).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

function shown({ command, args }: Program): string {
  return [command, ...args].join(' ');
}

function lastLines(text: string): string {
  return text.trimEnd().split('\n').slice(-TOLD_LINES).join('\n');
}
