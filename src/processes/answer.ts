/** What a call of a child process can come to. Every ending is a value; whoever called gives it its own words. */
import type { ErrorCode } from '../core/errors.ts';
import type { Thrown } from './protocol.ts';

/** What a pool's processes run. */
export interface ChildProgram {
  /** What the processes are for, in one word without commas: a process may not open a pool of a kind it is a child of. */
  readonly kind: string;
  /** A script that calls `serveCalls`. */
  readonly script: URL;
  /** For its `open`. Visible to everyone on the machine. */
  readonly args?: readonly string[];
  /** The whole environment; absent: this process's. */
  readonly env?: NodeJS.ProcessEnv;
  /** For a process with all it starts, buffers included. Absent: no limit but the system's. */
  readonly memoryMb?: number;
  /** Whether it gets a PID namespace of its own, where the system has them. */
  readonly namespace?: boolean;
  /** Whether its memory limit may be a control group, where the system has them. Absent: yes. */
  readonly controlGroup?: boolean;
  /** Instead of `namespace`: what a process is started through, asked for each of them: a command that ends in starting the one after it. */
  readonly within?: () => readonly string[];
  /** Digests, by file, of the user's code that each process imports: one that would import other code than the first is not used. */
  readonly sources?: (() => Promise<Readonly<Record<string, string>>>) | undefined;
}

export interface CallOptions {
  /** From when a process begins with it. Absent: none. */
  readonly deadlineMs?: number | undefined;
  /** Gives the call up: the child's own signal aborts, and a moment later the process is killed if it goes on. */
  readonly signal?: AbortSignal | undefined;
  /** What the child says before it answers. */
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
  | { readonly kind: 'unusable'; readonly failure: StartFailure }
  | { readonly kind: 'closed' };

/** Why there is no process to ask. */
export type StartFailure =
  | { readonly kind: 'late'; readonly deadlineMs: number }
  /** In the child's own words. */
  | { readonly kind: 'refused'; readonly code: ErrorCode | undefined; readonly message: string }
  | { readonly kind: 'ended'; readonly how: string; readonly when: 'starting' | 'idle' }
  /** The system gave none. */
  | { readonly kind: 'unstartable'; readonly message: string };
