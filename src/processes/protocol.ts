/**
 * What a pool and its child processes say to each other, over a channel of their own and nowhere else: whatever a child prints is only
 * text. A child is asked one thing at a time. Each call has an id that cannot be guessed, and only a message with that id is its answer:
 * a child in which other code writes to the channel is killed.
 */
import { ERROR_CODES, type ErrorCode } from '../core/errors.ts';

/** The descriptor of the channel. 0–2 are the standard streams. */
export const CHANNEL_FD = 3;

/** The descriptor of the pipe whose end tells a child that its parent is gone. */
export const PARENT_PIPE_FD = 4;

export type ToChild =
  | { readonly kind: 'call'; readonly id: string; readonly input: unknown }
  /** The call's signal aborts in the child, with this as the message of its reason. */
  | { readonly kind: 'abort'; readonly id: string; readonly reason: string }
  /** The child closes what it holds, and exits. */
  | { readonly kind: 'close' };

/** What was thrown in the child. Nothing of it is a live object. */
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
  /** It cannot serve: its module cannot be imported, or exports no such thing. The child exits after it. */
  | { readonly kind: 'unusable'; readonly code: ErrorCode | undefined; readonly message: string }
  /** Said during a call, before its answer. */
  | { readonly kind: 'note'; readonly id: string; readonly value: unknown }
  /** `spent`: it has done its last call. */
  | { readonly kind: 'answer'; readonly id: string; readonly value: unknown; readonly spent?: boolean }
  | { readonly kind: 'threw'; readonly id: string; readonly thrown: Thrown; readonly spent?: boolean }
  /** The call, or one shortly before it, changed this built-in: its answer is not to be trusted. */
  | { readonly kind: 'damaged'; readonly id: string; readonly builtIn: string };

/** Whether a message is one of ours: a child may write anything to its descriptors. */
export function isFromChild(message: unknown): message is FromChild {
  if (typeof message !== 'object' || message === null || !('kind' in message)) return false;
  if (message.kind === 'ready') return 'closes' in message;
  if (message.kind === 'damaged') return 'id' in message && 'builtIn' in message;
  if (message.kind === 'unusable') return isThrown({ description: '', ...message });
  if (message.kind === 'threw') return 'id' in message && 'thrown' in message && isThrown(message.thrown);
  return (message.kind === 'answer' || message.kind === 'note') && 'id' in message && 'value' in message;
}

/** It is stored and shown: another code or no text would fail whoever does that. */
function isThrown(given: unknown): given is Thrown {
  if (typeof given !== 'object' || given === null) return false;
  const { message, description, code, stack } = given as Partial<Record<keyof Thrown, unknown>>;
  const isKnown = code === undefined || (typeof code === 'string' && Object.hasOwn(ERROR_CODES, code));
  const isStack = stack === undefined || (typeof stack === 'string' && stack.length <= MOST_STACK);
  return typeof message === 'string' && typeof description === 'string' && isKnown && isStack;
}

/** The script of this name beside a module: TypeScript when run from source, JavaScript when run from the package. */
export function siblingScript(moduleUrl: string, name: string): URL {
  return new URL(`./${name}${moduleUrl.endsWith('.ts') ? '.ts' : '.js'}`, moduleUrl);
}

/** On the global object, so that two copies of the package agree. */
const lineageSymbol = Symbol.for('trainyard.process-lineage');

/**
 * Which pools this process is a child of, from the outermost in; empty in a process that no pool started. So that a module that opens a pool
 * when it is imported, and is imported by that pool's processes, does not start processes without end.
 */
export function lineage(): readonly string[] {
  return (globalThis as Record<symbol, readonly string[] | undefined>)[lineageSymbol] ?? [];
}

export function setLineage(kinds: readonly string[]): void {
  Object.assign(globalThis, { [lineageSymbol]: kinds });
}
