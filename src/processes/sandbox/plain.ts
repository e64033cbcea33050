/**
 * No confinement: limits of time, memory, processes and file sizes where the system has `prlimit`, an empty environment, and a temporary
 * directory to work in. The program can read and write what its user can, and reach the network. For `best`, where nothing better is there.
 */
import { rmSync } from 'node:fs';
import { temporaryFolder } from '../temporary-folder.ts';
import { type Ask, BEGIN, beginArgs, type Confined, limited } from './level.ts';

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
