/**
 * The embedded policy's weights in PostgreSQL, by version, for workers. A version is a model folder, or an adapter's, without the
 * optimizer's state, in parts that the database can move. It is complete or absent. Bases of adapters are not in it: a worker has its own.
 */
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { TrainyardError } from '../../core/errors.ts';
import { digestsOf, filesDigest } from '../../engines/checkpoint.ts';
import type { WorkQueue } from './queue.ts';

/** Bytes. */
const PART = 4 * 1024 * 1024;

/** Replaces what is there of this version, and removes versions before `oldest`. Returns the digest of the files. */
export async function sendWeights(
  queue: WorkQueue,
  run: string,
  version: number,
  folder: string,
  oldest: number,
): Promise<string> {
  await queue.transaction(`keep the weights of version ${version}`, async (client) => {
    await client.query('DELETE FROM trainyard.weights WHERE run = $1 AND (version < $2 OR version = $3)', [run, oldest, version]);
    for (const file of await readdir(folder)) {
      if (!(await stat(join(folder, file))).isFile()) continue;
      const bytes = await readFile(join(folder, file));
      for (let part = 0; part === 0 || part * PART < bytes.length; part++) {
        const piece = bytes.subarray(part * PART, (part + 1) * PART);
        const sql = 'INSERT INTO trainyard.weights (run, version, file, part, bytes) VALUES ($1, $2, $3, $4, $5)';
        await client.query(sql, [run, version, file, part, piece]);
      }
    }
  });
  return filesDigest(await digestsOf(folder));
}

/** Writes the newest version, at least `least`, into a new folder below `root`. Returns that folder and its version. */
export async function fetchWeights(
  queue: WorkQueue,
  run: string,
  least: number,
  root: string,
): Promise<{ readonly folder: string; readonly version: number; readonly digest: string }> {
  const { folder, version } = await queue.transaction('read weights', async (client) => {
    // All of it as of now: a coordinator may replace them meanwhile.
    await client.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY');
    const newest = 'SELECT max(version) AS version FROM trainyard.weights WHERE run = $1';
    const version = (await client.query<{ version: number | null }>(newest, [run])).rows[0]?.version ?? -1;
    if (version < least) {
      const found = `the newest weights in the store are of version ${version}, and a rollout needs version ${least}`;
      throw new TrainyardError('POLICY_LOST', found, 'is the coordinator running? it keeps them there before it queues rollouts');
    }
    const folder = join(root, `version-${version}`);
    await mkdir(folder, { recursive: true });
    const list = 'SELECT file, part FROM trainyard.weights WHERE run = $1 AND version = $2 ORDER BY file, part';
    for (const { file, part } of (await client.query<{ file: string; part: number }>(list, [run, version])).rows) {
      const sql = 'SELECT bytes FROM trainyard.weights WHERE run = $1 AND version = $2 AND file = $3 AND part = $4';
      const [piece] = (await client.query<{ bytes: Buffer }>(sql, [run, version, file, part])).rows;
      await writeFile(join(folder, basename(file)), piece!.bytes, { flag: part === 0 ? 'w' : 'a' });
    }
    return { folder, version };
  });
  return { folder, version, digest: filesDigest(await digestsOf(folder)) };
}
