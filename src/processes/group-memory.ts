/**
 * How much memory process groups hold, watched at intervals, so that one that takes too much can be killed as a whole.
 *
 * Resident memory, added up over the group: pages that processes share count once for each. A group that takes more than its limit
 * for less than an interval is not noticed, and what is in swap does not count; the operating system has the last word.
 */
import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const INTERVAL_MS = 200;
const BYTES_PER_KB = 1024;

interface Watch {
  readonly group: number;
  readonly limit: number;
  readonly over: (resident: number) => void;
}

const watches = new Set<Watch>();
let watching = false;

/** Calls `over` once, with bytes, when the group holds more than `limit` bytes. Gives what ends the watch. */
export function watchMemory(group: number, limit: number, over: (resident: number) => void): () => void {
  const watch: Watch = { group, limit, over };
  watches.add(watch);
  if (!watching) void look();
  return () => void watches.delete(watch);
}

/** One look serves all groups that are watched. */
async function look(): Promise<void> {
  watching = true;
  while (watches.size > 0) {
    const resident = await residentByGroup();
    for (const watch of watches) {
      const bytes = resident.get(watch.group) ?? 0;
      if (bytes <= watch.limit) continue;
      watches.delete(watch);
      watch.over(bytes);
    }
    await new Promise<void>((resolve) => void setTimeout(resolve, INTERVAL_MS).unref());
  }
  watching = false;
}

/** Bytes by group. What cannot be found out is not in it. */
async function residentByGroup(): Promise<ReadonlyMap<number, number>> {
  const sums = new Map<number, number>();
  const rows = process.platform === 'linux' ? await fromProc() : await fromPs();
  for (const [group, bytes] of rows) sums.set(group, (sums.get(group) ?? 0) + bytes);
  return sums;
}

type Row = readonly [group: number, bytes: number];

async function fromProc(): Promise<readonly Row[]> {
  const wanted = new Set([...watches].map(({ group }) => group));
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name));
  const rows = await Promise.all(pids.map((pid) => rowOf(pid, wanted)));
  return rows.filter((row) => row !== undefined);
}

/** Processes of other groups cost one file, not two. */
async function rowOf(pid: string, wanted: ReadonlySet<number>): Promise<Row | undefined> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
    // The name in brackets may hold anything; behind it: state, parent, group.
    const group = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[2]);
    if (wanted.size > 0 && !wanted.has(group)) return undefined;
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    return [group, Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * BYTES_PER_KB];
  } catch {
    return undefined;
  }
}

async function fromPs(): Promise<readonly Row[]> {
  const listed = await promisify(execFile)('ps', ['-A', '-o', 'pgid=,rss=']).catch(() => ({ stdout: '' }));
  return listed.stdout
    .trim()
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .map(([group = 0, kilobytes = 0]) => [group, kilobytes * BYTES_PER_KB]);
}
