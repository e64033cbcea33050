/**
 * Bubblewrap on this machine: where it is, whether it works, and what every use of it has in common. `sandbox.ts` runs untrusted programs in
 * it, `isolation/rollout-sandbox.ts` starts isolated rollouts through it.
 *
 * It is taken from an absolute path and never looked up by name: a rollout could have put a program of its own into a folder of PATH.
 */
import { spawnSync } from 'node:child_process';
import { lstatSync } from 'node:fs';
import { TrainyardError } from '../core/errors.ts';
import { tried } from './limits.ts';

export interface Bubblewrap {
  readonly path: string;
  /** Whether it can mount a /proc of its own: some containers forbid it, and then there is no /proc inside. */
  readonly hasProc: boolean;
  /** Whether it can forbid the program to make user namespaces: version 0.8 and newer. */
  readonly disablesUserNamespaces: boolean;
}

const BUBBLEWRAP = ['/usr/bin/bwrap', '/usr/local/bin/bwrap', '/bin/bwrap'] as const;
/** Only root needs it. */
const SETPRIV = ['/usr/bin/setpriv', '/bin/setpriv'] as const;
const WRITABLE_BY_OTHERS = 0o022;
const PROBE_MS = 10_000;

let found: Bubblewrap | TrainyardError | undefined;

/** Found by running a small program in it, once per process. Throws SANDBOX_MISSING with what to install or allow. */
export function findBubblewrap(): Bubblewrap {
  found ??= lookForBubblewrap();
  if (found instanceof TrainyardError) throw found;
  return found;
}

function lookForBubblewrap(): Bubblewrap | TrainyardError {
  if (process.platform !== 'linux') {
    return missing(`${process.platform} has no bubblewrap`, 'use Linux: a container, a virtual machine, or WSL');
  }
  const path = BUBBLEWRAP.find(isTrusted);
  if (path === undefined || (isRoot() && !SETPRIV.some(isTrusted))) {
    const hint = 'install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap, apk add bubblewrap setpriv)';
    const places = path === undefined ? BUBBLEWRAP : SETPRIV;
    return missing(`there is no program of root's at ${places.join(', ')}`, hint);
  }
  let why = '';
  for (const hasProc of [true, false]) {
    for (const disablesUserNamespaces of [true, false]) {
      const bubblewrap = { path, hasProc, disablesUserNamespaces };
      const failure = tryOut(bubblewrap);
      if (failure === undefined) return bubblewrap;
      why ||= failure;
    }
  }
  const hint =
    'allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0; in a container --cap-add SYS_ADMIN --security-opt apparmor=unconfined --security-opt seccomp=unconfined';
  return missing(`${path} does not work here: ${why}`, hint);
}

function missing(why: string, hint: string): TrainyardError {
  return new TrainyardError('SANDBOX_MISSING', `this system offers no sandbox: ${why}`, { hint });
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** Only root can have put it there. */
function isTrusted(path: string): boolean {
  const entry = tried(() => lstatSync(path));
  return entry?.isFile() === true && entry.uid === 0 && (entry.mode & WRITABLE_BY_OTHERS) === 0;
}

/** Undefined where it works; else its own words. */
function tryOut(bubblewrap: Bubblewrap): string | undefined {
  const { path, disablesUserNamespaces } = bubblewrap;
  const [command = '', ...args] = [
    ...[...asNobody(bubblewrap).prefix, path, ...COMMON_OPTIONS, '--unshare-net', '--ro-bind', '/', '/'],
    ...[...(disablesUserNamespaces ? ['--disable-userns'] : []), ...procOptions(bubblewrap), '--', '/bin/sh', '-c', ':'],
  ];
  const { status, signal, stderr, error } = spawnSync(command, args, {
    cwd: '/',
    env: {},
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: PROBE_MS,
    killSignal: 'SIGKILL',
    encoding: 'utf8',
  });
  if (status === 0) return undefined;
  return error?.message ?? (stderr.trim().split('\n')[0] || `it ended with ${status ?? signal}`);
}

/** Options of every use: namespaces of its own that end with this process, and no capabilities. */
export const COMMON_OPTIONS = [
  ...['--unshare-user', '--unshare-ipc', '--unshare-pid', '--unshare-cgroup-try', '--cap-drop', 'ALL'],
  ...['--die-with-parent', '--new-session'],
] as const;

/** A /proc of the sandbox's own processes. Read-only: its files of the kernel ask for nothing but the number of the user, root's too. */
export function procOptions({ hasProc }: Bubblewrap): readonly string[] {
  return hasProc ? ['--proc', '/proc', '--remount-ro', '/proc'] : ['--tmpfs', '/proc'];
}

/** A file or folder of this machine that the program may read. */
export interface ReadableFile {
  readonly source: string;
  /** Absent: the same path. */
  readonly target?: string;
}

const FIRST_USER = 2 ** 20;
const USERS = 2 ** 20;

interface Reachable {
  /** The command that the sandbox is started through. */
  readonly prefix: readonly string[];
  readonly readable: readonly ReadableFile[];
}

/**
 * Root becomes another user first, one that owns nothing here: the kernel asks for nothing but the number of the user in many places, and
 * does not limit the number of root's processes. What that user could not open, in root's home for example, is put where it can. The PID
 * namespace ends it all with this process: no signal of a parent's death crosses from one user to another.
 */
export function asNobody({ path }: Bubblewrap, readable: readonly ReadableFile[] = []): Reachable {
  if (!isRoot()) return { prefix: [], readable };
  const user = String(FIRST_USER + Math.floor(Math.random() * USERS));
  const shown = readable.map(({ source, target = source }, index) => ({ source, target, at: `/tmp/${index}` }));
  return {
    prefix: [
      ...[path, '--die-with-parent', '--unshare-pid', '--cap-drop', 'ALL', '--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID'],
      ...['--dev-bind', '/', '/', '--tmpfs', '/tmp', ...shown.flatMap(({ source, at }) => ['--ro-bind', source, at]), '--'],
      ...[SETPRIV.find(isTrusted)!, '--reuid', user, '--regid', user, '--clear-groups', '--'],
    ],
    readable: shown.map(({ at, target }) => ({ source: at, target })),
  };
}
