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

/**
 * For a process whose parent is gone. The pool starts it in a group of its own, so nobody else is hit. By 0 and not by a number: in a
 * namespace the group's leader, which is outside and has to end too, has none.
 */
export function endOwnGroup(): void {
  process.kill(process.platform === 'win32' ? process.pid : 0, 'SIGKILL');
}
