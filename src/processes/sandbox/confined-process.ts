/**
 * One confined program at work: its streams, its limits, its end.
 *
 * Contract: `ended` resolves when the program and everything it started are gone and its streams were read, within the wall-clock limit
 * and a moment. It rejects only with SANDBOX_FAILED: the sandbox could not be set up and nothing of the program ran. Everything else is the
 * program's own doing, whatever it did to what watches over it.
 */
import type { ChildProcess } from 'node:child_process';
import { openSync, readdirSync, readFileSync } from 'node:fs';
import type { Readable, Writable } from 'node:stream';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { MemoryLimit } from '../memory-limit.ts';
import { killGroup, spawned, tried } from '../process-group.ts';
import { type Confined, ENDED, filesContent, READY, SET_UP_ENVIRONMENT } from './confine.ts';
import type { SandboxEnd, SandboxLimits, SandboxProgram } from './program.ts';

/** For setting it up. The program's own time begins when that is done: a busy machine must not count as a slow program. */
const SET_UP_MS = 60_000;
/** How long after its end a process's streams are waited for. */
const DRAIN_MS = 1_000;
const MOST_STATUS_CHARS = 1_000;
const SIGNAL_BASE = 128;

export interface ConfinedProcess {
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly ended: Promise<SandboxEnd>;
  /** What it has written to its standard error. */
  readonly stderr: string;
  /** Since its start, or until its end; 0 before. */
  readonly ranMs: number;
  /** Ends everything in it, as `cancelled`. */
  kill(): void;
}

interface StartOptions extends Pick<SandboxProgram, 'files' | 'signal'> {
  readonly confined: Confined;
  readonly limits: SandboxLimits;
  readonly memory: MemoryLimit | undefined;
}

export function startConfined(options: StartOptions): ConfinedProcess {
  return new Running(options);
}

class Running implements ConfinedProcess {
  readonly ended: Promise<SandboxEnd>;
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly #options: StartOptions;
  readonly #child: ChildProcess;
  readonly #errors: Buffer[] = [];
  #status = '';
  #written = 0;
  #cause: SandboxEnd | undefined;
  #timer: NodeJS.Timeout | undefined;
  #begunAt: number | undefined;
  #endedAt: number | undefined;

