/**
 * Opens a store by where it is: a SQLite file by its path, or a run in PostgreSQL by a `postgres://` or `postgresql://` URL. The driver of
 * PostgreSQL is loaded only for such a URL.
 */
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { openSqliteStore } from './sqlite.ts';
import { isStoreUrl, withoutPassword } from './url.ts';

/** `isKnown`: a database must have the run already. `run` names the run within a database, and the owner of a file; a database needs it. */
export async function openStore(where: string, run?: string, options?: { readonly isKnown?: boolean }): Promise<Store> {
  if (!isStoreUrl(where)) return await openSqliteStore(where, run);
  if (run === undefined) {
    const hint = 'one database holds many runs: say which one';
    throw new TrainyardError('USAGE', `${withoutPassword(where)}: found no name of a run`, hint);
  }
  const { openPostgresStore } = await import('./postgres.ts');
  return await openPostgresStore(where, run, options);
}
