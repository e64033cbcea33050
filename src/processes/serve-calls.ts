/**
 * The child's side of a pool: the program of a child process calls `serveCalls`, which makes ready, says so, and then answers one call
 * after another until the parent is gone.
 *
 * It talks over its channel only, and ends with its parent, together with whatever it started. The exit code of this process never means
 * anything: only an answer on the channel does.
 */
import { Socket } from 'node:net';
import { Worker } from 'node:worker_threads';
import { describeThrown } from '../core/describe.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import {
  CHANNEL_FD,
  type FromChild,
  MOST_STACK,
  openChannel,
  PARENT_PIPE_FD,
  setPoolKind,
  type Thrown,
  type ToChild,
} from './channel.ts';

/** One call, besides its input. */
export interface ServedCall {
  /** Aborts when the caller gives the call up; what goes on after it is killed before long. */
  readonly signal: AbortSignal;
  /** Tells the caller something before the answer is there: it is kept even if this process is killed. */
  note(value: unknown): void;
}

interface Served {
  answer(input: unknown, call: ServedCall): unknown;
  /** Before the process is ended in good order; not when it is killed. */
  close?(): Promise<void>;
}

type Say = (message: FromChild, sent?: () => void) => void;

/** `open` gets the arguments that the pool was given for its program. What it throws makes the process unusable. */
export async function serveCalls(open: (...args: readonly string[]) => Promise<Served> | Served): Promise<void> {
  const [kind = '', ...args] = process.argv.slice(2);
  let listen: ((message: ToChild) => void) | undefined;
  // Nothing of it can be reached from the user's module, whose libraries might take `process.send` as a sign that someone listens.
  const { send: say }: { readonly send: Say } = openChannel(new Socket({ fd: CHANNEL_FD, readable: true, writable: true }), {
    message: (message) => listen?.(message as ToChild),
    ended: endOwnGroup,
  });
  setPoolKind(kind);
  // Before the user's module: importing it may already hang.
  endWithParent();
  try {
    const served = await open(...args);
    listen = answering(served, say);
    say({ kind: 'ready', closes: served.close !== undefined });
  } catch (thrown) {
    // Exits once the message is out; until then nothing goes on.
    say({ kind: 'threw', thrown: thrownOf(thrown) }, () => process.exit(1));
  }
}

function answering(served: Served, say: Say): (message: ToChild) => void {
  let current: { readonly id: string; readonly abort: AbortController } | undefined;
  const answer = async (id: string, input: unknown): Promise<void> => {
    const abort = new AbortController();
    current = { id, abort };
    const note = (value: unknown): void => say({ kind: 'note', id, value });
    try {
      const value = await served.answer(input, { signal: abort.signal, note });
      sayAnswer(say, id, value);
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
    else if (message.kind === 'close') void close();
    else if (current?.id === message.id) current.abort.abort(new TrainyardError('CANCELLED', message.reason));
  };
}

function sayAnswer(say: Say, id: string, value: unknown): void {
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
    stack: thrown instanceof Error ? String(thrown.stack).slice(0, MOST_STACK) : undefined,
  };
}

// ── the end of the parent ───────────────────────────────────────────────────────────────────────────────────────────────

/** The pool starts this process in a group of its own, so nobody else is hit. */
function endOwnGroup(): void {
  process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
}

/** A process that is being killed closes its pipes a little before its children get another parent. */
const PARENT_DEATH_MS = 50;

/**
 * Ends the group when the parent is gone, also while the user's code keeps the main thread's event loop. The parent never writes to the
 * pipe; the kernel closes it when the parent dies.
 */
const PARENT_WATCH = `
const pipe = new (require('node:net').Socket)({ fd: ${PARENT_PIPE_FD}, readable: true, writable: false });
const end = () => process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
pipe.on('close', end).on('error', end).resume();
`;

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
  new Worker(PARENT_WATCH, { eval: true }).unref();
}

// ── the user's module ───────────────────────────────────────────────────────────────────────────────────────────────────

type Exports = Readonly<Record<string, unknown>>;

/** `what`: whose module it is, for the message. */
export async function importedModule(url: string, what: string, code: ErrorCode): Promise<Exports> {
  try {
    return (await import(url)) as Exports;
  } catch (thrown) {
    throw new TrainyardError(code, `the ${what}'s module ${url} cannot be imported: ${describeThrown(thrown)}`);
  }
}

export function namesOf(exports: Exports): string {
  return Object.keys(exports).join(', ') || 'nothing';
}
