/**
 * Walls around a process: files that it cannot see, files that it can read and not change, and no view of processes but its own.
 *
 * Linux only, through `unshare`, `mount` and `setpriv` of util-linux, as root or with a user namespace. The process gets a mount and a PID
 * namespace of its own and no capabilities, so that it cannot take down what was put up; neither can a namespace that it makes itself. The
 * first process of the namespace is the shell that put the walls up: it has rights that the program has not, so it cannot be looked into.
 *
 * A wall that stands in a folder which can be renamed is none: who renames it can put another folder in its place, and what is outside would
 * find that one. So the folders above each wall cannot be renamed; what is in them can be changed as ever.
 *
 * Not a sandbox: all other files of the user, the network and the machine's time and memory stay within reach.
 */
import { execFile } from 'node:child_process';
import { lstatSync, readdirSync, readFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { tried } from '../processes/process-group.ts';

export interface Walls {
  /** Folders are empty, files too; what does not exist is passed over. */
  readonly hidden: readonly string[];
  /** With all that is in them. */
  readonly readOnly: readonly string[];
  /** A folder that is found, and can be written to, at another place: below something hidden, for example. */
  readonly shown?: { readonly folder: string; readonly at: string };
}

/** Something to be put before a command and its arguments. Keeps all descriptors. */
export type Prefix = readonly string[];

type WallsFound = { readonly kind: 'walls'; around(walls: Walls): Prefix } | { readonly kind: 'none'; readonly why: string };

/**
 * The outermost first: each is mounted onto itself, over what was there. Read-only before hidden, so that what is hidden within stays
 * hidden; back to the working directory by its name, or it would stay the one before. Some systems forbid to drop what a mount was
 * restricted to, and making it read-only must then say that again.
 */
const PUT_UP = `
set -e
here=$PWD
shown=$1 at=$2
shift 2
while [ "$1" != -- ]; do
  mount --rbind "$1" "$1"
  shift
done
shift
while [ "$1" != -- ]; do
  mount -o rbind,ro "$1" "$1" 2>/dev/null || {
    restricted=nosuid,nodev
    mount -o "remount,bind,ro,$restricted" "$1" 2>/dev/null || mount -o "remount,bind,ro,$restricted,noexec" "$1"
  }
  shift
done
shift
if [ "$shown" ]; then cd "$shown"; fi
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then
    mount -t tmpfs -o size=1m,mode=755,nosuid,nodev tmpfs "$1"
    case "$at" in "$1"/*) mkdir -p "$at" ;; esac
  else
    mount --bind /dev/null "$1"
  fi
  shift
done
shift
if [ "$shown" ]; then mount --no-canonicalize --bind . "$at"; fi
cd "$here"
exec 9>&2 2>/dev/null
set +e
setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all -- "$@" 2>&9 9>&-
exit $?
`;

const OWN = ['--mount', '--pid', '--fork', '--kill-child', '--mount-proc', '/bin/sh', '-c', PUT_UP, 'sh'];
const AS_USER = ['unshare', '--user', '--map-current-user', '--keep-caps', ...OWN];
const AS_ROOT = ['unshare', ...OWN];
const PROBE_MS = 10_000;

/** Whether walls of this kind can be put up here: tried, not guessed. */
export async function findWalls(walls: Walls): Promise<WallsFound> {
  if (process.platform !== 'linux') return { kind: 'none', why: `${process.platform} has no namespaces` };
  let why = '';
  for (const start of process.getuid?.() === 0 ? [AS_ROOT, AS_USER] : [AS_USER]) {
    const around = (asked: Walls): Prefix => [...start, ...argumentsOf(asked)];
    const [command = '', ...args] = [...around(walls), 'sh', '-c', 'test $PPID = 1'];
    try {
      await promisify(execFile)(command, args, { timeout: PROBE_MS });
      return { kind: 'walls', around };
    } catch (thrown) {
      const { stderr = '', message } = thrown as { stderr?: string; message: string };
      why = (stderr.trim() || message).split('\n')[0]!.slice(0, 200);
    }
  }
  return { kind: 'none', why };
}

function argumentsOf({ hidden, readOnly, shown }: Walls): readonly string[] {
  const existing = (path: string): boolean => lstatSync(path, { throwIfNoEntry: false }) !== undefined;
  const reach = rootReach();
  const mounted = mounts();
  const locked = [...reach.readOnly, ...readOnly.filter(existing)].flatMap((path) => [
    path,
    // What is mounted below keeps its own rights. A new `/proc` has nothing in it that the old one had.
    ...mounted.filter(({ at, isReadOnly }) => !isReadOnly && at.startsWith(`${path}/`) && !isIn('/proc', at)).map(({ at }) => at),
  ]);
  const unseen = [...reach.hidden, ...hidden.filter(existing)];
  const held = [...new Set([...locked, ...unseen].flatMap(foldersAbove))].filter(
    (folder) => !['/proc', '/sys', '/dev'].some((top) => isIn(top, folder)) && !locked.some((path) => isIn(path, folder)),
  );
  return [shown?.folder ?? '', shown?.at ?? '', ...sorted(held), '--', ...sorted(locked), '--', ...unseen, '--'];
}

/** Without the root folder, which has no other name. */
function foldersAbove(path: string): readonly string[] {
  const above = dirname(path);
  return dirname(above) === above ? [] : [above, ...foldersAbove(above)];
}

function isIn(folder: string, path: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** A folder before what is in it. */
function sorted(paths: readonly string[]): readonly string[] {
  return [...new Set(paths)].toSorted((a, b) => a.length - b.length);
}

interface Mount {
  readonly at: string;
  readonly isReadOnly: boolean;
}

/** What is mounted where, as the kernel lists it: in the order it was mounted. */
export function mounts(): readonly Mount[] {
  const listed = tried(() => readFileSync('/proc/self/mountinfo', 'utf8')) ?? '';
  return listed.split('\n').flatMap((line) => {
    const [, , , , at, options = ''] = line.split(' ');
    return at === undefined ? [] : [{ at: unescaped(at), isReadOnly: options.split(',').includes('ro') }];
  });
}

/** Spaces and the like are written as octal numbers. */
function unescaped(path: string): string {
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

interface RootReach {
  /** Not to be written to. */
  readonly readOnly: readonly string[];
  /** Not to be opened at all. */
  readonly hidden: readonly string[];
}

/** Those of `/proc` are of the namespace's own one. */
const KERNEL = ['/sys', ...['sys', 'sysrq-trigger', 'irq', 'bus', 'fs', 'acpi', 'scsi'].map((name) => `/proc/${name}`)];
/** What programs are made of, those that grade too. */
const SYSTEM = ['/usr', '/etc', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/boot'];
/** Character devices that are a way to a disk. */
const DISK_LIKE = /^(sg\d+|raw\d*)$/;

/**
 * What a process can do to the whole machine by being user 0, without any capability: files of the kernel, and disks, ask for the number of
 * the user only. Whoever can write a core pattern has a program of theirs started by the kernel, outside of every namespace; whoever can
 * read a disk can read each file on it. Empty for every other user, who may do none of this.
 */
export function rootReach(): RootReach {
  if (process.getuid?.() !== 0) return { readOnly: [], hidden: [] };
  const isThere = (path: string): boolean => lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() === false;
  // Programs must be able to write somewhere.
  const isForWriting = (path: string): boolean => [homedir(), tmpdir()].some((folder) => `${folder}/`.startsWith(`${path}/`));
  const system = SYSTEM.filter((path) => !isForWriting(path));
  return { readOnly: [...KERNEL, ...system].filter(isThere), hidden: disksIn('/dev') };
}

function disksIn(folder: string): readonly string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === 'bsg' || entry.name === 'mapper' ? contentsOf(path) : [];
    return entry.isBlockDevice() || (entry.isCharacterDevice() && DISK_LIKE.test(entry.name)) ? [path] : [];
  });
}

/** Without links: they lead to what is found by itself. */
function contentsOf(folder: string): readonly string[] {
  const devices = readdirSync(folder, { withFileTypes: true }).filter(
    (entry) => entry.isBlockDevice() || entry.isCharacterDevice(),
  );
  return devices.map(({ name }) => join(folder, name)).filter((path) => path !== '/dev/mapper/control');
}
