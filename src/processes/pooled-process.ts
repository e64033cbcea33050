/**
 * One child process, seen from its pool: start it, ask it one thing at a time, kill it with everything it started.
 *
 * Contract: `ask` never rejects and ends within its deadline, if it has one. After a timeout the process is killed and `usable` is false;
 * `gone` resolves when it has exited and its pipes are closed.
 *
 * The process leads its own process group, and the group is killed as one. What leaves the group on purpose outlives it, unless the process
 * is started through a sandbox (`within`). This is a boundary against failures, not against hostile code.
 */
import type { ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import { messageOf } from '../core/errors.ts';
import {
  type Answer,
  type CallOptions,
  CHANNEL_FD,
  type Channel,
  type ChildProgram,
  type FromChild,
  isFromChild,
  openChannel,
  type StartFailure,
  type ToChild,
} from './channel.ts';
import { BYTES_PER_MB, killGroup, OutputTail, spawned, watchMemory } from './limits.ts';

/** How long after its exit a process's last words are waited for: someone else may hold its pipes open. */
const DRAIN_MS = 250;
/** How long a call that was given up may go on before its process is killed. */
const GRACE_MS = 1_000;
/** For what a process has to close before it ends. */
const CLOSE_MS = 3_000;

/** How waiting for a process can end. */
type Received =
  | { readonly kind: 'message'; readonly message: FromChild }
  | { readonly kind: 'late' }
  | { readonly kind: 'given-up' }
  | { readonly kind: 'ended'; readonly how: string };

let numbered = 0;

export class PooledProcess {
  readonly gone: Promise<void>;
  /** No other process of this program has it. */
  readonly number: number = ++numbered;
  readonly #program: ChildProgram;
  readonly #process: ChildProcess;
  readonly #channel: Channel;
  readonly #stdout = new OutputTail();
  readonly #stderr = new OutputTail();
  readonly #unwatch: () => void;
  #isOverMemory = false;
  #calls = 0;
  #killed = false;
  #closes = false;
  #closing: Promise<void> | undefined;
  #ended: string | undefined;
  /** Its channel is closed: it can neither be asked nor answer. */
  #isCut = false;
  #misused: string | undefined;
  /** The last call that was answered. */
  #answered: string | undefined;
  /** Someone else answered in its name: it may finish what it has in hand, and is asked nothing more. */
  #isSpent = false;
  #settle: ((received: Received) => void) | undefined;
  /** The call that is to be answered; undefined while it is only waited for that the process is ready, or nothing is. */
  #asked: string | undefined;
  #note: ((value: unknown) => void) | undefined;

  /** Throws what `spawn` throws when the system refuses a process. */
  constructor(program: ChildProgram) {
    this.#program = program;
    this.#process = started(program, this.number);
    this.#process.stdout?.setEncoding('utf8').on('data', (chunk: string) => this.#stdout.add(chunk));
    this.#process.stderr?.setEncoding('utf8').on('data', (chunk: string) => this.#stderr.add(chunk));
    this.#channel = openChannel(this.#process.stdio[CHANNEL_FD] as Socket, {
      message: (message) => this.#receive(message),
      ended: (why) => this.#cut(why),
    });
    this.#unwatch = this.#watchMemory();
    this.gone = this.#untilGone();
  }

  /** Whether it can be asked. */
  get usable(): boolean {
    return !this.#killed && this.#running && !this.#isCut;
  }

  /** Whether it was ever asked anything. */
  get wasAsked(): boolean {
    return this.#calls > 0;
  }

  /** How it ended, with its last words; undefined while it runs. */
  get ending(): string | undefined {
    return this.#ended;
  }

  /** Waits until it can be asked. Gives why it never will, the process then being killed. */
  async ready(deadlineMs: number): Promise<StartFailure | undefined> {
    const received = await this.#next({ deadlineMs });
    if (received.kind === 'message' && received.message.kind === 'ready') {
      this.#closes = received.message.closes;
      return undefined;
    }
    void this.kill();
    if (received.kind === 'late') return { kind: 'late', deadlineMs };
    if (received.kind === 'message' && received.message.kind === 'unusable') return { ...received.message, kind: 'refused' };
    return { kind: 'ended', how: howOf(received), when: 'starting' };
  }

  async ask(input: unknown, { deadlineMs, signal, onNote }: CallOptions): Promise<Answer> {
    this.#calls += 1;
    const id = randomUUID();
    // What an earlier call printed says nothing about this one.
    this.#stdout.clear();
    this.#stderr.clear();
    this.#note = onNote;
    try {
      this.#send({ kind: 'call', id, input });
    } catch (thrown) {
      return { kind: 'unsendable', message: messageOf(thrown) };
    }
    const received = await this.#next({ id, deadlineMs, signal });
    this.#answered = id;
    if (this.#isSpent) void this.kill();
    if (received.kind === 'message' && received.message.kind === 'answer') {
      return { kind: 'answered', value: received.message.value };
    }
    if (received.kind === 'message' && received.message.kind === 'threw') {
      return { kind: 'threw', thrown: received.message.thrown };
    }
    void this.kill();
    if (received.kind === 'late') return { kind: 'late', deadlineMs: deadlineMs! };
    return received.kind === 'given-up' ? { kind: 'aborted' } : { kind: 'ended', how: howOf(received) };
  }

  /** Lets it close what it holds, for a moment, then kills it. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#closed();
    return this.#closing;
  }

  async #closed(): Promise<void> {
    if (this.#closes && this.usable) {
      this.#killed = true;
      this.#send({ kind: 'close' });
      await within(CLOSE_MS, this.gone);
    }
    await this.kill();
  }

  /** Kills the process group; resolves when the process is gone. Idempotent. */
  kill(): Promise<void> {
    // Never after its exit: the number could be another process's by then.
    if (this.#running) killGroup(this.#process.pid!);
    this.#killed = true;
    return this.gone;
  }

  get #running(): boolean {
    return this.#process.pid !== undefined && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  #watchMemory(): () => void {
    const { memoryMb } = this.#program;
    if (memoryMb === undefined || this.#process.pid === undefined) return () => {};
    return watchMemory(this.#process.pid, memoryMb * BYTES_PER_MB, () => {
      this.#isOverMemory = true;
      void this.kill();
    });
  }

  #send(message: ToChild): void {
    this.#channel.send(message);
  }

  /** Our own code in the child says nothing but what it was asked: all else was written by someone else, and ends the process. */
  #receive(message: unknown): void {
    if (this.#isCut) return;
    const isFor =
      isFromChild(message) && this.#settle !== undefined && ('id' in message ? message.id : undefined) === this.#asked;
    if (isFromChild(message) && message.kind === 'note') {
      // Code that an earlier call left running may note something late.
      if (isFor) this.#note?.(message.value);
    } else if (isFor) this.#settle?.({ kind: 'message', message });
    else if (!this.#killed && isFromChild(message) && 'id' in message && message.id === this.#answered) this.#spend();
    else if (!this.#killed) this.#cut('what is no answer');
  }

  /** A second answer to the last call: the first was forged, and the call that is under way has no part in it. */
  #spend(): void {
    this.#isSpent = true;
    if (this.#settle === undefined) void this.kill();
  }

  /** A process without a channel is about to end, and is killed so that it surely does. */
  #cut(why: string | undefined): void {
    this.#isCut = true;
    if (why === undefined) {
      setTimeout(() => void this.kill(), DRAIN_MS).unref();
      return;
    }
    this.#misused = `wrote ${why} to its channel`;
    void this.kill();
  }

  /** What comes first: a message (with `id`, the answer to that call), the end of the process, the deadline, the end of patience. */
  #next({ id, deadlineMs, signal }: Pick<CallOptions, 'deadlineMs' | 'signal'> & { readonly id?: string }): Promise<Received> {
    return new Promise((resolve) => {
      if (this.#ended !== undefined) {
        resolve({ kind: 'ended', how: this.#ended });
        return;
      }
      const timers: NodeJS.Timeout[] = [];
      const settle = (received: Received): void => {
        // A process that exited is not late: its end is being read, and is the better answer.
        const overtaken = (received.kind === 'late' || received.kind === 'given-up') && !this.#running;
        if (overtaken || this.#settle !== settle) return;
        for (const timer of timers) clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.#settle = undefined;
        resolve(received);
      };
      // When our own event loop was blocked, an answer may already be waiting in the channel: it is read before the immediate.
      const after = (ms: number, received: Received): void =>
        void timers.push(setTimeout(() => setImmediate(settle, received), ms));
      const onAbort = (): void => {
        after(GRACE_MS, { kind: 'given-up' });
        if (id !== undefined && this.usable) this.#send({ kind: 'abort', id, reason: messageOf(signal?.reason) });
      };
      this.#settle = settle;
      this.#asked = id;
      if (deadlineMs !== undefined) after(deadlineMs, { kind: 'late' });
      if (signal?.aborted) onAbort();
      else signal?.addEventListener('abort', onAbort, { once: true });
    });
  }

  async #untilGone(): Promise<void> {
    const child = this.#process;
    // All listeners before the first wait: the events may come in one go.
    const silent = new Promise<void>((resolve) => void child.once('close', () => resolve()));
    const how = await new Promise<string>((resolve) => {
      child.once('exit', (code, signal) => resolve(this.#misused ?? this.#exitOf(code, signal)));
      child.on('error', (error) => child.pid === undefined && resolve(`could not be started (${error.message})`));
    });
    this.#unwatch();
    // Processes that it had started may outlive it; the group's number is nobody else's while one of them is there.
    if (child.pid !== undefined) killGroup(child.pid);
    // Its pipes and the channel are read to their ends: an answer sent before the exit counts.
    await within(DRAIN_MS, silent);
    for (const stream of child.stdio) stream?.destroy();
    const lastWords = this.#stderr.lastLines() || this.#stdout.lastLines();
    this.#ended = lastWords === '' ? how : `${how}, having printed:\n${lastWords}\n`;
    this.#settle?.({ kind: 'ended', how: this.#ended });
    this.#program.left?.(this.number);
  }

  #exitOf(code: number | null, signal: NodeJS.Signals | null): string {
    const { memoryMb, within: prefix } = this.#program;
    if (this.#isOverMemory) return `used more than ${memoryMb} MB of memory`;
    // A sandbox tells a signal by its exit code only.
    const by = signal ?? (prefix === undefined ? undefined : signalOf(code));
    return by === undefined ? `exited with code ${code}` : `was killed by ${by}`;
  }
}

function howOf(received: Received): string {
  return received.kind === 'ended' ? received.how : 'spoke out of turn';
}

const SIGNAL_BASE = 128;

function signalOf(code: number | null): string | undefined {
  return Object.entries(constants.signals).find(([, number]) => number + SIGNAL_BASE === code)?.[0];
}

async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  await Promise.race([awaited, over]);
  clearTimeout(timer);
}

// ── how it is started ───────────────────────────────────────────────────────────────────────────────────────────────────

function started(program: ChildProgram, number: number): ChildProcess {
  const { kind, script, args = [], env = process.env, memoryMb, within: prefix } = program;
  const node = [process.execPath, ...heapLimit(memoryMb), ...inheritableArguments(), fileURLToPath(script), kind, ...args];
  const [command = '', ...rest] = [...(prefix?.(number) ?? []), ...node];
  return spawned(command, rest, {
    detached: true,
    windowsHide: true,
    // The channel, and the pipe that tells the child of our death.
    stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'],
    env,
  });
}

/** The rest of a memory limit is for buffers and for Node itself: a heap that is full ends with a message. */
const HEAP_SHARE = 0.75;
const LEAST_HEAP_MB = 16;

/** First, so that who starts this process with a limit of their own has theirs. */
function heapLimit(memoryMb: number | undefined): readonly string[] {
  if (memoryMb === undefined || process.env['NODE_OPTIONS']?.includes('max-old-space-size')) return [];
  return [`--max-old-space-size=${Math.max(LEAST_HEAP_MB, Math.floor(memoryMb * HEAP_SHARE))}`];
}

/**
 * This process's own Node arguments are passed on, so that type stripping and `--conditions` hold in the child too; only an inspector is
 * left out, because its port is taken and Node would refuse to start.
 */
function inheritableArguments(): readonly string[] {
  const inspector = /^--inspect(-brk|-wait)?(=|$)/;
  return process.execArgv.filter((argument) => !inspector.test(argument));
}
