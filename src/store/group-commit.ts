/**
 * Group commit: concurrent writes share one transaction, and transactions share one disk sync. Writes apply in call order.
 *
 * A write is acknowledged only when it is on disk: after COMMIT and a sync that started later. The sync runs off the main thread; writes
 * that arrive meanwhile are committed and join the next sync. A refused write is rolled back alone. If the transaction fails, every write
 * in it fails. If a sync fails, the state of the disk is unknown and a later sync would not reveal it, so no write is acknowledged from
 * then on. Writes of a batch in which one is refused are applied twice.
 */

import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { promisify } from 'node:util';

interface PendingWrite {
  readonly apply: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

export interface DiskSync {
  later(): Promise<void>;
  now(): void;
}

type Verdict = { readonly kind: 'written' } | { readonly kind: 'refused'; readonly cause: unknown };

export class GroupCommit {
  readonly #database: DatabaseSync;
  readonly #disk: DiskSync | undefined;
  #pending: PendingWrite[] = [];
  /** Committed, but not known to be on disk. */
  #committed: PendingWrite[] = [];
  #syncing: Promise<void> | undefined;
  #syncFailure: { readonly cause: unknown } | undefined;

  /** Without `disk`, a commit is all there is to wait for. */
  constructor(database: DatabaseSync, disk?: DiskSync) {
    this.#database = database;
    this.#disk = disk;
  }

  /** `apply` runs inside the transaction and throws to refuse the write. */
  write(apply: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ apply, resolve, reject });
      // Writes requested during this turn of the event loop join the same transaction.
      if (this.#pending.length === 1) setImmediate(() => this.#flush());
    });
  }

  /** Commits pending writes now. Resolves when no write waits for the disk. */
  async close(): Promise<void> {
    this.#commit();
    const left = this.#committed.splice(0);
    settle(left, () => {
      if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
      this.#disk?.now();
    });
    await this.#syncing;
  }

  #flush(): void {
    this.#commit();
    this.#syncing ??= this.#sync().finally(() => {
      this.#syncing = undefined;
    });
  }

  /** Syncs repeatedly while writes were committed during the last sync. */
  async #sync(): Promise<void> {
    while (this.#committed.length > 0) {
      const batch = this.#committed.splice(0);
      try {
        if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
        await this.#disk?.later();
        for (const write of batch) write.resolve();
      } catch (cause) {
        this.#syncFailure = { cause };
        for (const write of batch) write.reject(cause);
      }
    }
  }

  #commit(): void {
    const batch = this.#pending.splice(0);
    if (batch.length === 0) return;
    if (this.#syncFailure !== undefined) {
      for (const write of batch) write.reject(this.#syncFailure.cause);
      return;
    }
    let verdicts: readonly Verdict[];
    try {
      verdicts = this.#transaction(batch);
    } catch (cause) {
      for (const write of batch) write.reject(cause);
      return;
    }
    batch.forEach((write, position) => {
      const verdict = verdicts[position]!;
      if (verdict.kind === 'written') this.#committed.push(write);
      else write.reject(verdict.cause);
    });
  }

  /** Refusals are rare, and a savepoint copies each page that is touched after it: only a batch that had one is written again with them. */
  #transaction(batch: readonly PendingWrite[], isAgain = false): readonly Verdict[] {
    this.#database.exec('BEGIN IMMEDIATE');
    try {
      const verdicts = batch.map((write) => this.#applyOne(write, isAgain));
      this.#database.exec('COMMIT');
      return verdicts;
    } catch (cause) {
      const isRefused = this.#database.isTransaction && cause instanceof Refused;
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
      if (isRefused) return this.#transaction(batch, true);
      throw cause;
    }
  }

  #applyOne(write: PendingWrite, isAgain: boolean): Verdict {
    if (isAgain) this.#database.exec('SAVEPOINT one_write');
    try {
      write.apply();
    } catch (cause) {
      // On a full disk SQLite may roll back the whole transaction, including the other writes.
      if (!this.#database.isTransaction) throw cause;
      if (!isAgain) throw new Refused();
      this.#database.exec('ROLLBACK TO one_write; RELEASE one_write');
      return { kind: 'refused', cause };
    }
    if (isAgain) this.#database.exec('RELEASE one_write');
    return { kind: 'written' };
  }
}

class Refused extends Error {}

function settle(writes: readonly PendingWrite[], sync: () => void): void {
  if (writes.length === 0) return;
  try {
    sync();
    for (const write of writes) write.resolve();
  } catch (cause) {
    for (const write of writes) write.reject(cause);
  }
}

// In WAL mode a commit is durable once its frames in the log are synced. SQLite would sync inside COMMIT, on the calling thread, and stall
// every rollout of the process. The log is never locked, so our own handle on it is harmless. It stays open as long as the database does,
// and SQLite neither removes nor replaces the log in that time.

const sync = promisify(fdatasync);

export class LogSync implements DiskSync {
  readonly #path: string;
  #file: number | undefined;

  constructor(databasePath: string) {
    this.#path = `${databasePath}-wal`;
  }

  async later(): Promise<void> {
    await sync(this.#open());
  }

  now(): void {
    fdatasyncSync(this.#open());
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  /** Opens lazily, because the first commit creates the log. Writable, because Windows requires that for a sync. */
  #open(): number {
    this.#file ??= openSync(this.#path, 'r+');
    return this.#file;
  }
}
