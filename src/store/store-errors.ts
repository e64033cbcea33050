/**
 * The errors of all stores: a conflicting record, a step that cannot be committed, use after closing, and SQLite's errors. Damage or a
 * foreign format (STORE_FORMAT) needs another file; trouble with the disk (STORE_FAILED) may pass.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { BatchManifest, Exclusion } from '../core/types.ts';

const SQLITE_BUSY = 5;
const SQLITE_CORRUPT = 11;
const SQLITE_FULL = 13;
const SQLITE_NOTADB = 26;

export function conflictError(rolloutId: string): TrainyardError {
  const hint = 'give every execution of a workflow an id of its own; the kept one is unchanged';
  return new TrainyardError('STORE_CONFLICT', `another trajectory is already kept as ${JSON.stringify(rolloutId)}`, hint);
}

export function unmarkable({ rolloutId, turn }: Exclusion, isKept: boolean): TrainyardError {
  const id = JSON.stringify(rolloutId);
  const found = isKept ? `rollout ${id} has no turn ${turn}` : `no rollout ${id} is kept`;
  const hint = 'nothing was written; rollouts are kept when they end, and turns are counted from 0';
  return new TrainyardError('STORE_CONFLICT', `${found}, so it cannot be marked`, hint);
}

export function closedError(what: string): TrainyardError {
  return new TrainyardError('STORE_FAILED', `${what} is closed`, 'open the store again, or close it after its last use');
}

export function formatError(path: string, found: string, hint: string, cause?: unknown): TrainyardError {
  return new TrainyardError('STORE_FORMAT', `${path}: ${found}`, { hint, ...(cause === undefined ? {} : { cause }) });
}

export function damageError(path: string, found: string, cause?: unknown, todo = 'restore the file from a copy'): TrainyardError {
  return formatError(path, found, `${todo}, or start a new run directory; nothing was changed`, cause);
}

/** Wraps what SQLite threw. Typed errors pass through. */
export function sqliteError(path: string, doing: string, cause: unknown): TrainyardError {
  if (cause instanceof TrainyardError) return cause;
  const code = primaryCode(cause);
  const told = `could not ${doing}: ${messageOf(cause)}`;
  if (code === SQLITE_NOTADB)
    return damageError(path, `found a file that is not a SQLite database, expected a Trainyard store`, cause);
  if (code === SQLITE_CORRUPT) return damageError(path, told, cause);
  return new TrainyardError('STORE_FAILED', `${path}: ${told}`, { cause, hint: hintFor(code) });
}

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

// A step can be committed if it follows the last one, and each of its rollouts is in the store and in no other step. Nothing is read here:
// the caller supplies the facts from inside the transaction that writes.

export interface ManifestFacts {
  readonly last: BatchManifest | undefined;
  isKept(rolloutId: string): boolean;
  stepOf(rolloutId: string): number | undefined;
}

/** Ids shown in one message; a batch may hold thousands. */
const SHOWN_IDS = 5;

/** Throws STORE_CONFLICT, naming every problem with the manifest. */
export function checkManifest(manifest: BatchManifest, facts: ManifestFacts): void {
  const found = [...orderProblems(manifest, facts.last), ...memberProblems(manifest, facts)];
  if (found.length === 0) return;
  throw new TrainyardError(
    'STORE_CONFLICT',
    `step ${manifest.step} cannot be committed: ${found.join('; ')}`,
    'nothing was written; read manifests() and continue after the last one, with rollouts that are kept and not yet trained',
  );
}

function orderProblems(manifest: BatchManifest, last: BatchManifest | undefined): readonly string[] {
  const problems: string[] = [];
  const step = (last?.step ?? 0) + 1;
  if (manifest.step !== step) problems.push(`found step ${manifest.step}, expected ${step}`);
  if (last !== undefined && manifest.policyVersion !== last.policyVersion + 1) {
    problems.push(`found policy version ${manifest.policyVersion}, expected ${last.policyVersion + 1}`);
  }
  return problems;
}

function memberProblems({ rolloutIds, excluded = [] }: BatchManifest, facts: ManifestFacts): readonly string[] {
  const unique = new Set<string>();
  const repeated = rolloutIds.filter((id) => unique.size === unique.add(id).size);
  const leftOut = new Set(excluded.filter(({ turn }) => turn === undefined).map(({ rolloutId }) => rolloutId));
  const trained = (id: string): string => ` (step ${facts.stepOf(id)})`;
  const isTrained = (id: string): boolean => facts.stepOf(id) !== undefined;
  return [
    ...listed('listed twice', repeated),
    ...listed(
      'not in the store',
      [...unique].filter((id) => !isTrained(id) && !facts.isKept(id)),
    ),
    ...listed('already trained', [...unique].filter(isTrained), trained),
    ...listed(
      'trained and left out at once',
      [...leftOut].filter((id) => unique.has(id)),
    ),
  ];
}

function listed(problem: string, ids: readonly string[], more: (id: string) => string = () => ''): readonly string[] {
  if (ids.length === 0) return [];
  const rest = ids.length > SHOWN_IDS ? ` and ${ids.length - SHOWN_IDS} more` : '';
  return [
    `${problem}: ${ids
      .slice(0, SHOWN_IDS)
      .map((id) => `${JSON.stringify(id)}${more(id)}`)
      .join(', ')}${rest}`,
  ];
}
