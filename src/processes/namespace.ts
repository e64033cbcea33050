/**
 * A PID namespace for a program, where the system gives one: it sees and signals only what it started itself, and nothing that it started
 * outlives it, however it was detached.
 *
 * Linux only, through `unshare` of util-linux: as root, else with a user namespace too. The first process of the namespace is a shell that
 * waits for the program: it takes in orphans, and the program has a number at which signals work as everywhere. Found out once.
 *
 * Not a sandbox: files, network and users are those of outside.
 */
import { spawnSync } from 'node:child_process';

/** Without the shell's own words about how the program ended; a program ended by a signal becomes its exit code, 128 and the signal. */
const FIRST_PROCESS = ['/bin/sh', '-c', 'exec 9>&2 2>/dev/null; "$@" 2>&9 9>&-; exit $?', 'sh'] as const;
const OWN_PIDS = ['--pid', '--fork', '--kill-child'] as const;
const OWN_USER = ['--user', '--map-current-user'] as const;
const PROBE_MS = 5_000;

let found: readonly string[] | undefined;

/** To be put before a command and its arguments; empty where there are no namespaces. Keeps all descriptors. */
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
