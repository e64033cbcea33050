/**
 * What the pool and its child processes say to each other, over Node's IPC channel and nowhere else: whatever a grader prints is
 * only text. A child is asked one thing at a time, so an answer needs its number only to be told from a stray message.
 */
import type { GraderInput } from '../core/contracts.ts';
import type { ErrorCode } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';

/** The descriptor of the pipe whose end tells a child that its parent is gone. 0–2 are the standard streams, 3 is IPC. */
export const PARENT_PIPE_FD = 4;

/** Set in a grader's process, so that a module that opens a pool when imported does not start processes without end. */
export const insideGraderProcess: unique symbol = Symbol.for('trainyard.inside-grader-process') as never;

export interface ToChild {
  readonly kind: 'grade';
  readonly id: number;
  readonly input: GraderInput;
}

export type FromChild =
  | { readonly kind: 'ready' }
  /** The module cannot be imported, or exports no such grader. The child exits after it. */
  | { readonly kind: 'unusable'; readonly code: ErrorCode; readonly message: string }
  | { readonly kind: 'answer'; readonly id: number; readonly grade: Grade };

/** Whether a message is one of ours. A grader's libraries may use the channel too. */
export function isFromChild(message: unknown): message is FromChild {
  if (typeof message !== 'object' || message === null || !('kind' in message)) return false;
  if (message.kind === 'ready') return true;
  if (message.kind === 'unusable') return 'code' in message && 'message' in message;
  return message.kind === 'answer' && 'id' in message && 'grade' in message;
}

/** The sibling script of this name: TypeScript when run from source, JavaScript when run from the package. */
export function siblingScript(name: string): URL {
  return new URL(`./${name}${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url);
}
