/**
 * Puts a SQLite file's write-ahead log onto the disk, off the main thread.
 *
 * In WAL mode a commit is durable once its frames in the log are; SQLite would sync them inside COMMIT, on the calling thread, where
 * every rollout of the process waits for the disk. The log is never locked, so a handle of our own on it disturbs nobody; it stays
 * open as long as the database does, for which time SQLite neither removes nor replaces the log.
 */
import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs';
import { promisify } from 'node:util';
import type { DiskSync } from './group-commit.ts';

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

  /** Not before the first commit, which creates the log. Windows syncs only what may be written to. */
  #open(): number {
    this.#file ??= openSync(this.#path, 'r+');
    return this.#file;
  }
}
