/**
 * One child process as its pool sees it: started, asked one call at a time, killed with everything it started. `ask` never rejects and ends
 * within its deadline, if it has one. After a timeout the process is killed and `usable` is false; `gone` resolves when it has exited and
 * its pipes are closed. Protects against failures, not against hostile code, unless started through a sandbox (`within`).
 */
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
} from './channel.ts';
import { OutputTail, type ProcessExit, ProcessGroup, within } from './limits.ts';
import { transformerInUse } from './user-modules.ts';

/** How long a process without a channel may take to exit. */
const CUT_MS = 250;
/** How long a cancelled call may go on before its process is killed. */
const GRACE_MS = 1_000;
/** How long a process may take to close its resources. */
const CLOSE_MS = 3_000;

type Received = FromChild | Extract<Answer, { kind: 'late' | 'aborted' | 'ended' }>;

let numbered = 0;

export class PooledProcess {
  readonly gone: Promise<void>;
  /** Unique among all pooled processes. */
  readonly number: number = ++numbered;
  wasAsked = false;
  /** How it ended, with its last output. Undefined while it runs. */
  ending: string | undefined;
  readonly #program: ChildProgram;
  readonly #group: ProcessGroup<string>;
  readonly #channel: Channel;
  readonly #stdout: OutputTail;
  readonly #stderr: OutputTail;
  #isKilled = false;
  /** The channel is closed: the process can neither be asked nor answer. */
  #isCut = false;
  #isSpent = false;
  #closes = false;
  #closing: Promise<void> | undefined;
  #settle: ((received: Received) => void) | undefined;
  /** Id of the current call. Undefined while the process starts. */
  #asked: string | undefined;
  #note: ((value: unknown) => void) | undefined;

  constructor(program: ChildProgram) {
    const { memoryMb } = program;
    this.#program = program;
    this.#group = started(program, this.number);
    const { stdout, stderr, stdio } = this.#group.child;
    this.#stdout = new OutputTail(stdout);
    this.#stderr = new OutputTail(stderr);
    this.#channel = openChannel(stdio[CHANNEL_FD] as Socket, {
      message: (message) => this.#receive(message),
      ended: (why) => this.#cut(why),
    });
    this.#group.killOver(memoryMb, () => `used more than ${memoryMb} MB of memory`);
    this.gone = this.#untilGone();
  }

  get usable(): boolean {
    return !this.#isKilled && !this.#isCut && !this.#isSpent && this.#group.isRunning && this.#group.cause === undefined;
  }

  /** Waits until it can be asked. If that fails, kills the process and returns the reason. */
  async ready(deadlineMs: number): Promise<StartFailure | undefined> {
    const received = await this.#next({ deadlineMs });
    if (received.kind === 'ready') {
      this.#closes = received.closes;
      return undefined;
    }
    void this.kill();
    if (received.kind === 'late') return received;
    if (received.kind === 'threw') return { kind: 'refused', code: received.thrown.code, message: received.thrown.message };
    return { ...endedBy(received), when: 'starting' };
  }

  async ask(input: unknown, { deadlineMs, signal, onNote }: CallOptions): Promise<Answer> {
    this.wasAsked = true;
    const id = randomUUID();
    // Output of an earlier call says nothing about this one.
    this.#stdout.text = '';
    this.#stderr.text = '';
    this.#note = onNote;
    try {
      this.#channel.send({ kind: 'call', id, input });
    } catch (thrown) {
      return { kind: 'unsendable', message: messageOf(thrown) };
    }
    const received = await this.#next({ id, deadlineMs, signal });
    if (this.#isSpent) void this.kill();
    if (received.kind === 'answer') return { kind: 'answered', value: received.value };
    if (received.kind === 'threw') return { kind: 'threw', thrown: received.thrown };
    void this.kill();
    return received.kind === 'late' || received.kind === 'aborted' ? received : endedBy(received);
  }

  /** Gives it a moment to close its resources, then kills it. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#closed();
    return this.#closing;
  }

  async #closed(): Promise<void> {
    if (this.#closes && this.usable) {
      this.#isKilled = true;
      this.#channel.send({ kind: 'close' });
      await within(CLOSE_MS, this.gone);
    }
    await this.kill();
  }

  kill(): Promise<void> {
    this.#isKilled = true;
    this.#group.kill();
    return this.gone;
  }

  /** Accepts only messages for the current call. Code left over from an earlier call may still send notes, which are ignored. */
  #receive(message: unknown): void {
    if (this.#isCut) return;
    if (!isFromChild(message)) {
      this.#cut('what is no answer');
      return;
    }
    const isForCall = this.#settle !== undefined && ('id' in message ? message.id : undefined) === this.#asked;
    if (message.kind === 'note') {
      if (isForCall) this.#note?.(message.value);
    } else if (isForCall) this.#settle?.(message);
    else this.#spend();
  }

  /** An answer to a call that is over: it, or the one before it, was forged. The call in progress ends; no other is made. */
  #spend(): void {
    this.#isSpent = true;
    if (this.#settle === undefined) void this.kill();
  }

  /** A process without a channel should be exiting; kill it to make sure. */
  #cut(why: string | undefined): void {
    this.#isCut = true;
    if (why === undefined) setTimeout(() => void this.kill(), CUT_MS).unref();
    else if (!this.#isKilled) this.#group.kill(`wrote ${why} to its channel`);
  }

  #next({ id, deadlineMs, signal }: Pick<CallOptions, 'deadlineMs' | 'signal'> & { readonly id?: string }): Promise<Received> {
    if (this.ending !== undefined) return Promise.resolve({ kind: 'ended', how: this.ending });
    return new Promise((resolve) => {
      const timers: NodeJS.Timeout[] = [];
      const settle = (received: Received): void => {
        // A process that has exited is not late: its end is being read and is the better answer.
        const isOvertaken = (received.kind === 'late' || received.kind === 'aborted') && !this.#group.isRunning;
        if (isOvertaken || this.#settle !== settle) return;
        for (const timer of timers) clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.#settle = undefined;
        this.#note = undefined;
        resolve(received);
      };
      // After our own event loop was blocked, an answer may already be in the channel: it is read before the immediate runs.
      const after = (ms: number, received: Received): void =>
        void timers.push(setTimeout(() => setImmediate(settle, received), ms));
      const onAbort = (): void => {
        after(GRACE_MS, { kind: 'aborted' });
        if (id !== undefined && this.usable) this.#channel.send({ kind: 'abort', id, reason: messageOf(signal?.reason) });
      };
      this.#settle = settle;
      this.#asked = id;
      if (deadlineMs !== undefined) after(deadlineMs, { kind: 'late', deadlineMs });
      if (signal?.aborted) onAbort();
      else signal?.addEventListener('abort', onAbort, { once: true });
    });
  }

  async #untilGone(): Promise<void> {
    // Pipes and channel are read to the end first: an answer sent before the exit counts.
    const exit = await this.#group.ended;
    for (const stream of this.#group.child.stdio) stream?.destroy();
    const how = this.#group.cause ?? inWords(exit, this.#program.within !== undefined);
    const lastWords = this.#stderr.lastLines() || this.#stdout.lastLines();
    this.ending = lastWords === '' ? how : `${how}, having printed:\n${lastWords}\n`;
    this.#settle?.({ kind: 'ended', how: this.ending });
    this.#program.left?.(this.number);
  }
}

