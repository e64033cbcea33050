/**
 * One process of a run under faults: started, and started again whenever it ends, until it ends well. It may fail while something is done to
 * it; a failure of its own, with nothing done to it since it was started, ends everything.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ROOT } from '../cli/command.ts';

export interface Command {
  /** Of `trainyard`. */
  readonly args: readonly string[];
  /** Of Node. */
  readonly options?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export interface RoleOptions {
  readonly name: string;
  /** Asked before each start. */
  readonly command: () => Command;
  /** Whether a fault was there at this moment or later, by `performance.now()`. */
  readonly isDisturbed: (since: number) => boolean;
  /** After each end that is not the last, before it is started again. */
  readonly onEnd?: (how: string) => Promise<void>;
}

const PAUSE_MS = 50;
const STDERR_KEPT = 4_000;

export class Role {
  readonly #options: RoleOptions;
  #child: ChildProcess | undefined;
  #leaving = false;

  constructor(options: RoleOptions) {
    this.#options = options;
  }

  get name(): string {
    return this.#options.name;
  }

  /** Whether there was a process to send it to. */
  signal(signal: NodeJS.Signals): boolean {
    const isThere = this.#child?.exitCode === null && this.#child.signalCode === null;
    return isThere && this.#child?.kill(signal) === true;
  }

  /** Resolves once a process of this role ended with 0, or the role was left. Throws what it said if it failed by itself. */
  async toTheEnd(): Promise<void> {
    const { name, isDisturbed, onEnd } = this.#options;
    while (!this.#leaving) {
      const startedAt = performance.now();
      const { code, signal, stderr } = await this.#once();
      if (code === 0 || this.#leaving) return;
      if (signal !== 'SIGKILL' && !isDisturbed(startedAt)) {
        throw new Error(`${name} failed by itself (${code ?? signal}): ${stderr}`);
      }
      await onEnd?.(signal ?? `${code}: ${stderr.trim().split('\n')[0]}`);
      await sleep(PAUSE_MS);
    }
  }

  leave(): void {
    this.#leaving = true;
    this.signal('SIGKILL');
  }

  async #once(): Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null; readonly stderr: string }> {
    const { args, options = [], env = {} } = this.#options.command();
    const child = spawn(process.execPath, ['--conditions=trainyard-source', ...options, join(ROOT, 'src/cli/main.ts'), ...args], {
      cwd: ROOT,
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, ...env },
    });
    this.#child = child;
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr = (stderr + text).slice(0, STDERR_KEPT);
    });
    return await new Promise((resolve) => child.on('exit', (code, signal) => resolve({ code, signal, stderr })));
  }
}
