/**
 * Runs a command on a pseudo-terminal, by way of `script` (Debian: bsdutils, everywhere installed), and interprets what it draws.
 */
import { spawn } from 'node:child_process';
import { onTestFinished } from 'vitest';
import { shellWord } from '../../src/settings/settings.ts';
import { Terminal } from './terminal.ts';

export interface OnTerminal {
  readonly terminal: Terminal;
  readonly raw: () => string;
  /** Resolves once what was drawn contains this. */
  until(text: string): Promise<void>;
  /** As if typed. */
  type(text: string): void;
  readonly ended: Promise<number | null>;
}

export interface TerminalOptions {
  readonly columns?: number;
  readonly rows?: number;
  readonly env?: Record<string, string>;
  /** Columns that the terminal has after a second. */
  readonly narrowedTo?: number;
}

/** Ends with the test at the latest. */
export function onTerminal(
  command: readonly string[],
  { columns = 80, rows = 24, env = {}, narrowedTo }: TerminalOptions = {},
): OnTerminal {
  const { PATH = '', HOME = '' } = process.env;
  const narrow = narrowedTo === undefined ? '' : `(sleep 1; stty cols ${narrowedTo} </dev/tty) &`;
  const line = `stty cols ${columns} rows ${rows}; ${narrow} exec ${command.map(shellWord).join(' ')}`;
  const child = spawn('script', ['-qec', line, '/dev/null'], {
    env: { PATH, HOME, SHELL: '/bin/sh', TERM: 'xterm-256color', LANG: 'C.UTF-8', ...env },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  onTestFinished(() => void child.kill());
  const terminal = new Terminal(columns, rows);
  let raw = '';
  const waiting = new Set<() => void>();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    raw += text;
    terminal.write(text);
    for (const look of waiting) look();
  });
  const ended = new Promise<number | null>((resolve, reject) => {
    child.on('error', (cause) => reject(new Error('this test needs the command `script` of util-linux', { cause })));
    child.on('close', resolve);
  });
  const until = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        if (!raw.includes(text)) return;
        waiting.delete(look);
        resolve();
      };
      waiting.add(look);
      look();
      ended.then(() => reject(new Error(`it ended without ${JSON.stringify(text)}: ${raw.slice(-500)}`)), reject);
    });
  return { terminal, raw: () => raw, until, type: (text) => void child.stdin.write(text), ended };
}
