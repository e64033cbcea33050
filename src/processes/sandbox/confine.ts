/**
 * Ways to confine a program, as command lines: what all of them share, bubblewrap, and none; `namespaces.ts` is the third. Each ends in
 * the same shell lines, which run inside, write the program's files, say on descriptor 3 that the program begins, and how it ended.
 *
 * Descriptor 3 is what tells a sandbox that could not be set up from a program that failed: without `ready` nothing of the program ran. The
 * program gets neither 3 nor 4, from which its files are read.
 */
import { existsSync, lstatSync, readlinkSync, rmSync } from 'node:fs';
import { temporaryFolder } from '../temporary-folder.ts';
import type { ReadableFile, SandboxLimits, SandboxProgram } from './program.ts';

export interface Confined {
  readonly command: string;
  readonly args: readonly string[];
  /** Afterwards, where something is left outside. */
  readonly remove?: () => void;
}

export interface Ask extends Pick<SandboxProgram, 'program' | 'args' | 'files' | 'readable'> {
  readonly limits: SandboxLimits;
  /** Whether each process's address space is limited, for want of a control group. Node does not start with little of it. */
  readonly limitsAddressSpace: boolean;
}

/** One way to confine, known to work here. */
export type Confine = (ask: Ask) => Confined;

export const READY = 'ready';
export const ENDED = 'ended';

/** Behind the last file's name and size. */
const END_OF_FILES = '--';

/** `launch` is a function that each way to confine defines: it starts the program with what rights and limits it has. */
export const BEGIN = `
while [ "$1" != ${END_OF_FILES} ]; do
  case $1 in */*) mkdir -p "\${1%/*}" ;; esac
  head -c "$2" <&4 >"$1"
  shift 2
done
shift
exec 4<&-
echo ${READY} >&3
set +e
launch "$@" 3>&-
echo "${ENDED} $?" >&3
exit 0
`;

/** What `BEGIN` reads its files and its command from. */
export function beginArgs({ program, args = [], files = {} }: Pick<Ask, 'program' | 'args' | 'files'>): readonly string[] {
  const named = Object.entries(files).flatMap(([name, text]) => [name, String(Buffer.byteLength(text))]);
  return [...named, END_OF_FILES, program, ...args];
}

export function filesContent(files: Readonly<Record<string, string>> = {}): string {
  return Object.values(files).join('');
}

const BYTES_PER_MB = 2 ** 20;

/** A command that limits what follows it. */
export function limited({ limits, limitsAddressSpace }: Ask): string {
  const { cpuSeconds, memoryMb, processes, fileMb } = limits;
  return [
    'prlimit --core=0',
    // The first ends it with a signal of its own, the second for certain.
    `--cpu=${cpuSeconds}:${cpuSeconds + 1}`,
    `--nproc=${processes}`,
    `--fsize=${fileMb * BYTES_PER_MB}`,
    '--nofile=256',
    ...(limitsAddressSpace ? [`--as=${memoryMb * BYTES_PER_MB}`] : []),
    '--',
  ].join(' ');
}

/** No rights, and no way to get any. */
export const POWERLESS = 'setpriv --no-new-privs --inh-caps=-all --bounding-set=-all --';

/** The only place that can be written to; /tmp/work in it is the working directory. */
export const SCRATCH = '/tmp/work';

const ENVIRONMENT = { PATH: '/usr/local/bin:/usr/bin:/bin', LANG: 'C.UTF-8' } as const;
/** For what sets the sandbox up, which is not all on the path of the programs in it. */
export const SET_UP_ENVIRONMENT = { ...ENVIRONMENT, PATH: `/usr/local/sbin:/usr/sbin:/sbin:${ENVIRONMENT.PATH}` };

export const DEVICES = ['/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom'] as const;

/** Folders on some systems, links into /usr on others. */
const TOP = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'] as const;

const SYSTEM = [
  ...['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'libexec', 'share', 'local/bin', 'local/lib'].map(
    (name) => `/usr/${name}`,
  ),
  '/etc/alternatives',
  '/etc/ld.so.cache',
  '/nix/store',
] as const;

interface SystemFiles {
  readonly readable: readonly ReadableFile[];
  /** Links of the root folder, to be made again. */
  readonly links: readonly string[];
}

/** The parts of the system that programs need, read-only, and nothing of anyone's. Not all of /usr: people keep projects in /usr/src. */
export function systemFiles(): SystemFiles {
  const links = TOP.filter((path) => lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink());
  const folders = [...TOP.filter((path) => !links.includes(path)), ...SYSTEM].filter((path) => existsSync(path));
  // A link among them (lib64 → lib, on some systems) is found through what it points to.
  const readable = folders.filter((path) => !lstatSync(path).isSymbolicLink()).map((source) => ({ source }));
  return { readable, links: [...links, ...folders.filter((path) => lstatSync(path).isSymbolicLink())] };
}

/**
 * No confinement: limits of time, memory, processes and file sizes where the system has `prlimit`, an empty environment, and a temporary
 * directory to work in. The program can read and write what its user can, and reach the network. For `best`, where nothing better is there.
 */
export function byNothing(ask: Ask): Confined {
  // Not the number of processes: that would count all of the user's.
  const limits = process.platform === 'linux' ? limited(ask).replace(/--nproc=\S+ /, '') : '';
  // Made and removed here: a shell that is killed removes nothing.
  const work = temporaryFolder('trainyard-code');
  const script = `set -e\ncd "$1"\nshift\nlaunch() { ${limits} "$@"; }\n${BEGIN}`;
  return {
    command: 'sh',
    args: ['-c', script, 'sh', work, ...beginArgs(ask)],
    remove: () => rmSync(work, { recursive: true, force: true, maxRetries: 3 }),
  };
}

const WALLS = [
  ...['--unshare-user', '--unshare-ipc', '--unshare-pid', '--unshare-net', '--unshare-uts', '--unshare-cgroup-try'],
  ...['--die-with-parent', '--new-session', '--as-pid-1', '--cap-drop', 'ALL', '--hostname', 'sandbox', '--clearenv'],
];

/**
 * The same walls as `namespaces`, set up by one small program that many systems allow to make user namespaces where they allow it to nobody
 * else. Not for root: bubblewrap leaves it root's user number, which would be all that a forgotten mount needs.
 * `disablesUserNamespaces`: whether this bubblewrap knows how.
 */
export function byBubblewrap(disablesUserNamespaces: boolean, ask: Ask): Confined {
  const { readable, links } = systemFiles();
  const shown = [...readable, ...(ask.readable ?? [])];
  const script = `set -e\nmkdir ${SCRATCH}\ncd ${SCRATCH}\nlaunch() { ${limited(ask)} ${POWERLESS} "$@"; }\n${BEGIN}`;
  return {
    command: 'bwrap',
    args: [
      ...WALLS,
      ...(disablesUserNamespaces ? ['--disable-userns'] : []),
      ...Object.entries(ENVIRONMENT).flatMap(([name, value]) => ['--setenv', name, value]),
      ...shown.flatMap(({ source, target = source }) => ['--ro-bind', source, target]),
      ...links.flatMap((path) => ['--symlink', readlinkSync(path), path]),
      ...['--proc', '/proc'],
      ...DEVICES.flatMap((device) => ['--dev-bind', device, device]),
      ...['--size', String(ask.limits.fileMb * BYTES_PER_MB), '--perms', '1777', '--tmpfs', '/tmp'],
      ...['--remount-ro', '/', 'sh', '-c', script, 'sh', ...beginArgs(ask)],
    ],
  };
}
