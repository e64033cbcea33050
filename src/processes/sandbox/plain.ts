/**
 * No confinement: limits of time, memory, processes and file sizes where the system has `prlimit`, an empty environment, and a temporary
 * directory to work in. The program can read and write what its user can, and reach the network. For `best`, where nothing better is there.
 */
import { type Ask, BEGIN, beginArgs, type Confined, limited } from './level.ts';

const SCRIPT = `
set -e
work=$(mktemp -d)
cd "$work"
launch() {
  "$@"
  code=$?
  cd / && rm -rf "$work"
  return $code
}
`;

export function byNothing(ask: Ask): Confined {
  // Not the number of processes: that would count all of the user's.
  const limits = limited(ask).replace(/--nproc=\S+ /, '');
  const prefix = process.platform === 'linux' ? limits : '';
  return { command: 'sh', args: ['-c', `${SCRIPT.replace('"$@"\n', `${prefix} "$@"\n`)}${BEGIN}`, 'sh', ...beginArgs(ask)] };
}
