/**
 * What can be asked of a sandbox: a program, what it may read, what it may use up; and how it can end.
 */
import { TrainyardError } from '../../core/errors.ts';

export interface SandboxLimits {
  /** Until everything is killed. */
  readonly wallMs: number;
  /** Of each process. */
  readonly cpuSeconds: number;
  /** Of all processes together where the system has control groups, else of each (and of a Node process only as its caller bounds it). */
  readonly memoryMb: number;
  /** At once, threads counted. */
  readonly processes: number;
  /** All that is written to the scratch directory and to /tmp, together. */
  readonly fileMb: number;
  /** Standard output and error, together. */
  readonly outputBytes: number;
}

/** Something of this machine that the program may read. */
export interface ReadableFile {
  readonly source: string;
  /** Absent: the same path. */
  readonly target?: string;
}

export interface SandboxProgram {
  /** Absolute, or found on the sandbox's PATH: /usr/local/bin, /usr/bin and /bin. */
  readonly program: string;
  readonly args?: readonly string[];
  /** Written to the scratch directory, its working directory, before it starts: text by relative name. */
  readonly files?: Readonly<Record<string, string>>;
  readonly readable?: readonly ReadableFile[];
  readonly limits?: Partial<SandboxLimits>;
  readonly signal?: AbortSignal;
}

export type SandboxEnd =
  | { readonly kind: 'exited'; readonly code: number }
  /** The number of the signal; 0 where the program ended what watched over it. */
  | { readonly kind: 'signalled'; readonly signal: number }
  | { readonly kind: 'timeout'; readonly wallMs: number }
  | { readonly kind: 'memory'; readonly memoryMb: number }
  | { readonly kind: 'output'; readonly outputBytes: number }
  | { readonly kind: 'cancelled' };

export type SandboxResult = SandboxEnd & {
  readonly stdout: string;
  readonly stderr: string;
  /** From its start to its end, without the time that setting up the sandbox took. */
  readonly ranMs: number;
};

const DEFAULT_LIMITS: SandboxLimits = {
  wallMs: 10_000,
  cpuSeconds: 10,
  memoryMb: 256,
  processes: 32,
  fileMb: 16,
  outputBytes: 2 ** 20,
};

/** Throws USAGE for a limit that is none. */
export function wholeLimits(given: Partial<SandboxLimits> = {}): SandboxLimits {
  const limits = { ...DEFAULT_LIMITS, ...given };
  const wrong = Object.entries(limits).filter(([, value]) => !(Number.isSafeInteger(value) && value >= 1));
  if (wrong.length === 0) return limits;
  throw new TrainyardError(
    'USAGE',
    `a sandbox's limits are whole numbers from 1 up; found ${wrong.map(([name, value]) => `${name} ${value}`).join(', ')}`,
  );
}

/** Throws USAGE for names that would leave the scratch directory. */
export function checkFileNames(files: Readonly<Record<string, string>>): void {
  const wrong = Object.keys(files).filter((name) => !/^[\w-][\w.-]*(\/[\w-][\w.-]*)*$/.test(name));
  if (wrong.length === 0) return;
  throw new TrainyardError(
    'USAGE',
    `files of a sandbox have relative names of letters, digits, . _ and -; found ${wrong.join(', ')}`,
  );
}
