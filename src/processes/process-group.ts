/** Starting a process, and ending it together with everything it started, as far as that stayed in its process group. */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';

/** Undefined where it throws: for what is not there on every system, or is gone meanwhile. */
export function tried<T>(attempt: () => T): T | undefined {
  try {
    return attempt();
  } catch {
    return undefined;
  }
}

/** SIGKILLs the group that `pid` leads. Says nothing when there is none any more. */
export function killGroup(pid: number): void {
  // Windows has no process groups to signal; there what a child spawned lives on.
  tried(() => process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL'));
}

/**
 * For a process whose parent is gone. The pool starts it in a group of its own, so nobody else is hit. By 0 and not by a number: in a
 * namespace the group's leader, which is outside and has to end too, has none.
 */
export function endOwnGroup(): void {
  process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
}

/**
 * `spawn`, that throws where the system has no descriptors left for the pipes of a process. Node then gives a process without any streams,
 * and an error event a moment later: whoever stumbles over the missing streams first never listens to it, and an error event that nobody
 * listens to ends the program. Throws what `spawn` throws, too.
 */
export function spawned(command: string, args: readonly string[], options: SpawnOptions): ChildProcess {
  const child = spawn(command, args, options);
  if ((child.stdio as ChildProcess['stdio'] | undefined | null) != null) return child;
  child.on('error', () => {});
  throw new Error(`${command} cannot be started: too many files are open (raise the limit: ulimit -n)`);
}
