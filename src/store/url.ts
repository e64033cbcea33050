/** URLs of PostgreSQL databases: which texts are one, and what of one may be shown. Opens none, and loads no driver. */
import { TrainyardError, tried } from '../core/errors.ts';

export function isStoreUrl(where: string): boolean {
  return /^postgres(ql)?:\/\//i.test(where);
}

/** What may be shown and written down. Throws USAGE, without the URL, for what is none. */
export function withoutPassword(url: string): string {
  const parsed = URL.parse(url);
  // Of a password with a slash, the rest would be the database's name.
  const isWhole =
    parsed !== null && !parsed.pathname.includes('@') && tried(() => decodeURIComponent(parsed.password)) !== undefined;
  if (!isWhole || !isStoreUrl(url)) {
    const hint = 'write postgres://user:password@host:5432/database, with special characters percent-encoded';
    throw new TrainyardError('USAGE', 'the URL of the store is malformed', hint);
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
