/**
 * One child process, seen from its pool: start it, ask it one thing at a time, kill it with everything it started.
 *
 * Contract: `ask` never rejects and ends within its deadline, if it has one. After a timeout the process is killed and `usable` is
 * false; `gone` resolves when it has exited and its pipes are closed.
 *
 * The process leads its own process group, and the group is killed as one, so that what it spawned dies with it; what else contains it
 * is in start-child.ts. This is a boundary against failures, not a sandbox against hostile code.
 */
import type { ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { printable } from '../core/describe.ts';
import { messageOf } from '../core/errors.ts';
import type { Answer, CallOptions, ChildProgram, StartFailure } from './answer.ts';
import { type Channel, openChannel } from './channel.ts';
import { OutputTail } from './output-tail.ts';
import { killGroup } from './process-group.ts';
import { CHANNEL_FD, type FromChild, isFromChild, type ToChild } from './protocol.ts';
import { type StartedChild, startChild } from './start-child.ts';

/** How long after its exit a process's last words are waited for: someone else may hold its pipes open. */
const DRAIN_MS = 250;
/** How long a call that was given up may go on before its process is killed. */
const GRACE_MS = 1_000;
/** For what a process has to close before it ends. */
const CLOSE_MS = 3_000;

type Heard =
  | { readonly kind: 'said'; readonly message: FromChild }
  | { readonly kind: 'late' }
  | { readonly kind: 'given-up' }
  | { readonly kind: 'ended'; readonly how: string };

let numbered = 0;

export class PooledProcess {
  readonly gone: Promise<void>;
  /** No other process of this program has it. */
  readonly number: number = ++numbered;
  readonly #started: StartedChild;
  readonly #process: ChildProcess;
  readonly #channel: Channel;
  readonly #stdout = new OutputTail();
  readonly #stderr = new OutputTail();
  #calls = 0;
  #killed = false;
  #closes = false;
  #closing: Promise<void> | undefined;
  #ended: string | undefined;
  #isDeaf = false;
  /** The last call that was answered. */
  #answered: string | undefined;
  /** Someone answered in its name: it may finish what it has in hand, and is asked nothing more. */
  #isSpokenFor = false;
  #misused: string | undefined;
  #hear: ((heard: Heard) => void) | undefined;
  /** The call that is to be answered; undefined while it is only waited for that the process is ready, or nothing is. */
  #asked: string | undefined;
  #note: ((id: string, value: unknown) => void) | undefined;

  /** Throws what `spawn` throws when the system refuses a process. */
  constructor(program: ChildProgram) {
    this.#started = startChild(program);
    this.#process = this.#started.process;
    this.#process.stdout?.setEncoding('utf8').on('data', (chunk: string) => this.#stdout.add(chunk));
    this.#process.stderr?.setEncoding('utf8').on('data', (chunk: string) => this.#stderr.add(chunk));
    this.#channel = openChannel(this.#process.stdio[CHANNEL_FD] as Socket, {
      message: (message) => this.#receive(message),
      ended: (why) => this.#unheard(why),
    });
    this.gone = this.#untilGone();
  }

  /** Whether it can be asked. */
  get usable(): boolean {
    return !this.#killed && this.#running && !this.#isDeaf;
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
    const heard = await this.#heard({ deadlineMs });
    if (heard.kind === 'said' && heard.message.kind === 'ready') {
      this.#closes = heard.message.closes;
      return undefined;
    }
    void this.kill();
    if (heard.kind === 'late') return { kind: 'late', deadlineMs };
    if (heard.kind === 'said' && heard.message.kind === 'unusable') return { ...heard.message, kind: 'refused' };
    return { kind: 'ended', how: heard.kind === 'ended' ? heard.how : 'spoke out of turn', when: 'starting' };
  }

  async ask(input: unknown, { deadlineMs, signal, onNote }: CallOptions): Promise<Answer> {
    this.#calls += 1;
    const id = randomUUID();
    // What an earlier call printed says nothing about this one.
    this.#stdout.clear();
    this.#stderr.clear();
    this.#note = (of, value) => of === id && onNote?.(value);
    try {
      this.#send({ kind: 'call', id, input });
    } catch (thrown) {
      return { kind: 'unsendable', message: messageOf(thrown) };
    }
    const heard = await this.#heard({ id, deadlineMs, signal });
    const said = heard.kind === 'said' ? heard.message : undefined;
    this.#answered = id;
    if (said?.kind === 'answer' || said?.kind === 'threw') {
      if (said.spent === true || this.#isSpokenFor) void this.kill();
      return said.kind === 'answer' ? { kind: 'answered', value: said.value } : { kind: 'threw', thrown: said.thrown };
    }
    void this.kill();
    if (said?.kind === 'damaged') return { kind: 'ended', how: `changed the built-in ${printable(String(said.builtIn))}` };
    if (heard.kind === 'late') return { kind: 'late', deadlineMs: deadlineMs! };
    if (heard.kind === 'given-up') return { kind: 'aborted' };
    return { kind: 'ended', how: heard.kind === 'ended' ? heard.how : 'spoke out of turn' };
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

  #send(message: ToChild): void {
    this.#channel.send(message);
  }

  #receive(message: unknown): void {
    if (this.#isDeaf) return;
    if (isFromChild(message) && message.kind === 'note') this.#note?.(message.id, message.value);
    else if (isFromChild(message) && this.#awaits(message)) this.#hear?.({ kind: 'said', message });
    else if (!this.#killed && isFromChild(message) && this.#isSecondAnswer(message)) this.#retire();
    else if (!this.#killed) this.#unheard('what is no answer');
  }

  /** Nobody but our own code has a reason to write there, and it says nothing but what was asked: all else was written by someone else. */
  #awaits(message: FromChild): boolean {
    return this.#hear !== undefined && ('id' in message ? message.id : undefined) === this.#asked;
  }

  /** Of the last call: then its first was forged, and this one, of our own code, is not the fault of the call that is under way. */
  #isSecondAnswer(message: FromChild): boolean {
    return !this.#isSpokenFor && 'id' in message && this.#answered !== undefined && message.id === this.#answered;
  }

  #retire(): void {
    this.#isSpokenFor = true;
    if (this.#hear === undefined) void this.kill();
  }

  /** A process that can neither hear nor answer is about to end, and is killed so that it surely does. */
  #unheard(why: string | undefined): void {
    this.#isDeaf = true;
    if (why === undefined) {
      setTimeout(() => void this.kill(), DRAIN_MS).unref();
      return;
    }
    this.#misused = `wrote ${why} to its channel`;
    void this.kill();
  }

  /** What comes first: a message (with `id`, the answer to that call), the end of the process, the deadline, the end of patience. */
  #heard({ id, deadlineMs, signal }: Pick<CallOptions, 'deadlineMs' | 'signal'> & { readonly id?: string }): Promise<Heard> {
    return new Promise((resolve) => {
      if (this.#ended !== undefined) {
        resolve({ kind: 'ended', how: this.#ended });
        return;
      }
      const timers: NodeJS.Timeout[] = [];
      const hear = (heard: Heard): void => {
        // A process that exited is not late: its end is being read, and is the better answer.
        const overtaken = (heard.kind === 'late' || heard.kind === 'given-up') && !this.#running;
        if (overtaken || this.#hear !== hear) return;
        for (const timer of timers) clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.#hear = undefined;
        resolve(heard);
      };
      // When our own event loop was held up, an answer may already be waiting in the channel: it is read before the immediate.
      const after = (ms: number, heard: Heard): void => void timers.push(setTimeout(() => setImmediate(hear, heard), ms));
      const onAbort = (): void => {
        after(GRACE_MS, { kind: 'given-up' });
        if (id !== undefined && this.usable) this.#send({ kind: 'abort', id, reason: messageOf(signal?.reason) });
      };
      this.#hear = hear;
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
      child.once('exit', (code, signal) => resolve(this.#misused ?? this.#started.ending(code, signal)));
      child.on('error', (error) => child.pid === undefined && resolve(`could not be started (${error.message})`));
    });
    // What it had started may outlive it.
    const cleared = this.#started.cleared();
    // Its pipes and the channel are read to their ends: an answer sent before the exit counts.
    await within(DRAIN_MS, silent);
    for (const stream of child.stdio) stream?.destroy();
    const lastWords = this.#stderr.lastLines() || this.#stdout.lastLines();
    this.#ended = lastWords === '' ? how : `${how}, having printed:\n${lastWords}\n`;
    this.#hear?.({ kind: 'ended', how: this.#ended });
    await cleared;
  }
}

async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  await Promise.race([awaited, over]);
  clearTimeout(timer);
}
