/**
 * The sandbox for untrusted programs: code that the policy wrote. It requires bubblewrap and otherwise refuses, with what to install.
 * Inside there is no network, home or environment, and no process but the program's own; the system is read-only, with one in-memory
 * scratch directory. The program runs as nobody, without capabilities. Not contained: kernel vulnerabilities (system calls are not
 * filtered) and timing side channels.
 */
import { existsSync, lstatSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import type { Readable, Writable } from 'node:stream';
import { messageOf, TrainyardError, tried } from '../core/errors.ts';
import { asNobody, type Bubblewrap, COMMON_OPTIONS, findBubblewrap, procOptions, type ReadableFile } from './bubblewrap.ts';
import { BYTES_PER_MB, type ProcessExit, ProcessGroup } from './limits.ts';

export type { ReadableFile };

export interface SandboxLimits {
  /** From the program's start until everything is killed. */
  readonly wallMs: number;
  /** CPU time of each process. */
  readonly cpuSeconds: number;
  /** Resident memory of all its processes together, polled ten times a second: see `limits.ts`. */
  readonly memoryMb: number;
  /** Concurrent processes, including threads. */
  readonly processes: number;
  /** Total size of /tmp, which contains the scratch directory. */
  readonly fileMb: number;
  /** Standard output and error together. */
  readonly outputBytes: number;
}

export interface SandboxProgram {
  /** Absolute, or found on the sandbox's PATH: /usr/local/bin, /usr/bin and /bin. */
  readonly program: string;
  readonly args?: readonly string[];
  /** Text by relative name, written to the scratch directory, which is also the working directory. */
  readonly files?: Readonly<Record<string, string>>;
  readonly readable?: readonly ReadableFile[];
  readonly limits?: Partial<SandboxLimits>;
  readonly signal?: AbortSignal | undefined;
}

export type SandboxEnd =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled'; readonly signal: number }
  | { readonly kind: 'timeout'; readonly wallMs: number }
  | { readonly kind: 'memory'; readonly memoryMb: number }
  | { readonly kind: 'output'; readonly outputBytes: number }
  | { readonly kind: 'cancelled' };

export type SandboxResult = SandboxEnd & {
  readonly stdout: string;
  readonly stderr: string;
  /** From start to end, without setting up the sandbox. */
  readonly ranMs: number;
};

export interface ConfinedProcess {
  readonly stdin: Writable;
  readonly stdout: Readable;
  /** Resolves when everything it started is gone and its streams are read. Rejects only with SANDBOX_FAILED: the program never ran. */
  readonly ended: Promise<SandboxEnd>;
  readonly stderr: string;
  /** Since its start, or until its end; 0 before. */
  readonly ranMs: number;
  kill(): void;
}

export interface Sandbox {
  /** Runs a program to its end. Rejects with USAGE like `start`, or with SANDBOX_FAILED if the program never ran. */
  run(program: SandboxProgram & { readonly stdin?: string }): Promise<SandboxResult>;
  /** Starts a program to interact with. Throws USAGE for invalid limits or file names, and SANDBOX_FAILED. */
  start(program: SandboxProgram): ConfinedProcess;
}

/** Throws SANDBOX_MISSING. */
export function openSandbox(): Sandbox {
  const bubblewrap = findBubblewrap();
  const start = (program: SandboxProgram): ConfinedProcess => {
    const limits = wholeLimits(program.limits);
    checkFileNames(program.files ?? {});
    try {
      return new Running(bubblewrap, program, limits);
    } catch (thrown) {
      throw failed(messageOf(thrown), thrown);
    }
  };
  return {
    start,
    async run({ stdin = '', ...program }) {
      const running = start(program);
      const chunks: Buffer[] = [];
      running.stdout.on('data', (chunk: Buffer) => chunks.push(chunk)).resume();
      running.stdin.end(stdin);
      const end = await running.ended;
      return { ...end, stdout: Buffer.concat(chunks).toString('utf8'), stderr: running.stderr, ranMs: running.ranMs };
    },
  };
}

const DEFAULT_LIMITS: SandboxLimits = {
  wallMs: 10_000,
  cpuSeconds: 10,
  memoryMb: 256,
  processes: 32,
  fileMb: 16,
  outputBytes: 2 ** 20,
};

function wholeLimits(given: Partial<SandboxLimits> = {}): SandboxLimits {
  const limits = { ...DEFAULT_LIMITS, ...given };
  const wrong = Object.entries(limits).filter(([, value]) => !(Number.isSafeInteger(value) && value >= 1));
  if (wrong.length === 0) return limits;
  const found = wrong.map(([name, value]) => `${name} ${value}`).join(', ');
  throw new TrainyardError('USAGE', `a sandbox's limits are whole numbers from 1 up; found ${found}`);
}

/** Refuses names that would leave the scratch directory. */
function checkFileNames(files: Readonly<Record<string, string>>): void {
  const wrong = Object.keys(files).filter((name) => !/^[\w-][\w.-]*(\/[\w-][\w.-]*)*$/.test(name));
  if (wrong.length === 0) return;
  const found = wrong.join(', ');
  throw new TrainyardError('USAGE', `files of a sandbox have relative names of letters, digits, . _ and -; found ${found}`);
}

const NOBODY = '65534';
const SCRATCH = '/tmp/work';
const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LANG: 'C.UTF-8' } as const;
const DEVICES = ['/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom'] as const;

