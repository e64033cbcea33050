/**
 * A fixed number of child processes that each serve one call at a time, in order of arrival. `call` never rejects; every result is an
 * `Answer`. Processes that hang, crash or die idle are replaced; after repeated start failures the pool pauses. Closing leaves no process
 * behind, and neither does the death of this process.
 *
 * Calls are not retried. Timers or promises left over from one call can crash the process during a later one, which then fails. The queue
 * is unbounded: callers limit themselves.
 */
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { constants } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { messageOf, TrainyardError } from '../core/errors.ts';
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
  type StartWords,
} from './channel.ts';
import { OutputTail, type ProcessExit, ProcessGroup, within } from './limits.ts';
import { transformerInUse } from './user-modules.ts';

/** Includes importing the user's module, which may load a lot. */
const START_DEADLINE_MS = 60_000;

/** Per worker: consecutive processes that failed to start, or died before their first call, after which the pool pauses. */
const START_TRIES = 3;

const REST_MS = 1_000;

interface ProcessPoolOptions {
  readonly program: ChildProgram;
  readonly workers: number;
  readonly signal?: AbortSignal | undefined;
}

export interface ProcessPool extends AsyncDisposable {
  call(input: unknown, options?: CallOptions): Promise<Answer>;
}

/** Resolves when every process is ready. Rejects with the reason if one fails, or with CANCELLED if the signal aborts first. */
export async function openProcessPool(options: ProcessPoolOptions): Promise<ProcessPool> {
  const { workers } = options;
  if (!(Number.isSafeInteger(workers) && workers >= 1)) {
    throw new TrainyardError('USAGE', `workers is ${workers}, expected a whole number from 1 up`);
  }
  const pool = new Pool(options);
  await pool.open();
  return pool;
}

interface Job {
  readonly input: unknown;
  readonly options: CallOptions;
  readonly settle: (answer: Answer) => void;
}

class Pool implements ProcessPool {
  readonly #options: ProcessPoolOptions;
  /** Every process that is not gone yet, including those starting or dying. */
  readonly #processes = new Set<PooledProcess>();
  #idle: PooledProcess[] = [];
  readonly #queue: Job[] = [];
  readonly #running = new Set<Job>();
  /** Processes that exist or are being started. Each will serve the queue or be replaced. */
  #filled = 0;
  #fruitless = 0;
  #lastFailure: { readonly error: TrainyardError; readonly at: number } | undefined;
  #closed = false;
  /** Digests from when the pool was opened. */
  #sources: Readonly<Record<string, string>> = {};
  readonly #close = () => void this[Symbol.asyncDispose]();

  constructor(options: ProcessPoolOptions) {
    this.#options = options;
  }