  constructor(options: StartOptions) {
    this.#options = options;
    const { confined, memory } = options;
    const [command = confined.command, ...args] = [...(memory?.prefix ?? []), confined.command, ...confined.args];
    this.#child = spawned(command, args, {
      detached: true,
      env: SET_UP_ENVIRONMENT,
      cwd: '/',
      stdio: ['pipe', 'pipe', 'pipe', 'pipe', 'pipe', ...nothingFrom(5)],
    });
    const [stdin, stdout, stderr, status, files] = this.#child.stdio as [Writable, Readable, Readable, Readable, Writable];
    this.stdin = stdin.on('error', () => {});
    this.stdout = stdout.on('data', (chunk: Buffer) => this.#count(chunk)).pause();
    stderr.on('data', (chunk: Buffer) => {
      this.#errors.push(chunk);
      this.#count(chunk);
    });
    status.on('data', (chunk: Buffer) => {
      if (this.#status === '') this.#begin();
      if (this.#status.length < MOST_STATUS_CHARS) this.#status += chunk.toString('latin1');
    });
    files.on('error', () => {}).end(filesContent(options.files));
    this.ended = this.#untilEnded();
    // Whoever waits for it hears of it; nobody has to.
    this.ended.catch(() => {});
  }

  get stderr(): string {
    return Buffer.concat(this.#errors).toString('utf8');
  }

  get ranMs(): number {
    return this.#begunAt === undefined ? 0 : (this.#endedAt ?? performance.now()) - this.#begunAt;
  }

  kill(): void {
    this.#kill({ kind: 'cancelled' });
  }

  #begin(): void {
    const { wallMs } = this.#options.limits;
    this.#begunAt = performance.now();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#kill({ kind: 'timeout', wallMs }), wallMs);
  }

  #count(chunk: Buffer): void {
    const { outputBytes } = this.#options.limits;
    this.#written += chunk.length;
    if (this.#written > outputBytes) this.#kill({ kind: 'output', outputBytes });
  }

  #kill(why: SandboxEnd | undefined): void {
    this.#cause ??= why;
    const { pid, exitCode, signalCode } = this.#child;
    // Never after its exit: the number could be another process's by then. What it left in its group died with its namespace.
    if (pid !== undefined && exitCode === null && signalCode === null) killGroup(pid);
  }

  async #untilEnded(): Promise<SandboxEnd> {
    const { signal, memory } = this.#options;
    const onAbort = (): void => this.kill();
    if (signal?.aborted) onAbort();
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#timer = setTimeout(() => this.#kill(undefined), SET_UP_MS);
    try {
      const failure = await this.#closed();
      return this.#endOf(failure, memory?.exceeded() ?? false);
    } finally {
      clearTimeout(this.#timer);
      signal?.removeEventListener('abort', onAbort);
      await memory?.remove();
      // What a program without walls did to its folder is not worth losing its result for.
      tried(() => this.#options.confined.remove?.());
    }
  }

  /** Resolves with why it could not be started, if it could not. */
  async #closed(): Promise<string | undefined> {
    const closed = new Promise<void>((resolve) => void this.#child.once('close', () => resolve()));
    const failure = await new Promise<string | undefined>((resolve) => {
      this.#child.once('exit', () => resolve(undefined));
      this.#child.on('error', (error) => this.#child.pid === undefined && resolve(messageOf(error)));
    });
    this.#endedAt = performance.now();
    // Whoever started it may read its output later; it must not hold up the end.
    const drained = new Promise<void>((resolve) => void setTimeout(resolve, DRAIN_MS));
    if (failure === undefined) await Promise.race([closed, drained]);
    return failure;
  }

  #endOf(failure: string | undefined, wentOverMemory: boolean): SandboxEnd {
    if (failure === undefined && this.#cause !== undefined) return this.#cause;
    if (wentOverMemory) return { kind: 'memory', memoryMb: this.#options.limits.memoryMb };
    if (!this.#status.startsWith(`${READY}\n`)) {
      const why = failure ?? (this.stderr.trim() || `it ended with ${this.#child.exitCode ?? this.#child.signalCode}`);
      throw new TrainyardError('SANDBOX_FAILED', `the sandbox could not be set up: ${why}`);
    }
    const code = Number(new RegExp(`^${ENDED} (\\d+)$`, 'm').exec(this.#status)?.[1] ?? SIGNAL_BASE);
    // Shells tell a signal only so; a program that exits with such a number of its own reads the same.
    return code < SIGNAL_BASE ? { kind: 'exited', code } : { kind: 'signalled', signal: code - SIGNAL_BASE };
  }
}

const CLOSED_ON_EXEC = 0o2000000;

let covered: readonly ('ignore' | number)[] | undefined;

/**
 * What `stdio` has to hold from place `first` on so that descriptors which this process was started with, and would hand on, lead nowhere
 * instead of out of the sandbox. Node closes those below 16 only.
 */
function nothingFrom(first: number): readonly ('ignore' | number)[] {
  if (covered !== undefined) return covered;
  const descriptors = handedOn().filter((descriptor) => descriptor >= first);
  const nowhere = descriptors.length === 0 ? 'ignore' : openSync('/dev/null', 'r+');
  covered = Array.from({ length: Math.max(first - 1, ...descriptors) - first + 1 }, (_, at) =>
    descriptors.includes(at + first) ? nowhere : 'ignore',
  );
  return covered;
}

function handedOn(): readonly number[] {
  if (process.platform !== 'linux') return [];
  return readdirSync('/proc/self/fd')
    .map(Number)
    .filter((descriptor) => {
      const info = tried(() => readFileSync(`/proc/self/fdinfo/${descriptor}`, 'utf8'));
      const [, flags = '0'] = /^flags:\s*([0-7]+)/m.exec(info ?? '') ?? [];
      return info !== undefined && (Number.parseInt(flags, 8) & CLOSED_ON_EXEC) === 0;
    });
}
