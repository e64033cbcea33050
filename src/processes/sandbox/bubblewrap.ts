/**
 * Confinement by bubblewrap, for users other than root: the same walls as `namespaces`, set up by one small program that many systems allow
 * to make user namespaces where they allow it to nobody else.
 *
 * Not for root: bubblewrap leaves it root's user number, which would be all that a forgotten mount needs.
 */
import { readlinkSync } from 'node:fs';
import { DEVICES, ENVIRONMENT, SCRATCH, systemFiles } from './inside.ts';
import { type Ask, BEGIN, beginArgs, type Confined, limited, POWERLESS } from './level.ts';

const BYTES_PER_MB = 2 ** 20;

const WALLS = [
  ...['--unshare-user', '--unshare-ipc', '--unshare-pid', '--unshare-net', '--unshare-uts', '--unshare-cgroup-try'],
  ...['--die-with-parent', '--new-session', '--as-pid-1', '--cap-drop', 'ALL', '--hostname', 'sandbox', '--clearenv'],
];

/** `disablesUserNamespaces`: whether this bubblewrap knows how. */
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
