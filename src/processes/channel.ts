/**
 * The protocol between a pool and its child processes: structured clones, each behind its length, over a pipe of their own.
 *
 * Not Node's own channel: there, bytes that are no message are an exception in whoever reads them, and every module of a child can listen
 * and speak. Here such bytes end the channel. A child is asked one thing at a time. Each call has an id that cannot be guessed, and only a
 * message with that id is its answer: an isolated agent shares its process with the child's end.
 */
import type { Duplex } from 'node:stream';
import { deserialize, serialize } from 'node:v8';
import { ERROR_CODES, type ErrorCode, type TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';

/** Descriptors of the channel, and of the pipe whose end tells a child that its parent is gone. */
export const CHANNEL_FD = 3;
export const PARENT_PIPE_FD = 4;

export type ToChild =
  | { readonly kind: 'call'; readonly id: string; readonly input: unknown }
  /** The call's signal aborts in the child, with this as the message of its reason. */
  | { readonly kind: 'abort'; readonly id: string; readonly reason: string }
  /** The child closes what it holds, and exits. */
  | { readonly kind: 'close' };

/** An error of the child, as data. */
export interface Thrown {
  readonly message: string;
  /** With the kind of error and, for an Error, where. */
  readonly description: string;
  readonly code: ErrorCode | undefined;
  /** For an Error: as it was there, cut to a bound. */
  readonly stack?: string | undefined;
}

/** Characters of a stack that are sent, and believed. */
export const MOST_STACK = 8_000;

export type FromChild =
  /** `closes`: whether it has something to close before it is ended. */
  | { readonly kind: 'ready'; readonly closes: boolean }
  /** Said during a call, before its answer. */
  | { readonly kind: 'note'; readonly id: string; readonly value: unknown }
  | { readonly kind: 'answer'; readonly id: string; readonly value: unknown }
  /** Without an id: it cannot serve, because its module cannot be imported or exports no such thing. The child exits after it. */
  | { readonly kind: 'threw'; readonly id?: string; readonly thrown: Thrown };

export function isFromChild(message: unknown): message is FromChild {
  if (!isObject(message)) return false;
  if (message['kind'] === 'ready') return typeof message['closes'] === 'boolean';
  if (message['kind'] === 'threw') return isThrown(message['thrown']);
  return message['kind'] === 'answer' || message['kind'] === 'note';
}

/** It is stored and shown: another code or no text would fail whoever does that. */
function isThrown(given: unknown): given is Thrown {
  if (!isObject(given)) return false;
  const { message, description, code, stack = '' } = given;
  const isKnown = code === undefined || (typeof code === 'string' && Object.hasOwn(ERROR_CODES, code));
  const isStack = typeof stack === 'string' && stack.length <= MOST_STACK;
  return typeof message === 'string' && typeof description === 'string' && isKnown && isStack;
}

// ── what is asked of a process, and what can become of it ───────────────────────────────────────────────────────────────

/** How it is told that a process of the program could not be started. */
export interface StartWords {
  /** `the grader`. */
  readonly whose: string;
  /** Doing what it may have ended before it was ready: `while importing its module`. */
  readonly starting: string;
  readonly code: ErrorCode;
  readonly late: { readonly code: ErrorCode; readonly what: string };
  readonly hint: string;
  /** Adds to a message of the child why a file is not there. */
  readonly explain?: (message: string) => string;
}

/** The program that a pool's processes run. */
export interface ChildProgram {
  readonly words: StartWords;
  /** Purpose of the processes, in one word: see `poolKind`. */
  readonly kind: string;
  /** A script that calls `serveCalls`. */
  readonly script: URL;
  /** For its `open`. Visible to everyone on the machine. */
  readonly args?: readonly string[];
  /** The whole environment; absent: this process's. */
  readonly env?: NodeJS.ProcessEnv;
  /** Resident memory of a process with all it starts. Absent: no limit but the system's. */
  readonly memoryMb?: number;
  /** The command that a process is started through, asked for each by its number: it has to end in starting the command after it. */
  readonly within?: (process: number) => readonly string[];
  /** Told when a process is gone, by its number. */
  readonly left?: (process: number) => void;
  /** Digests, by file, of the user's code that each process imports: one that would import other code than the first is not used. */
  readonly sources?: (() => Promise<Readonly<Record<string, string>>>) | undefined;
}

export interface CallOptions {
  /** From when a process begins with it. Absent: none. */
  readonly deadlineMs?: number | undefined;
  /** Gives the call up: the child's own signal aborts, and a moment later the process is killed if it goes on. */
  readonly signal?: AbortSignal | undefined;
  /** Told what the child notes before it answers. */
  readonly onNote?: (value: unknown) => void;
  /** Told which process begins with it, by a number that no other process of the pool has. */
  readonly onBegun?: (process: number) => void;
  /** The process that shall not have it, unless there is no other. */
  readonly notBy?: number | undefined;
}

export type Answer =
  | { readonly kind: 'answered'; readonly value: unknown }
  | { readonly kind: 'threw'; readonly thrown: Thrown }
  /** Killed at its deadline. */
  | { readonly kind: 'late'; readonly deadlineMs: number }
  /** The process ended before it answered; `how` goes after "the process". */
  | { readonly kind: 'ended'; readonly how: string }
  /** The input has something in it that cannot be copied. */
  | { readonly kind: 'unsendable'; readonly message: string }
  /** Its signal aborted before there was an answer. */
  | { readonly kind: 'aborted' }
  /** There is no process, and none could be started. */
  | { readonly kind: 'unusable'; readonly error: TrainyardError }
  | { readonly kind: 'closed' };

/** Why there is no process to ask. */
export type StartFailure =
  | { readonly kind: 'late'; readonly deadlineMs: number }
  /** In the child's own words. */
  | { readonly kind: 'refused'; readonly code: ErrorCode | undefined; readonly message: string }
  | { readonly kind: 'ended'; readonly how: string; readonly when: 'starting' | 'idle' }
  /** The system gave none. */
  | { readonly kind: 'unstartable'; readonly message: string };

// ── for whoever starts one ──────────────────────────────────────────────────────────────────────────────────────────────

/** The script of this name beside a module: TypeScript when run from source, JavaScript when run from the package. */
export function siblingScript(moduleUrl: string, name: string): URL {
  return new URL(`./${name}${moduleUrl.endsWith('.ts') ? '.ts' : '.js'}`, moduleUrl);
}

/** On the global object, so that two copies of the package agree. */
const kindSymbol = Symbol.for('trainyard.pool-kind');

/**
 * Purpose of the pool that started this process; undefined where none did. A module that opens a pool when it is imported, and is imported
 * by that pool's processes, would start processes without end: so a pool's process opens none, but for functions, and theirs none at all.
 */
export function poolKind(): string | undefined {
  return (globalThis as Record<symbol, string | undefined>)[kindSymbol];
}

export function setPoolKind(kind: string): void {
  Object.assign(globalThis, { [kindSymbol]: kind });
}

// ── the pipe ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const HEADER_BYTES = 4;
/** A longer message would only fill this process's memory. */
const MOST_BYTES = 2 ** 28;

export interface Channel {
  /** `sent` is called when it was handed to the system. */
  send(message: unknown, sent?: () => void): void;
}

interface ChannelListener {
  message(message: unknown): void;
  /** Once. No message comes after it. `why` is undefined where the other side just closed it. */
  ended(why: string | undefined): void;
}

export function openChannel(pipe: Duplex, { message, ended }: ChannelListener): Channel {
  let isOver = false;
  const end = (why?: string): void => {
    if (isOver) return;
    isOver = true;
    pipe.destroy();
    ended(why);
  };
  const messages = new MessageReader();
  pipe.on('data', (chunk: Buffer) => {
    if (isOver) return;
    let received: unknown[];
    try {
      received = messages.add(chunk).map((body) => deserialize(body) as unknown);
    } catch (thrown) {
      end(thrown instanceof TooLong ? thrown.message : 'bytes that are no message');
      return;
    }
    for (const one of received) message(one);
  });
  for (const event of ['error', 'end', 'close']) pipe.on(event, () => end());
  return {
    send(value, sent) {
      const body = serialize(value);
      const whole = Buffer.allocUnsafe(HEADER_BYTES + body.length);
      whole.writeUInt32BE(body.length, 0);
      body.copy(whole, HEADER_BYTES);
      pipe.write(whole, sent);
    },
  };
}

class TooLong extends Error {}

/** Puts a stream of bytes back into messages. Bytes are copied only where a message came in several pieces. */
class MessageReader {
  #pieces: Buffer[] = [];
  #bytes = 0;
  /** Bytes of the first message, its header included; the header's while that is not there. */
  #needed = HEADER_BYTES;

  /** The messages that are complete with it. Throws TooLong. */
  add(chunk: Buffer): Buffer[] {
    this.#pieces.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes < this.#needed) return [];
    const complete: Buffer[] = [];
    let rest = this.#pieces.length === 1 ? chunk : Buffer.concat(this.#pieces);
    for (;;) {
      const length = rest.length < HEADER_BYTES ? 0 : rest.readUInt32BE(0);
      if (length > MOST_BYTES) throw new TooLong(`a message of ${length} bytes`);
      this.#needed = HEADER_BYTES + length;
      if (rest.length < this.#needed) break;
      complete.push(rest.subarray(HEADER_BYTES, this.#needed));
      rest = rest.subarray(this.#needed);
    }
    this.#pieces = [rest];
    this.#bytes = rest.length;
    return complete;
  }
}
