/**
 * `spawn`, that throws where the system has no descriptors left for the pipes of a process. Node then gives a process without any streams,
 * and an error event a moment later: whoever stumbles over the missing streams first never listens to it, and an error event that nobody
 * listens to ends the program.
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';

/** Throws what `spawn` throws, too. */
export function spawned(command: string, args: readonly string[], options: SpawnOptions): ChildProcess {
  const child = spawn(command, args, options);
  if ((child.stdio as ChildProcess['stdio'] | undefined | null) != null) return child;
  child.on('error', () => {});
  throw new Error(`${command} cannot be started: too many files are open (raise the limit: ulimit -n)`);
}
