/**
 * Parquet files, decoded in a thread of their own: what a damaged or hostile file does to the decoder, an endless loop or gigabytes of
 * values, ends that thread and is said of the file. A group of rows is decoded when the one before has been read.
 */
import { Worker } from 'node:worker_threads';
import { messageOf } from '../core/errors.ts';
import { siblingScript } from '../processes/protocol.ts';
import { broken } from './parquet-check.ts';
import type { FromThread } from './parquet-thread.ts';
import { invalid, type RawRow } from './rows.ts';

/** For one group of rows, which is 2 GiB at most. */
const DEADLINE_MS = 120_000;
const MAX_HEAP_MB = 3072;

export async function* readParquet(path: string, deadlineMs = DEADLINE_MS): AsyncGenerator<RawRow> {
  const thread = new Worker(siblingScript(import.meta.url, 'parquet-thread'), {
    workerData: { path },
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB },
  });
  // What ends a thread while nobody waits for it has been said already, or will be.
  thread.on('error', () => {});
  try {
    for (;;) {
      const said = await nextOf(thread, path, deadlineMs);
      if (said.kind === 'end') return;
      if (said.kind === 'failed') throw invalid(said.message, said.hint === undefined ? {} : { hint: said.hint });
      yield* said.rows;
      thread.postMessage('next');
    }
  } finally {
    await thread.terminate();
  }
}

function nextOf(thread: Worker, path: string, deadlineMs: number): Promise<FromThread> {
  const { promise, resolve, reject } = Promise.withResolvers<FromThread>();
  const timer = setTimeout(() => reject(broken(path, `a group of rows was not decoded in ${deadlineMs} ms`)), deadlineMs);
  const onError = (thrown: unknown): void => reject(broken(path, messageOf(thrown).slice(0, 200), thrown));
  const onExit = (code: number): void => reject(broken(path, `its decoding ended with code ${code}`));
  thread.once('message', resolve).once('error', onError).once('exit', onExit);
  return promise.finally(() => {
    clearTimeout(timer);
    thread.off('message', resolve).off('error', onError).off('exit', onExit);
  });
}
