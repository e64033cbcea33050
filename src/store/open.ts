/**
 * Opens a store by where it is: a SQLite file by its path, or a run in PostgreSQL by a `postgres://` or `postgresql://` URL. The driver of
 * PostgreSQL is loaded only for such a URL.
 */
import type { Store } from '../core/contracts.ts';
import { TrainyardError, tried } from '../core/errors.ts';
import { openSqliteStore } from './sqlite.ts';

export function isStoreUrl(where: string): boolean {
  return /^postgres(ql)?:\/\//i.test(where);
}

/** `isKnown`: a database must have the run already. `run` names the run within a database, and the owner of a file; a database needs it. */
export async function openStore(where: string, run?: string, options?: { readonly isKnown?: boolean }): Promise<Store> {
  if (!isStoreUrl(where)) return await openSqliteStore(where, run);
  if (run === undefined) {
    const hint = 'one database holds many runs: say which one';
    throw new TrainyardError('USAGE', `${withoutPassword(where)}: found no name of a run`, { hint });
  }
  const { openPostgresStore } = await import('./postgres.ts');
  return await openPostgresStore(where, run, options);
}

/** What may be shown and written down. Throws USAGE, without the URL, for what is none. */
export function withoutPassword(url: string): string {
  const parsed = URL.parse(url);
  // Of a password with a slash, the rest would be the database's name.
  const isWhole =
    parsed !== null && !parsed.pathname.includes('@') && tried(() => decodeURIComponent(parsed.password)) !== undefined;
  if (!isWhole || !isStoreUrl(url)) {
    const hint = 'write postgres://user:password@host:5432/database, with special characters percent-encoded';
    throw new TrainyardError('USAGE', 'the URL of the store is malformed', { hint });
  }
  parsed.password = '';
  for (const name of [...parsed.searchParams.keys()]) if (/pass/i.test(name)) parsed.searchParams.delete(name);
  return parsed.href;
}

export const STORE_URL = 'expected the URL of a PostgreSQL database, postgres://user@host:5432/database';

export function isDatabaseUrl(url: string): boolean {
  return (URL.parse(tried(() => withoutPassword(url)) ?? '')?.pathname.length ?? 0) > 1;
}

/** Throws USAGE, without the URL: it may hold a password. */
export function checkStoreUrl(url: string | undefined): void {
  if (url !== undefined && !isDatabaseUrl(url)) throw new TrainyardError('USAGE', `store: ${STORE_URL}`);
}
