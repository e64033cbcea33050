/**
 * Starts one process of a pool within what the system offers to contain it: a process group of its own always; a PID namespace and a
 * control group with a memory limit where its program asks for them and the system has them.
 *
 * Where there is no control group, the memory of the process group is looked at from time to time instead, which a sudden allocation can
 * outrun. What of a process cannot be contained at all is in docs/reference/graders.md.
 */
import { type ChildProcess, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import type { ChildProgram } from './answer.ts';
import { watchMemory } from './group-memory.ts';
import { limitMemory } from './memory-limit.ts';
import { killGroup, spawned } from './process-group.ts';
import { lineage } from './protocol.ts';

const BYTES_PER_MB = 2 ** 20;
/** Processes and threads of one grader with all it starts, against fork bombs; Node itself has about a dozen. */
const MOST_PROCESSES = 1_024;
/** The rest of a memory limit is for buffers and for Node itself: a heap that is full ends with a message, a control group without. */
const HEAP_SHARE = 0.75;
/** Of a shell whose program was ended by a signal. */
const SIGNAL_CODE = 128;

export interface StartedChild {
  readonly process: ChildProcess;
  /** How it ended, for after "the process"; knows the memory limit and the namespace. */
  ending(code: number | null, signal: NodeJS.Signals | null): string;
  /** Ends what it left running, as far as that can be found; to be called once, after its exit. */
  cleared(): Promise<void>;
}

/** Throws what `spawn` throws when the system refuses a process. */
export function startChild({
  kind,
  script,
  args = [],
  env = process.env,
  memoryMb,
  namespace = false,
  controlGroup = true,
  within,
}: ChildProgram): StartedChild {
  const limit =
    memoryMb !== undefined && controlGroup
      ? limitMemory({ bytes: memoryMb * BYTES_PER_MB, processes: MOST_PROCESSES })
      : undefined;
  const own = within?.() ?? (namespace ? namespacePrefix() : []);
  const node = [process.execPath, ...heapLimit(memoryMb), ...inheritableArguments(), fileURLToPath(script)];
  const [command = '', ...rest] = [...(limit?.prefix ?? []), ...own, ...node, [...lineage(), kind].join(','), ...args];
  const mark = randomUUID();
  let child: ChildProcess;
  try {
    child = spawned(command, rest, {
      detached: true,
      windowsHide: true,
      // The channel, and the pipe that tells the child of our death.
      stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'],
      env: { ...env, [MARK]: mark },
    });
  } catch (error) {
    void limit?.remove();
    throw error;
  }
  const watch = limit === undefined && memoryMb !== undefined ? watched(child, memoryMb) : undefined;
  const isOver = (): boolean => limit?.exceeded() === true || watch?.isOver() === true;
  return {
    process: child,
    ending(code, signal) {
      const by = signal ?? (own.length > 0 ? signalOf(code) : undefined);
      if (by === 'SIGKILL' && isOver()) return `used more than ${memoryMb} MB of memory`;
      return by === undefined ? `exited with code ${code}` : `was killed by ${by}`;
    },
    async cleared() {
      watch?.end();
      if (child.pid !== undefined) killGroup(child.pid);
      limit?.kill();
      await limit?.remove();
      if (limit === undefined && own.length === 0) await killMarked(mark);
    },
  };
}

function watched(child: ChildProcess, memoryMb: number): { isOver(): boolean; end(): void } | undefined {
  const { pid } = child;
  if (pid === undefined) return undefined;
  let over = false;
  const end = watchMemory(pid, memoryMb * BYTES_PER_MB, () => {
    over = true;
    // Never after its exit: the number could be another process's by then.
    if (child.exitCode === null && child.signalCode === null) killGroup(pid);
  });
  return { isOver: () => over, end };
}

function signalOf(code: number | null): string | undefined {
  return Object.entries(constants.signals).find(([, number]) => number + SIGNAL_CODE === code)?.[0];
}

/** First, so that who starts this process with a limit of their own has theirs. */
function heapLimit(memoryMb: number | undefined): readonly string[] {
  if (memoryMb === undefined || process.env['NODE_OPTIONS']?.includes('max-old-space-size')) return [];
  return [`--max-old-space-size=${Math.max(16, Math.floor(memoryMb * HEAP_SHARE))}`];
}

/**
 * This process's own Node arguments are passed on, so that type stripping and `--conditions` hold in the child too; only an inspector is
 * left out, because its port is taken and Node would refuse to start.
 */
function inheritableArguments(): readonly string[] {
  const inspector = /^--inspect(-brk|-wait)?(=|$)/;
  return process.execArgv.filter((argument) => !inspector.test(argument));
}

// ── a PID namespace, where the system gives one ─────────────────────────────────────────────────────────────────────────

/** Without the shell's own words about how the program ended; a program ended by a signal becomes its exit code, 128 and the signal. */
const FIRST_PROCESS = ['/bin/sh', '-c', 'exec 9>&2 2>/dev/null; "$@" 2>&9 9>&-; exit $?', 'sh'] as const;
const OWN_PIDS = ['--pid', '--fork', '--kill-child'] as const;
const OWN_USER = ['--user', '--map-current-user'] as const;
const PROBE_MS = 5_000;

let found: readonly string[] | undefined;

/**
 * To be put before a command and its arguments; empty where there are no namespaces. Keeps all descriptors. In one, a program sees and
 * signals only what it started itself, and nothing of that outlives it, however it was detached; files, network and users are those of outside.
 *
 * Linux only, through `unshare` of util-linux: as root, else with a user namespace too. The first process of the namespace is a shell that
 * waits for the program: it takes in orphans, and the program has a number at which signals work as everywhere. Found out once.
 */
export function namespacePrefix(): readonly string[] {
  found ??= process.platform === 'linux' ? (candidates().find(works) ?? []) : [];
  return found;
}

/** A `/proc` of its own is left out where a container forbids to mount one: then others can be seen, and still not be signalled. */
function candidates(): readonly (readonly string[])[] {
  const users = process.getuid?.() === 0 ? [[], OWN_USER] : [OWN_USER];
  return users.flatMap((user) => [
    ['unshare', ...user, ...OWN_PIDS, '--mount-proc', ...FIRST_PROCESS],
    ['unshare', ...user, ...OWN_PIDS, ...FIRST_PROCESS],
  ]);
}

function works([command = '', ...args]: readonly string[]): boolean {
  const { status, stdout } = spawnSync(command, [...args, 'sh', '-c', 'echo $PPID'], {
    encoding: 'utf8',
    timeout: PROBE_MS,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  return status === 0 && stdout === '1\n';
}

// ── a mark in the environment, which everything that a process starts inherits ──────────────────────────────────────────

const MARK = 'TRAINYARD_POOL';

/**
 * The last means, where there is neither a namespace nor a control group, to end what left its process group, as far as this user may look.
 * Linux only. What drops its environment on purpose is not found.
 */
async function killMarked(mark: string): Promise<void> {
  if (process.platform !== 'linux') return;
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  // What cannot be read is somebody else's, or ended meanwhile.
  await Promise.allSettled(
    pids.map(async (pid) => {
      const environment = await readFile(`/proc/${pid}/environ`, 'utf8');
      if (environment.split('\0').includes(`${MARK}=${mark}`)) process.kill(Number(pid), 'SIGKILL');
    }),
  );
}
