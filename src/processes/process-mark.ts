/**
 * A mark in the environment of a process of a pool, which everything that it starts inherits: the last means, where there is neither a
 * namespace nor a control group, to find what left its process group.
 *
 * Linux only. What drops its environment on purpose is not found.
 */
import { randomUUID } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';

export const MARK = 'TRAINYARD_POOL';

export function newMark(): string {
  return randomUUID();
}

/** Numbers of the processes that carry the mark, as far as this user may look. */
export async function marked(mark: string): Promise<readonly number[]> {
  if (process.platform !== 'linux') return [];
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  const entry = `${MARK}=${mark}`;
  const carriers = await Promise.all(
    pids.map(async (pid) => {
      const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
      return environment.split('\0').includes(entry);
    }),
  );
  return pids.filter((_, index) => carriers[index]).map(Number);
}

export async function killMarked(mark: string): Promise<void> {
  for (const pid of await marked(mark)) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // Ended meanwhile.
    }
  }
}
