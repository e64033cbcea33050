/**
 * Confinement by `unshare` of util-linux: a mount, process, network, IPC, host name and control-group namespace of its own, and a user
 * namespace in which no further one can be made.
 *
 * Whoever runs this, the program has no rights over anything outside: as root it is given a user number that nobody has, as anyone else it
 * stays that user, in a file tree where nothing of theirs can be written. The set-up shell is the first process of the namespace, which the
 * program cannot signal or trace: with it everything ends. It dies with its parent, and that with us.
 */
import { statSync } from 'node:fs';
import { type Ask, BEGIN, beginArgs, type Confined, DEVICES, limited, POWERLESS, SCRATCH, systemFiles } from './confine.ts';

/**
 * `root`: the file tree is made by root, which then becomes nobody, in a user namespace if it can. `user`: all of it happens in a user
 * namespace, whose root is the user who called.
 */
export type NamespaceMode = 'root' | 'root, without a user namespace' | 'user';

/** User numbers of nobody, for a program started by root: a range that systems keep for such uses. Not shared, so that limits are its own. */
const FIRST_USER = 61_184;
const USERS = 4_000;

/** Nothing that is shown inside may lie below the place where the file tree is put together. */
const PLACES = ['/mnt', '/media', '/srv', '/opt', '/var/empty', '/home', '/var/tmp', '/tmp'] as const;

const SET_UP = `
set -ef
new=$1 folders=$2 empties=$3 links=$4 table=$5 scratchMb=$6 define=$7
shift 7
IFS='
'
mount -t tmpfs -o size=1m,mode=755,nosuid,nodev tmpfs "$new"
cd "$new"
mkdir -p old proc tmp etc dev $folders
for file in $empties; do : >"$file"; done
echo 'sandbox:x:0:0::/tmp:/bin/false' >etc/passwd
cp -P $links .
printf '%s\\n' "$table" >etc/fstab
mount -a -T "$new/etc/fstab"
: >etc/fstab
mount -t proc -o nosuid,nodev,noexec proc proc 2>/dev/null || :
mount -t tmpfs -o "size=\${scratchMb}m,nr_inodes=10k,mode=1777,nosuid,nodev" tmpfs tmp
while read -r _ _ _ _ at options _; do
  case $at:$options in
    "$new"/proc:* | "$new"/tmp:* | "$new"/dev/*:* | "$new":*) ;;
    "$new"/*:ro | "$new"/*:ro,*) ;;
    "$new"/*) mount -o remount,bind,ro,nosuid,nodev "$(printf %b "$at")" ;;
  esac
done </proc/self/mountinfo
mount -o remount,bind,ro,nosuid,nodev "$new"
pivot_root . old
cd /
umount -l old
hostname sandbox 2>/dev/null || :
mkdir -m 777 ${SCRATCH}
cd ${SCRATCH}
unset IFS
eval "$define"
${BEGIN}`;

/** Of the user namespace that the writer is in, and of no other. */
const NO_MORE_USER_NAMESPACES = '{ echo 0 >/proc/sys/user/max_user_namespaces; } 2>/dev/null || :';

const NAMESPACES = ['--mount', '--pid', '--net', '--ipc', '--uts', '--cgroup', '--fork', '--kill-child'];

export function byNamespaces(mode: NamespaceMode, ask: Ask): Confined {
  const { readable, links } = systemFiles();
  const shown = [...readable, ...(ask.readable ?? [])].map(({ source, target = source }) => ({ source, target }));
  const place = placeFor(shown.map(({ source }) => source));
  const isFolder = (path: string): boolean => statSync(path).isDirectory();
  const folders = shown.map(({ source, target }) => (isFolder(source) ? target : target.slice(0, target.lastIndexOf('/'))));
  const empties = [...DEVICES, ...shown.filter(({ source }) => !isFolder(source)).map(({ target }) => target)];
  const table = [
    ...shown.map(({ source, target }) => `${escaped(source)} ${escaped(place + target)} none rbind,ro,nosuid,nodev 0 0`),
    ...DEVICES.map((device) => `${device} ${place}${device} none bind 0 0`),
  ];
  const script = [
    SET_UP,
    'sh',
    place,
    inside([...folders, '/usr', '/etc']).join('\n'),
    inside(empties).join('\n'),
    links.join('\n'),
    table.join('\n'),
    String(ask.limits.fileMb),
    launchOf(mode, ask),
    ...beginArgs(ask),
  ];
  const user = mode === 'user' ? ['--user', '--map-root-user'] : [];
  return { command: 'setpriv', args: ['--pdeathsig', 'KILL', 'unshare', ...user, ...NAMESPACES, 'sh', '-c', ...script] };
}

/** Defines `launch` for `BEGIN`. */
function launchOf(mode: NamespaceMode, ask: Ask): string {
  if (mode === 'user') return `${NO_MORE_USER_NAMESPACES}\nlaunch() { ${limited(ask)} ${POWERLESS} "$@"; }`;
  const number = FIRST_USER + Math.floor(Math.random() * USERS);
  const become = `setpriv --reuid=${number} --regid=${number} --clear-groups --inh-caps=-all --bounding-set=-all`;
  if (mode === 'root, without a user namespace') return `launch() { ${become} --no-new-privs -- ${limited(ask)} "$@"; }`;
  const within = `${NO_MORE_USER_NAMESPACES}; exec ${limited(ask)} ${POWERLESS} "$@"`;
  return `launch() { ${become} -- unshare --user --map-root-user -- sh -c '${within}' sh "$@"; }`;
}

/** The first place of the list with nothing below it that is needed. */
function placeFor(sources: readonly string[]): string {
  const free = PLACES.filter(
    (place) =>
      statSync(place, { throwIfNoEntry: false })?.isDirectory() &&
      !sources.some((source) => source === place || source.startsWith(`${place}/`)),
  );
  if (free[0] === undefined) throw new Error(`none of ${PLACES.join(', ')} can be used to put a file tree together`);
  return free[0];
}

/** Relative to the new root. */
function inside(paths: readonly string[]): readonly string[] {
  return [...new Set(paths.filter((path) => path !== '').map((path) => path.slice(1)))];
}

/** As fstab has it. */
function escaped(path: string): string {
  return path.replace(/[\s\\#]/g, (char) => `\\${char.charCodeAt(0).toString(8).padStart(3, '0')}`);
}