/** Folders on some systems, links into /usr on others. Not all of /usr: people keep projects in /usr/src. */
const SYSTEM = [
  '/bin',
  '/sbin',
  '/lib',
  '/lib32',
  '/lib64',
  '/libx32',
  ...['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'libexec', 'share', 'local/bin', 'local/lib'].map(
    (name) => `/usr/${name}`,
  ),
  '/etc/alternatives',
  '/etc/ld.so.cache',
  '/nix/store',
] as const;

/** Descriptor that signals the program's start. The files use the descriptors after it. */
const STATUS_FD = 3;
const READY = 'ready';
/** Bubblewrap's processes and the shell's. */
const OWN_PROCESSES = 8;

/**
 * `ready` distinguishes a failed setup from a failed program. `-f` counts blocks of 512 bytes. The soft CPU limit sends a signal of its
 * own, the hard one kills. Shells spell the process limit `-u` or `-p`.
 */
function launcher({ cpuSeconds, fileMb, processes }: SandboxLimits): string {
  const most = processes + OWN_PROCESSES;
  const limits = ['-c 0', `-S -t ${cpuSeconds}`, `-H -t ${cpuSeconds + 1}`, `-f ${fileMb * 2048}`, '-n 256'];
  const all = [...limits.map((limit) => `ulimit ${limit}`), `{ ulimit -u ${most} 2>/dev/null || ulimit -p ${most}; }`];
  return `${all.join(' && ')} && echo ${READY} >&${STATUS_FD} && exec "$@" ${STATUS_FD}>&-`;
}

function commandOf(bubblewrap: Bubblewrap, program: SandboxProgram, limits: SandboxLimits): readonly string[] {
  const { files = {}, args = [] } = program;
  const { prefix, readable } = asNobody(bubblewrap, program.readable ?? []);
  return [
    ...prefix,
    bubblewrap.path,
    ...COMMON_OPTIONS,
    ...(bubblewrap.disablesUserNamespaces ? ['--disable-userns'] : []),
    '--unshare-net',
    '--unshare-uts',
    '--hostname',
    'sandbox',
    '--uid',
    NOBODY,
    '--gid',
    NOBODY,
    '--clearenv',
    ...Object.entries(ENVIRONMENT).flatMap(([name, value]) => ['--setenv', name, value]),
    ...SYSTEM.filter((path) => existsSync(path)).flatMap(systemOptions),
    ...readable.flatMap(({ source, target = source }) => ['--ro-bind', source, target]),
    ...procOptions(bubblewrap),
    ...DEVICES.flatMap((device) => ['--dev-bind', device, device]),
    '--size',
    String(limits.fileMb * BYTES_PER_MB),
    '--perms',
    '1777',
    '--tmpfs',
    '/tmp',
    '--dir',
    SCRATCH,
    ...Object.keys(files).flatMap((name, index) => ['--file', String(STATUS_FD + 1 + index), `${SCRATCH}/${name}`]),
    '--remount-ro',
    '/',
    '--chdir',
    SCRATCH,
    '--',
    '/bin/sh',
    '-c',
    launcher(limits),
    'sh',
    program.program,
    ...args,
  ];
}

function systemOptions(path: string): readonly string[] {
  return lstatSync(path).isSymbolicLink() ? ['--symlink', readlinkSync(path), path] : ['--ro-bind', path, path];
}

/** For the setup. The program's own time starts afterwards: a busy machine must not make it look slow. */
const SET_UP_MS = 60_000;
/** How long to read its output after its end: a slow reader must not delay the end. */
const DRAIN_MS = 1_000;
const SIGNAL_BASE = 128;

class Running implements ConfinedProcess {
  readonly ended: Promise<SandboxEnd>;
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly #limits: SandboxLimits;
  /** Bubblewrap's first process dies with its parent, and everything in its PID namespace with it. */
  readonly #group: ProcessGroup<SandboxEnd>;
  readonly #errors: Buffer[] = [];
  #written = 0;
  #begunAt: number | undefined;
  #endedAt: number | undefined;

