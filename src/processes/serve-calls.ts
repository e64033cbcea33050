/**
 * The child's side of a pool: a child program calls `serveCalls`, which initialises it, reports that it is ready, and then answers calls
 * until the parent is gone. It communicates only over its channel and dies with its parent, along with everything it started. The exit code
 * has no meaning; only an answer on the channel counts.
 */
import { Socket } from 'node:net';
import { Worker } from 'node:worker_threads';
import { describeThrown } from '../core/describe.ts';
import type { ErrorCode } from '../core/error-codes.ts';
import { messageOf, TrainyardError, tried } from '../core/errors.ts';
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
import { type Exports, importUserModule, useTransformer } from './user-modules.ts';

export interface ServedCall {
  /** Aborts when the caller cancels the call. The process is killed soon afterwards if the call goes on. */
  readonly signal: AbortSignal;
  /** Tells the caller something before the answer. It counts even if this process is killed. */
  note(value: unknown): void;
}

interface Served {
  answer(input: unknown, call: ServedCall): unknown;
  /** Called on an orderly shutdown, not when the process is killed. */
  close?(): Promise<void>;
}

type Say = (message: FromChild, sent?: () => void) => void;

/** `open` receives the program's arguments. If it throws, the process is unusable. */
export async function serveCalls(open: (...args: readonly string[]) => Promise<Served> | Served): Promise<void> {
  const [kind = '', transformer = '', ...args] = process.argv.slice(2);
  let listen: ((message: ToChild) => void) | undefined;
  // The user's module cannot reach this channel; its libraries might also take `process.send` as a sign that someone listens.
  const { send: say }: { readonly send: Say } = openChannel(new Socket({ fd: CHANNEL_FD, readable: true, writable: true }), {
    message: (message) => listen?.(message as ToChild),
    ended: endOwnGroup,
  });
  setPoolKind(kind);
  // Before importing the user's module, which may hang.
  endWithParent();
  try {
    await useTransformer(transformer);
    const served = await open(...args);
    listen = answering(served, say);
    say({ kind: 'ready', closes: served.close !== undefined });
  } catch (thrown) {
    // Exits once the message is sent.
    say({ kind: 'threw', thrown: thrownOf(thrown) }, () => process.exit(1));
  }
}

function answering(served: Served, say: Say): (message: ToChild) => void {
  let current: { readonly id: string; readonly abort: AbortController } | undefined;
  const answer = async (id: string, input: unknown) => {
    const abort = new AbortController();
    current = { id, abort };
    const note = (value: unknown) => say({ kind: 'note', id, value });
    try {
      const value = await served.answer(input, { signal: abort.signal, note });
      sayAnswer(say, id, value);
    } catch (thrown) {
      say({ kind: 'threw', id, thrown: thrownOf(thrown) });
    }
    if (current.id === id) current = undefined;
  };
  const close = async () => {
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
    // Reading a thrown value may throw too.
    code: tried(() => (thrown instanceof TrainyardError ? thrown.code : undefined)),
    hint: tried(() => (thrown instanceof TrainyardError ? thrown.hint?.slice(0, MOST_STACK) : undefined)),
    stack: tried(() => (thrown instanceof Error ? String(thrown.stack).slice(0, MOST_STACK) : undefined)),
  };
}

/** Safe, because the pool starts this process in its own group. */
function endOwnGroup(): void {
  process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
}

/** A dying process closes its pipes slightly before its children are reparented. */
const PARENT_DEATH_MS = 50;

/** Kills the group when the parent dies and the kernel closes its pipe, even while user code blocks the main thread. */
const PARENT_WATCH = `
const pipe = new (require('node:net').Socket)({ fd: ${PARENT_PIPE_FD}, readable: true, writable: false });
const end = () => process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
pipe.on('close', end).on('error', end).resume();
`;

function endWithParent(): void {
  const parent = process.ppid;
  process.on('exit', () => {
    // The first process of a namespace or container is never replaced: everything ends with it.
    if (parent <= 1) return;
    // The parent's death may have ended this process through a broken pipe: wait until reparenting is done.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PARENT_DEATH_MS);
    if (process.ppid !== parent) endOwnGroup();
  });
  // The thread starts even if this one never returns to its event loop; waiting for it would only delay the start.
  new Worker(PARENT_WATCH, { eval: true }).unref();
}

export async function importedModule(url: string, what: string, code: ErrorCode): Promise<Exports> {
  try {
    return await importUserModule(url);
  } catch (thrown) {
    throw new TrainyardError(code, `the ${what}'s module ${url} cannot be imported: ${describeThrown(thrown)}`);
  }
}

export function namesOf(exports: Exports): string {
  return Object.keys(exports).join(', ') || 'nothing';
}
