/**
 * One process of a run under faults: started, and started again whenever it ends, until it has done what it is there for. It may fail while
 * something is done to it; a failure of its own, with nothing done to it since it was started, ends everything.
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
  /** What it prints when it is at work, and when it has done everything; without the latter, it never has. */
  readonly says: { readonly working: RegExp; readonly done?: RegExp };
  /** Whether a fault was there at this moment or later, by `performance.now()`. */
  readonly isDisturbed: (since: number) => boolean;
  /** After each end that is not the last, before it is started again. */
  readonly onEnd?: (how: string) => Promise<void>;
}

interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;
  readonly isDone: boolean;
}

const [PAUSE_MS, LOOK_MS] = [50, 20];
const KEPT = 4_000;

export class Role {
  readonly #options: RoleOptions;
  #child: ChildProcess | undefined;
  #leaving = false;
  #isWorking = false;

  constructor(options: RoleOptions) {
    this.#options = options;
  }

  get name(): string {
    return this.#options.name;
  }

  get isWorking(): boolean {
    return this.#isWorking;
  }

  /** Whether there was a process to send it to. */
  signal(signal: NodeJS.Signals): boolean {
    const isThere = this.#child?.exitCode === null && this.#child.signalCode === null;
    return isThere && this.#child?.kill(signal) === true;
  }

  /** Resolves when its process is at work, or after so many milliseconds. */
  async working(most: number): Promise<void> {
    const until = performance.now() + most;
    while (!this.#isWorking && !this.#leaving && performance.now() < until) await sleep(LOOK_MS);
  }

  /** Resolves once a process of this role has done everything, or the role was left. Throws what it said if it failed by itself. */
  async toTheEnd(): Promise<void> {
    const { name, isDisturbed, onEnd } = this.#options;
    while (!this.#leaving) {
      const startedAt = performance.now();
      const { code, signal, stderr, isDone } = await this.#once();
      if ((code === 0 && isDone) || this.#leaving) return;
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

  async #once(): Promise<End> {
    const { command, says } = this.#options;
    const { args, options = [], env = {} } = command();
    const child = spawn(process.execPath, ['--conditions=trainyard-source', ...options, join(ROOT, 'src/cli/main.ts'), ...args], {
      cwd: ROOT,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
    });
    this.#child = child;
    let [stdout, stderr] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout = stdout.slice(-KEPT) + text;
      this.#isWorking ||= says.working.test(stdout);
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr = (stderr + text).slice(0, KEPT);
    });
    const { promise, resolve } = Promise.withResolvers<End>();
    child.on('close', (code, signal) => resolve({ code, signal, stderr, isDone: says.done?.test(stdout) === true }));
    return await promise.finally(() => {
      this.#isWorking = false;
    });
  }
}
