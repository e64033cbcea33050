/**
 * Group commit: writes that are asked for together share one transaction, hence one wait for the disk.
 *
 * A write is acknowledged only after COMMIT. One that is refused is undone alone, by its savepoint; its neighbours stay. When
 * the transaction itself fails, every write in it fails and none is kept. Writes apply in the order they were asked for.
 */
import type { DatabaseSync } from 'node:sqlite';

interface PendingWrite {
  readonly apply: () => void;
  readonly resolve: () => void;
  readonly reject: (cause: unknown) => void;
}

type Verdict = { readonly kind: 'written' } | { readonly kind: 'refused'; readonly cause: unknown };

export class GroupCommit {
  readonly #database: DatabaseSync;
  #pending: PendingWrite[] = [];

  constructor(database: DatabaseSync) {
    this.#database = database;
  }

  /** `apply` runs inside the transaction and throws to refuse. */
  write(apply: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ apply, resolve, reject });
      // Whatever is asked for while this round of the event loop runs joins the same transaction.
      if (this.#pending.length === 1) setImmediate(() => this.flush());
    });
  }

  /** Writes what is pending, now. */
  flush(): void {
    const batch = this.#pending;
    this.#pending = [];
    if (batch.length === 0) return;
    let verdicts: readonly Verdict[];
    try {
      verdicts = this.#transaction(batch);
    } catch (cause) {
      for (const write of batch) write.reject(cause);
      return;
    }
    batch.forEach((write, position) => {
      const verdict = verdicts[position]!;
      if (verdict.kind === 'written') write.resolve();
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
