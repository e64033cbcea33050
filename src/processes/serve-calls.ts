/**
 * The child's side of a pool: the program of a child process calls `serveCalls`, which makes ready, says so, and then answers one
 * call after another until the parent is gone.
 *
 * Talks over IPC only. Ends with its parent, and with it whatever it started. The exit code of this process never means anything: only
 * an answer on the channel does.
 */
import { Worker } from 'node:worker_threads';
import { describeThrown } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { setLineage } from './lineage.ts';
import { endOwnGroup } from './process-group.ts';
import { type FromChild, isToChild, siblingScript, type Thrown, type ToChild } from './protocol.ts';

/** A process that is being killed closes its pipes a little before its children get another parent. */
const PARENT_DEATH_MS = 50;

/** One call, besides its input. */
export interface ServedCall {
  /** Aborts when the caller gives the call up; what goes on after it is killed before long. */
  readonly signal: AbortSignal;
  /** Tells the caller something before the answer is there: it is kept even if this process is killed. */
  note(value: unknown): void;
}

export interface Served {
  answer(input: unknown, call: ServedCall): unknown;
  /** Before the process is ended in good order; not when it is killed. */
  close?(): Promise<void>;
}

type Say = (message: FromChild, sent?: () => void) => void;

/** `open` gets the arguments that the pool was given for its program. What it throws makes the process unusable. */
export async function serveCalls(open: (...args: readonly string[]) => Promise<Served> | Served): Promise<void> {
  const [kinds, ...args] = process.argv.slice(2) as [string, ...string[]];
  const say = takeChannel();
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
  hearPrivately(answering(served, say));
  say({ kind: 'ready', closes: served.close !== undefined });
}

function answering(served: Served, say: Say): (message: ToChild) => void {
  let current: { readonly id: string; readonly abort: AbortController } | undefined;
  const answer = async (id: string, input: unknown): Promise<void> => {
    const abort = new AbortController();
    current = { id, abort };
    try {
      const value = await served.answer(input, { signal: abort.signal, note: (said) => say({ kind: 'note', id, value: said }) });
      sayValue(say, id, value);
    } catch (thrown) {
      say({ kind: 'threw', id, thrown: thrownOf(thrown) });
    }
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

function sayValue(say: Say, id: string, value: unknown): void {
  try {
    say({ kind: 'answer', id, value });
  } catch (thrown) {
    const message = `the result cannot be sent to another process: ${messageOf(thrown)}`;
    say({ kind: 'threw', id, thrown: { message, description: message, code: undefined } });
  }
}

function thrownOf(thrown: unknown): Thrown {
  return {
    message: messageOf(thrown),
    description: describeThrown(thrown),
    code: thrown instanceof TrainyardError ? thrown.code : undefined,
  };
}

/** Takes `process.send` away from the user's module, whose libraries might take it as a sign that someone listens to them. */
function takeChannel(): Say {
  const send = process.send?.bind(process);
  if (send === undefined) throw new Error('this program is started by a process pool, with an IPC channel');
  delete process.send;
  return (message, sent) => send(message, undefined, {}, sent);
}

/** The user's module may listen to `process` too: it hears neither calls nor their ids, with which it could answer them. */
function hearPrivately(call: (message: ToChild) => void): void {
  const emit = process.emit as (this: NodeJS.Process, ...event: unknown[]) => boolean;
  const emitOthers = function (this: NodeJS.Process, ...event: unknown[]): boolean {
    const [name, message] = event;
    if (name !== 'message' || !isToChild(message)) return emit.apply(this, event);
    call(message);
    return true;
  };
  process.emit = emitOthers as typeof process.emit;
  // Without a listener Node keeps messages back.
  process.on('message', () => {});
}

/** However the parent's death is noticed first, what the user's code spawned must not be left behind. */
function endWithParent(): void {
  const parent = process.ppid;
  process.on('disconnect', endOwnGroup);
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
