/**
 * Group commit: writes that are asked for together share one transaction, and transactions share one wait for the disk.
 *
 * A write is acknowledged only when it is on the disk: after COMMIT and after a sync that began later. The wait is spent off the
 * main thread, and writes that come meanwhile are committed and join the next sync. One that is refused is undone alone, by its
 * savepoint; its neighbours stay. When the transaction fails, every write in it fails and none is kept. When a sync fails, it is not
 * known what is on the disk, and a later sync would not tell: no write is acknowledged from then on. Writes apply in the order
 * they were asked for.
 */

import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { promisify } from 'node:util';

interface PendingWrite {
  readonly apply: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

/** How what was committed gets onto the disk. */
export interface DiskSync {
  later(): Promise<void>;
  now(): void;
}

type Verdict = { readonly kind: 'written' } | { readonly kind: 'refused'; readonly cause: unknown };

export class GroupCommit {
  readonly #database: DatabaseSync;
  readonly #disk: DiskSync;
  #pending: PendingWrite[] = [];
  /** Committed, but not known to be on the disk. */
  #committed: PendingWrite[] = [];
  #syncing: Promise<void> | undefined;
  #syncFailure: { readonly cause: unknown } | undefined;

  constructor(database: DatabaseSync, disk: DiskSync) {
    this.#database = database;
    this.#disk = disk;
  }

  /** `apply` runs inside the transaction and throws to refuse. */
  write(apply: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ apply, resolve, reject });
      // Whatever is asked for while this round of the event loop runs joins the same transaction.
      if (this.#pending.length === 1) setImmediate(() => this.#flush());
    });
  }

  /** Writes what is pending, now. Resolves when nobody waits for the disk any more. */
  async close(): Promise<void> {
    this.#commit();
    const left = this.#committed.splice(0);
    settle(left, () => {
      if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
      this.#disk.now();
    });
    await this.#syncing;
  }

  #flush(): void {
    this.#commit();
    this.#syncing ??= this.#sync().finally(() => {
      this.#syncing = undefined;
    });
  }

  /** One sync after another, for as long as something was committed during the last one. */
  async #sync(): Promise<void> {
    while (this.#committed.length > 0) {
      const batch = this.#committed.splice(0);
      try {
        if (this.#syncFailure !== undefined) throw this.#syncFailure.cause;
        await this.#disk.later();
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

  #transaction(batch: readonly PendingWrite[]): readonly Verdict[] {
    this.#database.exec('BEGIN IMMEDIATE');
    try {
      const verdicts = batch.map((write) => this.#applyOne(write));
      this.#database.exec('COMMIT');
      return verdicts;
    } catch (cause) {
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
      throw cause;
    }
  }

  #applyOne(write: PendingWrite): Verdict {
    this.#database.exec('SAVEPOINT one_write');
    try {
      write.apply();
    } catch (cause) {
      // A full disk may make SQLite roll back the whole transaction by itself: then the neighbours are gone as well.
      if (!this.#database.isTransaction) throw cause;
      this.#database.exec('ROLLBACK TO one_write; RELEASE one_write');
      return { kind: 'refused', cause };
    }
    this.#database.exec('RELEASE one_write');
    return { kind: 'written' };
  }
}

function settle(writes: readonly PendingWrite[], sync: () => void): void {
  if (writes.length === 0) return;
  try {
    sync();
    for (const write of writes) write.resolve();
  } catch (cause) {
    for (const write of writes) write.reject(cause);
  }
}

// ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

// In WAL mode a commit is durable once its frames in the log are; SQLite would sync them inside COMMIT, on the calling thread, where every
// rollout of the process waits for the disk. The log is never locked, so a handle of our own on it disturbs nobody; it stays open as long as
// the database does, for which time SQLite neither removes nor replaces the log.

const sync = promisify(fdatasync);

/** Puts a SQLite file's write-ahead log onto the disk, off the main thread. */
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

  /** Not before the first commit, which creates the log. Windows syncs only what may be written to. */
  #open(): number {
    this.#file ??= openSync(this.#path, 'r+');
    return this.#file;
  }
}
