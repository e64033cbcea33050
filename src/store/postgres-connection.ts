/**
 * Connections to PostgreSQL that outlast a restart of the server. What fails because the connection was lost, or the server is starting or
 * stopping, is tried again for a bounded time; its caller makes sure that doing it twice is harmless. Every wait has a limit. No error holds
 * the password.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Pool, PoolClient } from 'pg';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { DecodeError } from './records.ts';
import { damageError } from './store-errors.ts';
import { withoutPassword } from './url.ts';

const CONNECT_MS = 10_000;
const STATEMENT_MS = 60_000;
/** Others may wait for what a transaction holds: the server ends it soon where the client is gone or cut off. */
const IDLE_MS = 5_000;
const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/** Besides the one that writes. */
const READERS = 4;
const INT8 = 20;

/** Lost connections, and a server that has too many, is starting or was told to stop. */
const PASSING =
  /^(ECONN(REFUSED|RESET|ABORTED)|EPIPE|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|EHOSTUNREACH|08...|57P0.|53300|25P03|40001|40P01)$/;
const PASSING_TEXT =
  /connection terminated|connection timeout|timeout expired|timeout exceeded|query read timeout|client has encountered a connection error/i;

const HINTS: Readonly<Record<string, string>> = {
  '28P01': 'check user and password: they come from the URL of --store, else from PGPASSWORD or ~/.pgpass',
  '28000': 'check the user, and whether the server lets it connect from here (pg_hba.conf)',
  '3D000': 'create the database first: createdb <name>',
  '42501':
    'a coordinator’s user must own the schema "trainyard", or be allowed to create it: GRANT CREATE ON DATABASE … TO …; a worker’s role ' +
    'must be called trainyard_worker, and have existed when the coordinator started, which grants it its rights: start that again',
  '53100': 'free some disk space on the server and try again; what was acknowledged is kept',
  '57014': 'a statement took longer than a minute; look for locks and load on the server, then try again',
  '25006': 'this server only reads; give the URL of the primary',
  ENOSPC: 'free some disk space here and try again; what was acknowledged is kept',
  ENOTFOUND: 'check the host name in the URL of --store',
};

export class Connections {
  /** For messages. */
  readonly shown: string;
  readonly #pool: Pool;
  readonly #secrets: readonly string[];

  constructor(shown: string, pool: Pool, secrets: readonly string[]) {
    this.shown = shown;
    this.#pool = pool;
    this.#secrets = secrets;
  }

  static async to(url: string): Promise<Connections> {
    const shown = withoutPassword(url);
    const { default: pg } = await import('pg');
    const pool = new pg.Pool({
      connectionString: url,
      max: READERS + 1,
      allowExitOnIdle: true,
      keepAlive: true,
      connectionTimeoutMillis: CONNECT_MS,
      statement_timeout: STATEMENT_MS,
      idle_in_transaction_session_timeout: IDLE_MS,
      query_timeout: STATEMENT_MS + CONNECT_MS,
      application_name: 'trainyard',
      // Where anybody may create functions, as in `public` of databases before PostgreSQL 15, nothing of ours shall call them.
      onConnect: (client) => client.query('SET search_path TO pg_catalog'),
      // Counts and places of ours are far below 2^53.
      types: { getTypeParser: (type, format) => (type === INT8 ? Number : pg.types.getTypeParser(type, format as 'text')) },
    });
    // Without these, a connection that is lost while nothing uses it would end the process. Whoever uses it next is told.
    pool.on('error', () => {});
    pool.on('connect', (client) => client.on('error', () => {}));
    const { password, searchParams } = new URL(url);
    const secrets = [password, decodeURIComponent(password), searchParams.get('password') ?? ''];
    return new Connections(
      shown,
      pool,
      secrets.filter((secret) => secret !== ''),
    );
  }

  /**
   * Runs `attempt` with a connection, again and again if it is lost: for so many milliseconds, or until the signal. `isAgain`: an earlier
   * attempt may have committed.
   */
  async use<T>(
    doing: string,
    patience: number | AbortSignal,
    attempt: (client: PoolClient, isAgain: boolean) => Promise<T>,
  ): Promise<T> {
    const until = typeof patience === 'number' ? performance.now() + patience : Infinity;
    const isStopped = (): boolean => typeof patience !== 'number' && patience.aborted;
    for (let wait = FIRST_WAIT_MS, isAgain = false; ; wait = Math.min(2 * wait, LONGEST_WAIT_MS), isAgain = true) {
      try {
        return await this.#once((client) => attempt(client, isAgain));
      } catch (cause) {
        const pause = wait * (0.5 + Math.random());
        if (!isPassing(cause) || isStopped() || performance.now() + pause > until) throw this.#errorOf(doing, cause);
        await sleep(pause);
      }
    }
  }

  async close(): Promise<void> {
    const ended = this.#pool.end().catch(() => {});
    await Promise.race([ended, sleep(CONNECT_MS, undefined, { ref: false })]);
  }

  async #once<T>(fn: (client: PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect();
    try {
      const result = await fn(client);
      client.release();
      return result;
    } catch (thrown) {
      // Not used again: it may be in a transaction, or dead.
      client.release(true);
      throw thrown;
    }
  }

  #errorOf(doing: string, cause: unknown): TrainyardError {
    if (cause instanceof TrainyardError) return cause;
    if (cause instanceof DecodeError) {
      return damageError(this.shown, `could not ${doing}: ${cause.message}`, cause, 'restore the database from a backup');
    }
    // The driver has its own words for a password that it needs and was not given.
    const [code, why] = /client password must be a string/.test(messageOf(cause))
      ? ['28P01', 'the server asks for a password, found none']
      : [codeOf(cause), messageOf(cause) || codeOf(cause)];
    let told = `${this.shown}: could not ${doing}: ${why}`;
    for (const secret of this.#secrets) told = told.replaceAll(secret, '***');
    const hint =
      HINTS[code] ?? 'check that PostgreSQL runs there and can be reached, then try again; what was acknowledged is kept';
    return new TrainyardError('STORE_FAILED', told, hint);
  }
}

export async function inTransaction<T>(client: PoolClient, fn: () => Promise<T>): Promise<T> {
  await client.query('BEGIN');
  const result = await fn();
  await client.query('COMMIT');
  return result;
}

export const BYTEA = 17;
export const TEXT = 25;

/** PostgreSQL's binary form of an array. The driver would send bytes in an array as hexadecimal text. */
export function binaryArray<T>(type: number, items: readonly T[], bytesOf: (item: T) => Uint8Array): Buffer {
  const int32 = (...values: readonly number[]): Buffer => {
    const bytes = Buffer.allocUnsafe(4 * values.length);
    for (const [place, value] of values.entries()) bytes.writeInt32BE(value, 4 * place);
    return bytes;
  };
  const dimensions = items.length === 0 ? [0, 0, type] : [1, 0, type, items.length, 1];
  const pieces = items.map(bytesOf).flatMap((bytes) => [int32(bytes.byteLength), bytes]);
  return Buffer.concat([int32(...dimensions), ...pieces]);
}

function isPassing(cause: unknown): boolean {
  return !(cause instanceof TrainyardError) && (PASSING.test(codeOf(cause)) || PASSING_TEXT.test(messageOf(cause)));
}

function codeOf(cause: unknown): string {
  return typeof cause === 'object' && cause !== null && 'code' in cause ? String(cause.code) : '';
}
