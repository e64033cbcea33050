/**
 * Ending a process together with everything it started, as far as that stayed in its process group.
 */

/** SIGKILLs the group that `pid` leads. Says nothing when there is none any more. */
export function killGroup(pid: number): void {
  try {
    // Windows has no process groups to signal; there what a child spawned lives on.
    process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL');
  } catch {
    // Already gone.
  }
}

/** For a process whose parent is gone. The pool starts it as the leader of its own group, so nobody else is hit. */
export function endOwnGroup(): void {
  killGroup(process.pid);
}
