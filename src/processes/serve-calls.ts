/**
 * The child's side of a pool: the program of a child process calls `serveCalls`, which makes ready, says so, and then answers one
 * call after another until the parent is gone.
 *
 * Talks over its channel only. Ends with its parent, and with it whatever it started. The exit code of this process never means anything: only
 * an answer on the channel does.
 */
import { Socket } from 'node:net';
import { Worker } from 'node:worker_threads';
import { describeThrown } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { openChannel } from './channel.ts';
import { watchDamage } from './damage.ts';
import { endOwnGroup, tried } from './process-group.ts';
import { CHANNEL_FD, type FromChild, MOST_STACK, setLineage, siblingScript, type Thrown, type ToChild } from './protocol.ts';

/** A process that is being killed closes its pipes a little before its children get another parent. */
const PARENT_DEATH_MS = 50;
/** How often a process is looked over whole whose calls go well: it takes longer than a trivial call. */
const LOOK_MS = 5;

/** One call, besides its input. */
export interface ServedCall {
  /** Aborts when the caller gives the call up; what goes on after it is killed before long. */
  readonly signal: AbortSignal;
  /** Tells the caller something before the answer is there: it is kept even if this process is killed. */
  note(value: unknown): void;
}

interface Served {
  answer(input: unknown, call: ServedCall): unknown;
  /**
   * Whether an answer stands for a failure. Where it is there, the process is looked over for damage after every failed call, and after
   * others now and then, and is not used again once it has some.
   */
  failed?(answer: unknown): boolean;
  /** Before the process is ended in good order; not when it is killed. */
  close?(): Promise<void>;
}

type Say = (message: FromChild, sent?: () => void) => void;

/** `open` gets the arguments that the pool was given for its program. What it throws makes the process unusable. */
export async function serveCalls(open: (...args: readonly string[]) => Promise<Served> | Served): Promise<void> {
  const [kinds, ...args] = process.argv.slice(2) as [string, ...string[]];
  const { say, hear } = openOwnChannel();
  setLineage(kinds.split(','));
  // Before the user's module: importing it may already hang.
  endWithParent();
  let served: Served;
  try {
    served = await open(...args);
  } catch (thrown) {
    const { message, code } = thrownOf(thrown);
    // Exits once the message is out; until then nothing goes on.
    say({ kind: 'unusable', code, message }, () => process.exit(1));
    return;
  }
  hear(answering(served, say));
  say({ kind: 'ready', closes: served.close !== undefined });
}

function answering(served: Served, say: Say): (message: ToChild) => void {
  const lookedOver = lookingOver(served);
  let current: { readonly id: string; readonly abort: AbortController } | undefined;
  const answer = async (id: string, input: unknown): Promise<void> => {
    const abort = new AbortController();
    current = { id, abort };
    let said: LastWord;
    try {
      const value = await served.answer(input, {
        signal: abort.signal,
        note: (noted) => say({ kind: 'note', id, value: noted }),
      });
      said = { kind: 'answer', id, value };
    } catch (thrown) {
      said = { kind: 'threw', id, thrown: thrownOf(thrown) };
    }
    sayLast(say, lookedOver(said));
    if (current.id === id) current = undefined;
  };
  const close = async (): Promise<void> => {
    current?.abort.abort(new TrainyardError('CANCELLED', 'the run ended'));
    await Promise.resolve(served.close?.()).catch(() => {});
    process.exit(0);
  };
  return (message) => {
    if (message.kind === 'call') void answer(message.id, message.input);
    if (message.kind === 'abort' && current?.id === message.id) {
      current.abort.abort(new TrainyardError('CANCELLED', message.reason));
    }
    if (message.kind === 'close') void close();
  };
}

type LastWord = Extract<FromChild, { readonly kind: 'answer' | 'threw' }>;

/** Gives the last word of a call, or what is to be said in its place. */
function lookingOver({ failed }: Served): (said: LastWord) => FromChild {
  if (failed === undefined) return (said) => said;
  const { method, builtIn, hasLeftovers } = watchDamage();
  const clock = performance.now.bind(performance);
  let looked = clock();
  return (said) => {
    const isFailure = said.kind === 'threw' || failed(said.value);
    const isWhole = isFailure || clock() - looked >= LOOK_MS;
    const changed = isWhole ? builtIn() : method();
    if (isWhole) looked = clock();
    if (!isFailure) return changed === undefined ? said : { kind: 'damaged', id: said.id, builtIn: changed };
    return changed === undefined && !hasLeftovers() ? said : { ...said, spent: true };
  };
}

function sayLast(say: Say, said: FromChild): void {
  try {
    say(said);
  } catch (thrown) {
    const message = `the result cannot be sent to another process: ${messageOf(thrown)}`;
    if ('id' in said) say({ kind: 'threw', id: said.id, thrown: { message, description: message, code: undefined } });
  }
}

function thrownOf(thrown: unknown): Thrown {
  return {
    message: messageOf(thrown),
    description: describeThrown(thrown),
    // What was thrown may itself throw when it is looked at.
    code: tried(() => (thrown instanceof TrainyardError ? thrown.code : undefined)),
    stack: tried(() =>
      thrown instanceof Error && typeof thrown.stack === 'string' ? thrown.stack.slice(0, MOST_STACK) : undefined,
    ),
  };
}

/** Nothing of it can be reached from the user's module, whose libraries might take `process.send` as a sign that someone listens. */
function openOwnChannel(): { readonly say: Say; hear(call: (message: ToChild) => void): void } {
  let call: ((message: ToChild) => void) | undefined;
  const early: ToChild[] = [];
  const pipe = new Socket({ fd: CHANNEL_FD, readable: true, writable: true });
  const channel = openChannel(pipe, {
    message: (message) => (call === undefined ? early.push(message as ToChild) : call(message as ToChild)),
    ended: endOwnGroup,
  });
  return {
    say: (message, sent) => channel.send(message, sent),
    hear: (given) => {
      call = given;
      for (const message of early.splice(0)) given(message);
    },
  };
}

/** However the parent's death is noticed first, what the user's code spawned must not be left behind. */
function endWithParent(): void {
  const parent = process.ppid;
  process.on('exit', () => {
    // The first process of a namespace or a container is never replaced: with it everything ends.
    if (parent <= 1) return;
    // It may be the parent's death that ended this process, through a pipe that broke: give that death a moment to be complete.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PARENT_DEATH_MS);
    if (process.ppid !== parent) endOwnGroup();
  });
  // The thread comes up by itself, even if this one never returns to its event loop; waiting for it would only delay the start.
  new Worker(siblingScript(import.meta.url, 'parent-watch')).unref();
}