  async open(): Promise<void> {
    const { program, workers, signal } = this.#options;
    signal?.addEventListener('abort', this.#close, { once: true });
    try {
      signal?.throwIfAborted();
      this.#sources = (await program.sources?.()) ?? {};
      const started = await Promise.all(Array.from({ length: workers }, () => this.#start()));
      for (const child of started) this.#keep(child);
    } catch (error) {
      await this[Symbol.asyncDispose]();
      if (signal?.aborted) throw new TrainyardError('CANCELLED', 'closed while its processes were started', { cause: error });
      throw error;
    }
  }

  async call(input: unknown, options: CallOptions = {}): Promise<Answer> {
    const { signal } = options;
    if (this.#closed) return { kind: 'closed' };
    if (signal?.aborted) return { kind: 'aborted' };
    this.#refillAfterRest();
    if (this.#filled === 0 && this.#lastFailure !== undefined) return { kind: 'unusable', error: this.#lastFailure.error };
    const { promise, resolve: settle } = Promise.withResolvers<Answer>();
    const job: Job = { input, options, settle };
    /** Removes a call from the queue. Once a process has begun it, the process handles the signal. */
    const leave = () => {
      if (!this.#queue.includes(job)) return;
      this.#queue.splice(this.#queue.indexOf(job), 1);
      settle({ kind: 'aborted' });
    };
    signal?.addEventListener('abort', leave, { once: true });
    this.#queue.push(job);
    this.#pump();
    try {
      return await promise;
    } finally {
      signal?.removeEventListener('abort', leave);
    }
  }

  /** Pending calls end as `closed` at once. Resolves when no process is left. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.#options.signal?.removeEventListener('abort', this.#close);
    for (const job of [...this.#running, ...this.#queue.splice(0)]) job.settle({ kind: 'closed' });
    await Promise.all([...this.#processes].map((child) => child.close()));
  }

  #pump(): void {
    this.#idle = this.#idle.filter((child) => child.usable);
    for (let index = 0; index < this.#queue.length && this.#idle.length > 0; ) {
      const child = this.#idleFor(this.#queue[index]!);
      if (child === undefined) index += 1;
      else if (this.#outdated(child) === undefined) void this.#serve(child, this.#queue.splice(index, 1)[0]!);
    }
  }

  /** Respects `notBy`, unless there is only one process. */
  #idleFor({ options: { notBy } }: Job): PooledProcess | undefined {
    const index = this.#filled === 1 ? 0 : this.#idle.findIndex(({ number }) => number !== notBy);
    return index === -1 ? undefined : this.#idle.splice(index, 1)[0];
  }

  async #serve(child: PooledProcess, job: Job): Promise<void> {
    this.#running.add(job);
    this.#fruitless = 0;
    job.options.onBegun?.(child.number);
    const answer = await child.ask(job.input, job.options);
    const how = this.#outdated(child);
    job.settle(how !== undefined && answer.kind === 'answered' ? { kind: 'ended', how } : answer);
    this.#running.delete(job);
    this.#offer(child);
  }

  #outdated(child: PooledProcess): string | undefined {
    const how = this.#options.program.outdated?.(child.number);
    if (how === undefined) return undefined;
    // It did not fail while it was idle.
    child.wasAsked = true;
    void child.kill();
    return how;
  }

  #offer(child: PooledProcess): void {
    this.#idle.push(child);
    this.#pump();
  }

  async #start(): Promise<PooledProcess> {
    let child: PooledProcess;
    try {
      child = new PooledProcess(this.#options.program);
    } catch (cause) {
      throw this.#error({ kind: 'unstartable', message: messageOf(cause) });
    }
    this.#processes.add(child);
    void child.gone.then(() => this.#processes.delete(child));
    const failure = await child.ready(START_DEADLINE_MS);
    if (failure !== undefined) throw this.#error(failure);
    const changed = await this.#changedSource();
    if (changed !== undefined) {
      await child.close();
      const message = `${changed} has changed since the run began; put it back as it was, or begin a new run`;
      throw this.#error({ kind: 'unstartable', message });
    }
    this.#offer(child);
    return child;
  }

  #error(failure: StartFailure): TrainyardError {
    return startError(failure, this.#options.program.words);
  }

  /** Checked after a process has imported its sources: it imported either the same code as the others or a file named here. */
  async #changedSource(): Promise<string | undefined> {
    const before = this.#sources;
    const now = (await this.#options.program.sources?.()) ?? {};
    return Object.keys({ ...before, ...now }).find((file) => before[file] !== now[file]);
  }

  #keep(child: PooledProcess): void {
    this.#filled += 1;
    void child.gone.then(() => {
      this.#filled -= 1;
      if (child.wasAsked) this.#refill();
      else this.#failed(this.#error({ kind: 'ended', how: child.ending ?? 'ended', when: 'idle' }));
    });
  }

  #refill(): void {
    while (this.#filled < this.#options.workers && !this.#closed) {
      this.#filled += 1;
      const started = this.#start().finally(() => {
        this.#filled -= 1;
      });
      started.then(
        (child) => this.#keep(child),
        (error) => this.#failed(error as TrainyardError),
      );
    }
  }

  /** After too many consecutive failures, starts nothing until a call comes after the pause. */
  #failed(error: TrainyardError): void {
    this.#fruitless += 1;
    this.#lastFailure = { error, at: performance.now() };
    if (this.#fruitless < START_TRIES * this.#options.workers) this.#refill();
    else this.#pump();
    if (this.#filled > 0 || this.#closed) return;
    for (const job of this.#queue.splice(0)) job.settle({ kind: 'unusable', error });
  }

  #refillAfterRest(): void {
    if (this.#filled === this.#options.workers || this.#lastFailure === undefined) return;
    if (performance.now() - this.#lastFailure.at >= REST_MS) this.#refill();
  }
}

export function moduleUrl(pathOrUrl: string): string {
  return pathOrUrl.startsWith('file:') ? pathOrUrl : pathToFileURL(resolve(pathOrUrl)).href;
}

export function startError(failure: StartFailure, { whose, starting, code, late, hint, explain }: StartWords): TrainyardError {
  switch (failure.kind) {
    case 'late':
      return new TrainyardError(late.code, `${whose}'s ${late.what} within ${failure.deadlineMs} ms`, hint);
    case 'refused':
      return new TrainyardError(failure.code ?? code, explain?.(failure.message) ?? failure.message, hint);
    case 'unstartable':
      return new TrainyardError(code, `${whose}'s process could not be started: ${failure.message}`);
    case 'ended': {
      const when = failure.when === 'idle' ? 'while it was idle' : starting;
      return new TrainyardError(code, `${whose}'s process ${failure.how} ${when}`, hint);
    }
  }
}

interface SharedPool<Pool> {
  readonly opening: Promise<Pool>;
  readonly users: Set<object>;
  readonly end: AbortController;
}

/**
 * Pools shared by key: opened for the first user, closed with the last, which also aborts an opening. A failed opening is tried again for
 * the next user.
 */
export class SharedPools<Pool extends AsyncDisposable> {
  readonly #pools = new Map<string, SharedPool<Pool>>();

  /** Idempotent per user. The signal passed to `open` closes the pool. */
  async use(key: string, user: object, open: (signal: AbortSignal) => Promise<Pool>): Promise<Pool> {
    const shared = this.#pools.get(key) ?? this.#opened(key, open);
    shared.users.add(user);
    return await shared.opening;
  }

  /** If this was the last user, resolves when the pool is closed. Does nothing if `user` is not a user. */
  async leave(key: string, user: object): Promise<void> {
    const shared = this.#pools.get(key);
    if (shared?.users.delete(user) !== true || shared.users.size > 0) return;
    this.#pools.delete(key);
    await closed(shared);
  }

  #opened(key: string, open: (signal: AbortSignal) => Promise<Pool>): SharedPool<Pool> {
    const end = new AbortController();
    const shared: SharedPool<Pool> = { opening: open(end.signal), users: new Set(), end };
    this.#pools.set(key, shared);
    shared.opening.catch(() => this.#pools.get(key) === shared && this.#pools.delete(key));
    return shared;
  }

  async closeAll(): Promise<void> {
    const open = [...this.#pools.values()];
    this.#pools.clear();
    await Promise.all(open.map(closed));
  }
}

async function closed<Pool extends AsyncDisposable>({ opening, end }: SharedPool<Pool>): Promise<void> {
  end.abort();
  const pool = await opening.catch(() => undefined);
  await pool?.[Symbol.asyncDispose]();
}

/** How long a process without a channel may take to exit. */
const CUT_MS = 250;
/** How long a cancelled call may go on before its process is killed. */
const GRACE_MS = 1_000;
/** How long a process may take to close its resources. */
const CLOSE_MS = 3_000;

type Received = FromChild | Extract<Answer, { kind: 'late' | 'aborted' | 'ended' }>;

let numbered = 0;

/**
 * One child process as its pool sees it: started, asked one call at a time, killed with everything it started. `ask` never rejects and ends
 * within its deadline, if it has one. After a timeout the process is killed and `usable` is false; `gone` resolves when it has exited and
 * its pipes are closed. Protects against failures, not against hostile code, unless started through a sandbox (`within`).
 */
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
