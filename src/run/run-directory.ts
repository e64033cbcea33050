/**
 * One run, one directory: `run.json` (settings), `store.sqlite`, `checkpoints/` where it trains, `events.jsonl`, `lock`.
 *
 * The lock is held by the operating system for as long as the process lives, so a killed run never leaves a stale one. A
 * directory with a run.json can be taken up again; it is written first, whole or not at all.
 */
import { randomUUID } from 'node:crypto';
import { closeSync, existsSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { mkdir, open, readdir, rename, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { checkpointName } from './checkpoint.ts';
import { resumeCommand } from './command-line.ts';

const RUN_FILE = 'run.json';
const UNFINISHED_RUN_FILE = 'run.json.unfinished';
const EVENTS_FILE = 'events.jsonl';

export interface RunDirectory extends AsyncDisposable {
  readonly path: string;
  /** No other run has it; undefined of a run that was begun before runs had one. */
  readonly id: string | undefined;
  readonly storePath: string;
  readonly checkpoints: string;
  /** As a person would write it. */
  checkpointPath(step: number): string;
  /** Appends to events.jsonl. */
  log(event: RunEvent): void;
  /** Writes run.json anew, whole or not at all. */
  keep(record: object): Promise<void>;
}

/** Creates (or adopts an empty) directory, locks it and writes run.json. */
export async function createRunDirectory(path: string, record: object, { trains = true } = {}): Promise<RunDirectory> {
  // A workflow may change the working directory; the run's files stay where they were meant to be.
  const root = resolve(path);
  await boundary('USAGE', `cannot create the run directory ${path}`, () => makeFolder(root));
  const id = randomUUID();
  return await locked(path, root, id, async () => {
    const held = (await readdir(root)).filter((name) => !name.startsWith('lock') && name !== UNFINISHED_RUN_FILE);
    if (held.length > 0) {
      const hint = held.includes('run.json')
        ? `go on with it: ${resumeCommand(path, verbOf(root))}; or give --run another directory`
        : 'give --run another directory, or remove this one';
      throw new TrainyardError('RUN_NOT_EMPTY', `${path} already holds ${held.slice(0, 3).join(', ')}`, { hint });
    }
    await writeRunFile(root, { ...record, id });
    if (trains) await mkdir(join(root, 'checkpoints'));
  });
}

/** Creates or adopts a directory that is no run's, for one process at a time. */
export async function lockFolder(path: string, flag = '--run'): Promise<AsyncDisposable> {
  const root = resolve(path);
  await boundary('USAGE', `cannot create the directory ${path}`, () => makeFolder(root));
  if (existsSync(join(root, RUN_FILE))) {
    throw new TrainyardError('RUN_NOT_EMPTY', `${path} holds a run`, { hint: `give ${flag} another directory` });
  }
  const lock = takeLock(root, flag);
  return { [Symbol.asyncDispose]: async () => lock.close() };
}

/** Locks the directory of a run that is taken up again. */
export async function reopenRunDirectory(path: string, { trains = true } = {}): Promise<RunDirectory> {
  const root = resolve(path);
  const { id } = readRunFile(path) as { readonly id?: string };
  return await locked(path, root, id, async () => {
    if (trains) await mkdir(join(root, 'checkpoints'), { recursive: true });
    cutTornLine(join(root, EVENTS_FILE));
  });
}

/** For looking at a run that nobody goes on with meanwhile. */
export function lockRun(path: string): Disposable {
  const lock = takeLock(resolve(path), undefined);
  return { [Symbol.dispose]: () => lock.close() };
}

/** What run.json of an earlier run holds. */
export function readRunFile(path: string): unknown {
  const file = join(path, RUN_FILE);
  if (!existsSync(file)) {
    const above = [dirname(path), dirname(dirname(path))].find((folder) => existsSync(join(folder, RUN_FILE)));
    throw new TrainyardError('RESUME_IMPOSSIBLE', `${path} holds no run.json, so there is no run to go on with`, {
      hint: above === undefined ? 'give the directory of a run, such as runs/<name>' : `did you mean ${above}?`,
    });
  }
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    throw new TrainyardError('RESUME_IMPOSSIBLE', `${file} cannot be read: ${messageOf(cause)}`, {
      cause,
      hint: 'restore the file from a copy, or begin anew in another directory',
    });
  }
}

/** Whether a run.json is an evaluation's. */
export function isEvaluation(record: unknown): boolean {
  return typeof record === 'object' && record !== null && 'kind' in record && record.kind === 'evaluation';
}

function verbOf(root: string): 'train' | 'eval' {
  try {
    return isEvaluation(readRunFile(root)) ? 'eval' : 'train';
  } catch {
    return 'train';
  }
}

async function locked(path: string, root: string, id: string | undefined, prepare: () => Promise<void>): Promise<RunDirectory> {
  const lock = takeLock(root, '--run');
  try {
    await prepare();
  } catch (thrown) {
    lock.close();
    throw thrown;
  }
  const events = openSync(join(root, EVENTS_FILE), 'a');
  return {
    path,
    id,
    storePath: join(root, 'store.sqlite'),
    checkpoints: join(root, 'checkpoints'),
    checkpointPath: (step) => join(path, 'checkpoints', checkpointName(step)),
    log: (event) => writeLine(events, event),
    keep: (record) => writeRunFile(root, { ...record, id }),
    [Symbol.asyncDispose]: async () => {
      closeSync(events);
      lock.close();
    },
  };
}

async function writeRunFile(root: string, record: object): Promise<void> {
  const unfinished = join(root, UNFINISHED_RUN_FILE);
  {
    await using file = await open(unfinished, 'w');
    await file.writeFile(`${JSON.stringify(record, null, 2)}\n`);
    await file.sync();
  }
  await rename(unfinished, join(root, RUN_FILE));
  await using folder = await open(root, 'r');
  await folder.sync();
}

/** A kill in the middle of a write leaves half a line; it was never acknowledged to anyone. */
function cutTornLine(path: string): void {
  if (!existsSync(path)) return;
  const file = openSync(path, 'r+');
  ftruncateSync(file, readFileSync(file).lastIndexOf('\n') + 1);
  closeSync(file);
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

function takeLock(path: string, flag: string | undefined): DatabaseSync {
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
        hint: `give ${flag ?? '--run'} a directory that can be written to`,
      });
    }
    throw new TrainyardError('RUN_LOCKED', `another process is using ${path}`, {
      cause,
      hint: `wait for it or stop it${flag === undefined ? '' : `, or give ${flag} another directory`}`,
    });
  }
}
