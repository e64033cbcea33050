/** The thread that decodes a Parquet file: `workerData.path` → groups of rows, each after the first when it is asked for. */
import { once } from 'node:events';
import { parentPort, workerData } from 'node:worker_threads';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { openDataFile } from './data-file.ts';
import { decodeParquet } from './parquet-decode.ts';
import type { RawRow } from './rows.ts';

export type FromThread =
  | { readonly kind: 'rows'; readonly rows: readonly RawRow[] }
  | { readonly kind: 'end' }
  | { readonly kind: 'failed'; readonly message: string; readonly hint?: string | undefined };

const tell = (said: FromThread): void => parentPort?.postMessage(said);

try {
  await using file = await openDataFile((workerData as { readonly path: string }).path);
  for await (const rows of decodeParquet(file)) {
    tell({ kind: 'rows', rows });
    if (parentPort !== null) await once(parentPort, 'message');
  }
  tell({ kind: 'end' });
} catch (thrown) {
  tell({ kind: 'failed', message: messageOf(thrown), hint: thrown instanceof TrainyardError ? thrown.hint : undefined });
}
