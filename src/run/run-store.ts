/**
 * Where a run's rollouts are: in store.sqlite of its directory, or in a PostgreSQL database, under the run's id. run.json says which (store.json
 * where there is no run), never with a password. A URL that is given wins: it may have the password, or another host. With one, a run can be
 * named by its id alone, wherever its directory is.
 */
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import { TrainyardError, tried } from '../core/errors.ts';
import { writeWhole } from '../store/files.ts';
import { openStore } from '../store/open.ts';
import { checkStoreUrl, withoutPassword } from '../store/url.ts';
import { type RunDirectory, readRunFile, refuseSft } from './directory.ts';

const FILE = 'store.sqlite';
/** In the directory of a server. */
const SERVED = 'store.json';

interface KeptStore {
  /** Without its password. Undefined for a file. */
  readonly url?: string | undefined;
  /** Of the run within a database. */
  readonly id?: string | undefined;
}

/** What a directory says about its store. */
export function keptStore(path: string): KeptStore {
  if (existsSync(join(path, SERVED))) {
    const served = tried(
      () => JSON.parse(readFileSync(join(path, SERVED), 'utf8')) as { readonly store: string; readonly id: string },
    );
    if (served !== undefined) return { url: served.store, id: served.id };
    const hint = 'restore it from a copy: it says which database has the rollouts, and under which id';
    throw new TrainyardError('STORE_FORMAT', `${join(path, SERVED)} is no JSON`, hint);
  }
  if (!existsSync(join(path, 'run.json'))) return {};
  const { id, settings } = readRunFile(path) as { readonly id?: string; readonly settings?: { readonly store?: string } };
  return { url: settings?.store, id };
}

/** Of a run that begins or goes on. One with events has a store: if the database does not know it, that is another database. */
export async function openRunStore({ storePath, id }: RunDirectory, url: string | undefined): Promise<Store> {
  if (url === undefined) return await openStore(storePath, id);
  const hasBegun = (statSync(join(dirname(storePath), 'events.jsonl'), { throwIfNoEntry: false })?.size ?? 0) > 0;
  return await openStore(url, id, { isKnown: hasBegun });
}

/** `path`: a run directory or a store file; with `store`, also the id of a run. `id`: refuses the file of another run. */
export async function openStoreOf(
  path: string,
  { store: given, id }: { readonly store?: string | undefined; readonly id?: string | undefined } = {},
): Promise<Store> {
  refuseSft(path);
  checkStoreUrl(given);
  const kept = keptStore(path);
  if (given !== undefined && kept.url === undefined && existsSync(path)) {
    throw new TrainyardError('USAGE', `store: ${path} has its rollouts in a file, not in a database`, 'leave --store out');
  }
  const url = given ?? kept.url;
  if (url !== undefined) return await openStore(url, kept.id ?? path, { isKnown: true });
  const file = existsSync(path) && statSync(path).isDirectory() ? join(path, FILE) : path;
  const hint = 'give the directory of a run, or a store file; or the id of a run in the database of --store';
  if (!existsSync(file)) throw new TrainyardError('FILE_NOT_FOUND', `${file} does not exist`, hint);
  return await openStore(file, id);
}

/** For what needs more than rollouts. Throws FILE_NOT_FOUND. */
export function requireDirectory(path: string, store: string | undefined): void {
  if (store === undefined || existsSync(path)) return;
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    `${path} is no directory here, and a database has only the rollouts of a run`,
    'settings and checkpoints are in the directory of the run: do this where it is; trainyard show needs only the database',
  );
}

/** Of a server, which goes on where it kept rollouts before. */
export async function openServedStore(folder: string, given: string | undefined): Promise<Store> {
  const kept = keptStore(folder);
  const url = given ?? kept.url;
  if (url === undefined) return await openStore(join(folder, FILE));
  if (existsSync(join(folder, FILE))) {
    const hint = 'leave --store out, or give --run another directory';
    throw new TrainyardError('USAGE', `store: ${folder} has its rollouts in a file already`, hint);
  }
  const { id = randomUUID() } = kept;
  const store = await openStore(url, id, { isKnown: kept.id !== undefined });
  await writeWhole(join(folder, SERVED), `${JSON.stringify({ store: withoutPassword(url), id })}\n`);
  return store;
}
