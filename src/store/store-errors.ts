/**
 * The ways a store says no: another record under a kept id, use after closing, and whatever SQLite reports.
 *
 * Damage (or another file format) is told apart from trouble with the disk: the first needs another file, the second may pass.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Exclusion } from '../core/types.ts';

/** Primary result codes of SQLite. */
const SQLITE_BUSY = 5;
const SQLITE_CORRUPT = 11;
const SQLITE_FULL = 13;
const SQLITE_NOTADB = 26;

export function conflictError(rolloutId: string): TrainyardError {
  return new TrainyardError('STORE_CONFLICT', `another trajectory is already kept as ${JSON.stringify(rolloutId)}`, {
    hint: 'give every execution of a workflow an id of its own; the kept one is unchanged',
  });
}

export function unmarkable({ rolloutId, turn }: Exclusion, isKept: boolean): TrainyardError {
  const found = isKept
    ? `rollout ${JSON.stringify(rolloutId)} has no turn ${turn}`
    : `no rollout ${JSON.stringify(rolloutId)} is kept`;
  return new TrainyardError('STORE_CONFLICT', `${found}, so it cannot be marked`, {
    hint: 'nothing was written; rollouts are kept when they end, and turns are counted from 0',
  });
}

export function closedError(what: string): TrainyardError {
  return new TrainyardError('STORE_FAILED', `${what} is closed`, {
    hint: 'open the store again, or close it after its last use',
  });
}

export function formatError(path: string, found: string, hint: string, cause?: unknown): TrainyardError {
  return new TrainyardError('STORE_FORMAT', `${path}: ${found}`, { hint, ...(cause === undefined ? {} : { cause }) });
}

export function damageError(path: string, found: string, cause?: unknown): TrainyardError {
  return formatError(path, found, 'restore the file from a copy, or start a new run directory; nothing was changed', cause);
}

/** What SQLite threw, as an error of this store. Typed errors pass through. */
export function sqliteError(path: string, doing: string, cause: unknown): TrainyardError {
  if (cause instanceof TrainyardError) return cause;
  const code = primaryCode(cause);
  const told = `could not ${doing}: ${messageOf(cause)}`;
  if (code === SQLITE_NOTADB)
    return damageError(path, `found a file that is not a SQLite database, expected a Trainyard store`, cause);
  if (code === SQLITE_CORRUPT) return damageError(path, told, cause);
  return new TrainyardError('STORE_FAILED', `${path}: ${told}`, { cause, hint: hintFor(code) });
}

/** Whether SQLite gave up because another connection holds the file. */
export function isBusy(cause: unknown): boolean {
  return primaryCode(cause) === SQLITE_BUSY;
}

function primaryCode(cause: unknown): number | undefined {
  if (typeof cause !== 'object' || cause === null || !('errcode' in cause) || typeof cause.errcode !== 'number') return undefined;
  return cause.errcode & 0xff;
}

function hintFor(code: number | undefined): string {
  if (code === SQLITE_BUSY) return 'another process holds the file; stop it or try again';
  if (code === SQLITE_FULL) return 'free some disk space and try again; what was acknowledged is kept';
  return 'check that the folder exists, is writable and has free space, then try again; what was acknowledged is kept';
}