function endedBy(received: Received): { readonly kind: 'ended'; readonly how: string } {
  return received.kind === 'ended' ? received : { kind: 'ended', how: 'spoke out of turn' };
}

const SIGNAL_BASE = 128;

function inWords(exit: ProcessExit, isSandboxed: boolean): string {
  if ('failure' in exit) return `could not be started (${exit.failure})`;
  // A sandbox reports a signal only through its exit code.
  const signals = isSandboxed ? Object.entries(constants.signals) : [];
  const signal = exit.signal ?? signals.find(([, number]) => number + SIGNAL_BASE === exit.code)?.[0];
  return signal === undefined ? `exited with code ${exit.code}` : `was killed by ${signal}`;
}

/** The rest of the memory limit is for buffers and Node itself. A full heap fails with a message. */
const HEAP_SHARE = 0.75;
const LEAST_HEAP_MB = 16;
/** Not inherited, unlike other Node arguments (type stripping, `--conditions`): the inspector's port is taken. */
const INSPECTOR = /^--inspect(-brk|-wait)?(=|$)/;

function started(program: ChildProgram, number: number): ProcessGroup<string> {
  const { kind, script, args = [], env = process.env, memoryMb, within: prefix } = program;
  const inherited = process.execArgv.filter((argument) => !INSPECTOR.test(argument));
  const node = [process.execPath, ...heapLimit(memoryMb), ...inherited, fileURLToPath(script), kind, transformerInUse(), ...args];
  const [command = '', ...rest] = [...(prefix?.(number) ?? []), ...node];
  // The last two: the channel, and the pipe that tells the child of our death.
  return new ProcessGroup(command, rest, { stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'], env });
}

/** Comes first in the arguments, so that a limit set by the user overrides it. */
function heapLimit(memoryMb: number | undefined): readonly string[] {
  if (memoryMb === undefined || process.env['NODE_OPTIONS']?.includes('max-old-space-size')) return [];
  return [`--max-old-space-size=${Math.max(LEAST_HEAP_MB, Math.floor(memoryMb * HEAP_SHARE))}`];
}
