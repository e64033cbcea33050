/**
 * One run, one directory: `run.json` (settings), `store.sqlite`, `checkpoints/`, `events.jsonl`, `lock`.
 *
 * The lock is held by the operating system for as long as the process lives, so a killed run never leaves a stale one.
 */
import { closeSync, openSync, writeSync } from 'node:fs';
import { mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';

export interface RunDirectory extends AsyncDisposable {
  readonly path: string;
  readonly storePath: string;
  readonly checkpoints: string;
  /** Appends to events.jsonl. */
  log(event: RunEvent): void;
}

/** Creates (or adopts an empty) directory and locks it. */
export async function openRunDirectory(path: string, settings: object): Promise<RunDirectory> {
  // A workflow may change the working directory; the run's files stay where they were meant to be.
  const root = resolve(path);
  await boundary('USAGE', `cannot create the run directory ${path}`, () => makeFolder(root));
  const lock = takeLock(root);
  try {
    const held = (await readdir(root)).filter((name) => !name.startsWith('lock'));
    if (held.length > 0) {
      throw new TrainyardError('RUN_NOT_EMPTY', `${path} already holds ${held.slice(0, 3).join(', ')}`, {
        hint: 'give --run another directory, or remove this one',
      });
    }
    await mkdir(join(root, 'checkpoints'));
    await writeFile(join(root, 'run.json'), `${JSON.stringify(settings, null, 2)}\n`, { flag: 'wx' });
  } catch (thrown) {
    lock.close();
    throw thrown;
  }
  const events = openSync(join(root, 'events.jsonl'), 'wx');
  return {
    path,
    storePath: join(root, 'store.sqlite'),
    checkpoints: join(root, 'checkpoints'),
    log: (event) => writeLine(events, event),
    [Symbol.asyncDispose]: async () => {
      closeSync(events);
      lock.close();
    },
  };
}

/** At once and to the end: what was shown is also in the file, whatever happens next. */
function writeLine(file: number, event: RunEvent): void {
  try {
    writeSync(file, `${JSON.stringify(event)}\n`);
  } catch (cause) {
    throw new TrainyardError('STORE_FAILED', `cannot write events.jsonl: ${messageOf(cause)}`, {
      cause,
      hint: 'is the disk full?',
    });
  }
}

/** Not `mkdir` with `recursive`: where a folder exists but refuses new ones with ENOENT (/proc), that never returns. */
async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === 'EEXIST' && (await stat(path)).isDirectory()) return;
    if (code !== 'ENOENT' || dirname(path) === path) throw thrown;
    await makeFolder(dirname(path));
    await mkdir(path);
  }
}

function takeLock(path: string): DatabaseSync {
  let lock: DatabaseSync | undefined;
  try {
    lock = new DatabaseSync(join(path, 'lock'));
    lock.exec('PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE');
    return lock;
  } catch (cause) {
    lock?.close();
    if (!messageOf(cause).includes('locked')) {
      throw new TrainyardError('USAGE', `cannot lock the run directory ${path}: ${messageOf(cause)}`, {
        cause,
        hint: 'give --run a directory that can be written to',
      });
    }
    throw new TrainyardError('RUN_LOCKED', `another process is using ${path}`, {
      cause,
      hint: 'wait for it, or give --run another directory',
    });
  }
}
