/**
 * The protocol between a pool and its child processes: length-prefixed structured clones over a dedicated pipe. Malformed bytes end the
 * channel; with Node's own IPC they would throw in the reader, and any module of the child could listen and send. A child serves one call
 * at a time. An answer must carry its call's unguessable id, because an isolated agent shares its process with the child's end.
 */
import type { Duplex } from 'node:stream';
import { deserialize, serialize } from 'node:v8';
import { ERROR_CODES, type ErrorCode } from '../core/error-codes.ts';
import type { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';

/** File descriptors of the channel, and of the pipe whose closing tells a child that its parent is gone. */
export const CHANNEL_FD = 3;
export const PARENT_PIPE_FD = 4;

export type ToChild =
  | { readonly kind: 'call'; readonly id: string; readonly input: unknown }
  /** Aborts the call's signal in the child, with `reason` as the message. */
  | { readonly kind: 'abort'; readonly id: string; readonly reason: string }
  /** The child closes its resources and exits. */
  | { readonly kind: 'close' };

export interface Thrown {
  readonly message: string;
  /** With the error's type and, for an Error, its location. */
  readonly description: string;
  readonly code: ErrorCode | undefined;
  readonly stack?: string | undefined;
  readonly hint?: string | undefined;
}

/** Maximum length of a stack, in characters, for sending and accepting. */
export const MOST_STACK = 8_000;

export type FromChild =
  /** `closes`: whether it has resources to close before it is killed. */
  | { readonly kind: 'ready'; readonly closes: boolean }
  /** Sent during a call, before its answer. */
  | { readonly kind: 'note'; readonly id: string; readonly value: unknown }
  | { readonly kind: 'answer'; readonly id: string; readonly value: unknown }
  /** Without an id: the child cannot serve, because its module cannot be imported or lacks the export. It exits afterwards. */
  | { readonly kind: 'threw'; readonly id?: string; readonly thrown: Thrown };

export function isFromChild(message: unknown): message is FromChild {
  if (!isObject(message)) return false;
  if (message['kind'] === 'ready') return typeof message['closes'] === 'boolean';
  if (message['kind'] === 'threw') return isThrown(message['thrown']);
  return message['kind'] === 'answer' || message['kind'] === 'note';
}

/** The error is stored and displayed, so unknown codes and non-strings are rejected here. */
function isThrown(given: unknown): given is Thrown {
  if (!isObject(given)) return false;
  const { message, description, code, stack = '', hint = '' } = given;
  const isKnown = code === undefined || (typeof code === 'string' && Object.hasOwn(ERROR_CODES, code));
  const isStack = [stack, hint].every((text) => typeof text === 'string' && text.length <= MOST_STACK);
  return typeof message === 'string' && typeof description === 'string' && isKnown && isStack;
}

export interface StartWords {
  /** Such as `the grader`. */
  readonly whose: string;
  /** What the process was doing if it ended before it was ready, such as `while importing its module`. */
  readonly starting: string;
  readonly code: ErrorCode;
  readonly late: { readonly code: ErrorCode; readonly what: string };
  readonly hint: string;
  /** Adds to a child's message why a file is missing. */
  readonly explain?: (message: string) => string;
}

export interface ChildProgram {
  readonly words: StartWords;
  /** One word for the purpose of the processes: see `poolKind`. */
  readonly kind: string;
  readonly script: URL;
  /** Passed to its `open`. Visible to every user of the machine. */
  readonly args?: readonly string[];
  /** The complete environment. Defaults to this process's. */
  readonly env?: NodeJS.ProcessEnv;
  /** Resident memory of a process and everything it starts. If absent, only the system's limit applies. */
  readonly memoryMb?: number;
  /** The command prefix to start a process through, given its number. It must exec the command that follows. */
  readonly within?: (process: number) => readonly string[];
  /** Asked before and after each call: why a process is to be replaced, and what it answered is void. Continues "the process …". */
  readonly outdated?: (process: number) => string | undefined;
  /** Called with its number when a process is gone. */
  readonly left?: (process: number) => void;
  /** Digests, by file, of the user code that processes import. A process that would import other code than the first is not used. */
  readonly sources?: (() => Promise<Readonly<Record<string, string>>>) | undefined;
}

export interface CallOptions {
  /** Counted from when a process begins the call. If absent, no deadline. */
  readonly deadlineMs?: number | undefined;
  /** Cancels the call: the child's signal aborts, and the process is killed a moment later if it goes on. */
  readonly signal?: AbortSignal | undefined;
  readonly onNote?: (value: unknown) => void;
  /** Called with the number, unique in the pool, of the process that begins the call. */
  readonly onBegun?: (process: number) => void;
  /** Number of a process to avoid, if there is another. */
  readonly notBy?: number | undefined;
}

export type Answer =
  | { readonly kind: 'answered'; readonly value: unknown }
  | { readonly kind: 'threw'; readonly thrown: Thrown }
  | { readonly kind: 'late'; readonly deadlineMs: number }
  /** The process ended before it answered. `how` continues "the process …". */
  | { readonly kind: 'ended'; readonly how: string }
  /** The input cannot be cloned. */
  | { readonly kind: 'unsendable'; readonly message: string }
  | { readonly kind: 'aborted' }
  | { readonly kind: 'unusable'; readonly error: TrainyardError }
  | { readonly kind: 'closed' };

export type StartFailure =
  | { readonly kind: 'late'; readonly deadlineMs: number }
  | { readonly kind: 'refused'; readonly code: ErrorCode | undefined; readonly message: string }
  | { readonly kind: 'ended'; readonly how: string; readonly when: 'starting' | 'idle' }
  | { readonly kind: 'unstartable'; readonly message: string };

/** A script beside a module: TypeScript when run from source, JavaScript when run from the package. */
export function siblingScript(moduleUrl: string, name: string): URL {
  return new URL(`./${name}${moduleUrl.endsWith('.ts') ? '.ts' : '.js'}`, moduleUrl);
}

/** On the global object, so that two copies of the package agree. */
const kindSymbol = Symbol.for('trainyard.pool-kind');

/**
 * The purpose of the pool that started this process, if any. A pool opened on import would start processes without end, as they import that
 * module too. So a pool's process may open only function pools, and a function pool's process none.
 */
export function poolKind(): string | undefined {
  return (globalThis as Record<symbol, string | undefined>)[kindSymbol];
}

export function setPoolKind(kind: string): void {
  Object.assign(globalThis, { [kindSymbol]: kind });
}

const HEADER_BYTES = 4;
/** Bounds this process's memory. */
const MOST_BYTES = 2 ** 28;

export interface Channel {
  /** `sent` is called once the message is handed to the system. */
  send(message: unknown, sent?: () => void): void;
}

interface ChannelListener {
  message(message: unknown): void;
  /** Called once, after the last message. `why` is undefined if the other side simply closed the channel. */
  ended(why: string | undefined): void;
}

export function openChannel(pipe: Duplex, { message, ended }: ChannelListener): Channel {
  let isOver = false;
  const end = (why?: string) => {
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

/** Splits a byte stream into messages. Copies bytes only if a message arrives in several chunks. */
class MessageReader {
  #pieces: Buffer[] = [];
  #bytes = 0;
  /** Bytes of the first message including its header; only the header's until that has arrived. */
  #needed = HEADER_BYTES;

  /** Throws TooLong. */
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