  constructor(bubblewrap: Bubblewrap, program: SandboxProgram, limits: SandboxLimits) {
    this.#limits = limits;
    const { memoryMb } = limits;
    const contents = Object.values(program.files ?? {});
    const pipes = Array.from({ length: STATUS_FD + 1 + contents.length }, () => 'pipe' as const);
    const [command = '', ...args] = commandOf(bubblewrap, program, limits);
    const stdio = [...pipes, ...coveredFrom(pipes.length)];
    this.#group = new ProcessGroup(command, args, { env: {}, cwd: '/', stdio }, DRAIN_MS);
    const { child } = this.#group;
    const [stdin, stdout, stderr, status, ...files] = child.stdio as [Writable, Readable, Readable, Readable, ...Writable[]];
    this.stdin = stdin.on('error', () => {});
    this.stdout = stdout.on('data', (chunk: Buffer) => this.#count(chunk)).pause();
    stderr.on('data', (chunk: Buffer) => {
      this.#errors.push(chunk);
      this.#count(chunk);
    });
    status.once('data', () => this.#begin());
    for (const [index, text] of contents.entries()) files[index]!.on('error', () => {}).end(text);
    child.once('exit', () => {
      this.#endedAt = performance.now();
    });
    this.#group.killOn(program.signal, { kind: 'cancelled' });
    this.#group.killAfter(SET_UP_MS);
    this.#group.killOver(memoryMb, () => ({ kind: 'memory', memoryMb }));
    this.ended = this.#group.ended.then((exit) => this.#endOf(exit));
    // Awaiting it is optional.
    this.ended.catch(() => {});
  }

  get stderr(): string {
    return Buffer.concat(this.#errors).toString('utf8');
  }

  get ranMs(): number {
    return this.#begunAt === undefined ? 0 : (this.#endedAt ?? performance.now()) - this.#begunAt;
  }

  kill(): void {
    this.#group.kill({ kind: 'cancelled' });
  }

  #begin(): void {
    const { wallMs } = this.#limits;
    this.#begunAt = performance.now();
    this.#group.killAfter(wallMs, { kind: 'timeout', wallMs });
  }

  #count(chunk: Buffer): void {
    const { outputBytes } = this.#limits;
    this.#written += chunk.length;
    if (this.#written <= outputBytes) return;
    this.#group.kill({ kind: 'output', outputBytes });
    // What still comes is dropped. Destroyed streams would never end for who reads their lines.
    const { stdout, stderr } = this.#group.child;
    for (const stream of [stdout!, stderr!]) stream.removeAllListeners('data').resume();
  }

  #endOf(exit: ProcessExit): SandboxEnd {
    const { cause } = this.#group;
    if ('failure' in exit) throw failed(exit.failure);
    if (cause !== undefined) return cause;
    if (this.#begunAt === undefined) throw failed(this.stderr.trim() || `it ended with ${exit.code ?? exit.signal}`);
    // Bubblewrap reports a signal only as 128 + n, so a program that exits with such a code looks the same.
    const code = exit.code ?? SIGNAL_BASE;
    return code < SIGNAL_BASE ? { kind: 'exited', code } : { kind: 'signalled', signal: code - SIGNAL_BASE };
  }
}

function failed(why: string, cause?: unknown): TrainyardError {
  return new TrainyardError('SANDBOX_FAILED', `the sandbox could not be set up: ${why}`, { cause });
}

const CLOSED_ON_EXEC = 0o2000000;

let inherited: readonly number[] | undefined;
let nowhere: number | undefined;

/**
 * `stdio` entries from `first` on that replace inheritable descriptors by /dev/null: an open folder would lead out of the sandbox. Node
 * itself closes only those below 16.
 */
function coveredFrom(first: number): readonly ('ignore' | number)[] {
  inherited ??= tried(() => readdirSync('/proc/self/fd').map(Number).filter(isHandedOn)) ?? [];
  const beyond = inherited.filter((descriptor) => descriptor >= first);
  if (beyond.length === 0) return [];
  nowhere ??= openSync('/dev/null', 'r+');
  const covered: ('ignore' | number)[] = Array.from({ length: Math.max(...beyond) - first + 1 }, () => 'ignore');
  for (const descriptor of beyond) covered[descriptor - first] = nowhere;
  return covered;
}

function isHandedOn(descriptor: number): boolean {
  const info = tried(() => readFileSync(`/proc/self/fdinfo/${descriptor}`, 'utf8')) ?? '';
  return (Number.parseInt(/^flags:\s*([0-7]+)/m.exec(info)?.[1] ?? '2000000', 8) & CLOSED_ON_EXEC) === 0;
}
