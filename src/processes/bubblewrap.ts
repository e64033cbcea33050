/**
 * Finds bubblewrap, tests it, and holds the options all uses share. `sandbox.ts` runs untrusted programs in it, and
 * `places/process/rollout-sandbox.ts` starts isolated rollouts through it. Only fixed absolute paths are used: a rollout could have put its own
 * program into a PATH folder.
 */
import { spawnSync } from 'node:child_process';
import { lstatSync } from 'node:fs';
import { TrainyardError, tried } from '../core/errors.ts';

export interface Bubblewrap {
  readonly path: string;
  /** Whether it can mount its own /proc. Some containers forbid that; the sandbox's /proc is then empty. */
  readonly hasProc: boolean;
  /** Whether it can forbid creating user namespaces (version 0.8 and newer). */
  readonly disablesUserNamespaces: boolean;
}

const BUBBLEWRAP = ['/usr/bin/bwrap', '/usr/local/bin/bwrap', '/bin/bwrap'] as const;
/** Needed only when running as root. */
const SETPRIV = ['/usr/bin/setpriv', '/bin/setpriv'] as const;
const WRITABLE_BY_OTHERS = 0o022;
const PROBE_MS = 10_000;

let found: Bubblewrap | TrainyardError | undefined;

/** Tests bubblewrap with a small program, once per process. Throws SANDBOX_MISSING with what to install or allow. */
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
  return new TrainyardError('SANDBOX_MISSING', `this system offers no sandbox: ${why}`, hint);
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** Only root can have put it there. */
function isTrusted(path: string): boolean {
  const entry = tried(() => lstatSync(path));
  return entry?.isFile() === true && entry.uid === 0 && (entry.mode & WRITABLE_BY_OTHERS) === 0;
}

function tryOut(bubblewrap: Bubblewrap): string | undefined {
  const { path, disablesUserNamespaces } = bubblewrap;
  const [command = '', ...args] = [
    ...asNobody(bubblewrap).prefix,
    path,
    ...COMMON_OPTIONS,
    '--unshare-net',
    '--ro-bind',
    '/',
    '/',
    ...(disablesUserNamespaces ? ['--disable-userns'] : []),
    ...procOptions(bubblewrap),
    '--',
    '/bin/sh',
    '-c',
    ':',
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

/** Separate namespaces that end with this process, and no capabilities. */
export const COMMON_OPTIONS = [
  '--unshare-user',
  '--unshare-ipc',
  '--unshare-pid',
  '--unshare-cgroup-try',
  '--cap-drop',
  'ALL',
  '--die-with-parent',
  '--new-session',
] as const;

/** A /proc with only the sandbox's processes. Read-only, because the kernel's files there check only the user id, and root passes. */
export function procOptions({ hasProc }: Bubblewrap): readonly string[] {
  return hasProc ? ['--proc', '/proc', '--remount-ro', '/proc'] : ['--tmpfs', '/proc'];
}

export interface ReadableFile {
  readonly source: string;
  readonly target?: string;
}

const FIRST_USER = 2 ** 20;
const USERS = 2 ** 20;

/**
 * Switches from root to a user id that owns nothing: often the kernel checks only the user id, and it does not limit root's processes.
 * Files that this user could not open, such as in root's home, are mounted where it can. The PID namespace makes everything end with this
 * process, because parent-death signals do not cross users.
 */
export function asNobody({ path }: Bubblewrap, readable: readonly ReadableFile[] = []) {
  if (!isRoot()) return { prefix: [], readable };
  const user = String(FIRST_USER + Math.floor(Math.random() * USERS));
  const shown = readable.map(({ source, target = source }, index) => ({ source, target, at: `/tmp/${index}` }));
  return {
    prefix: [
      path,
      '--die-with-parent',
      '--unshare-pid',
      '--cap-drop',
      'ALL',
      '--cap-add',
      'CAP_SETUID',
      '--cap-add',
      'CAP_SETGID',
      '--dev-bind',
      '/',
      '/',
      '--tmpfs',
      '/tmp',
      ...shown.flatMap(({ source, at }) => ['--ro-bind', source, at]),
      '--',
      SETPRIV.find(isTrusted)!,
      '--reuid',
      user,
      '--regid',
      user,
      '--clear-groups',
      '--',
    ],
    readable: shown.map(({ at, target }) => ({ source: at, target })),
  };
}
