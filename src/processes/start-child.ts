/**
 * Starts one process of a pool within what the system offers to contain it: a process group of its own always; a PID namespace and a
 * control group with a memory limit where its program asks for them and the system has them.
 *
 * Where there is no control group, the memory of the process group is looked at from time to time instead, which a sudden allocation can
 * outrun. What of a process cannot be contained at all is in docs/reference/graders.md.
 */
import type { ChildProcess } from 'node:child_process';
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import type { ChildProgram } from './answer.ts';
import { watchMemory } from './group-memory.ts';
import { lineage } from './lineage.ts';
import { limitMemory, type MemoryLimit } from './memory-limit.ts';
import { namespacePrefix } from './namespace.ts';
import { killGroup } from './process-group.ts';
import { killMarked, MARK, newMark } from './process-mark.ts';
import { spawned } from './spawned.ts';

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
  const mark = newMark();
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
      if (limit !== undefined) await endedAll(limit);
      else if (own.length === 0) await killMarked(mark);
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

async function endedAll(limit: MemoryLimit): Promise<void> {
  limit.kill();
  await limit.remove();
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
