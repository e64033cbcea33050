import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { databaseFor, needsPostgres } from '../../../test/postgres/server.ts';
import { openPostgresStore } from '../../store/postgres.ts';
import { WorkQueue } from './queue.ts';
import { fetchWeights, sendWeights } from './sent-weights.ts';

it(
  'weights that are replaced while a worker reads them arrive as they were or as they are, never mixed',
  needsPostgres,
  async () => {
    const root = await mkdtemp(join(tmpdir(), 'trainyard-sent-'));
    onTestFinished(() => rm(root, { recursive: true, force: true }));
    await using database = await databaseFor();
    await (await openPostgresStore(database.url, 'any'))[Symbol.asyncDispose]();
    await using queue = await WorkQueue.create(database.url);
    const folder = await mkdtemp(join(root, 'from-'));
    const send = async (byte: number): Promise<void> => {
      await writeFile(join(folder, 'model.safetensors'), Buffer.alloc(12 * 1024 * 1024, byte));
      await sendWeights(queue, 'replaced', 1, folder, 0);
    };
    await send(0);
    let isDone = false;
    const sending = (async () => {
      for (let byte = 1; !isDone; byte++) await send(byte % 256);
    })();
    for (let time = 0; time < 5; time++) {
      const fetched = await fetchWeights(queue, 'replaced', 1, await mkdtemp(join(root, 'to-')));
      const bytes = await readFile(join(fetched.folder, 'model.safetensors'));
      expect(bytes.equals(Buffer.alloc(12 * 1024 * 1024, bytes[0]))).toBe(true);
    }
    isDone = true;
    await sending;
  },
);
