/**
 * The directory of one run: `run.json` (settings), `store.sqlite`, `events.jsonl`, `lock`, and `checkpoints/` if it trains. The operating
 * system holds the lock while the process lives, so a killed run leaves no stale lock. A directory with a run.json can be resumed; that
 * file is written first, and atomically. Every event except progress is in events.jsonl before it is shown.
 */
import { randomUUID } from 'node:crypto';
import { closeSync, existsSync, ftruncateSync, openSync, readFileSync, statSync, writeSync } from 'node:fs';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import type { ErrorCode } from '../core/error-codes.ts';
import { boundary, messageOf, TrainyardError, tried } from '../core/errors.ts';
import { type Emit, errorEvent, type LoggedEvent, lineOf, type RunEvent } from '../core/events.ts';
import { checkpointName, savedSteps } from '../engines/checkpoint.ts';
import { resumeCommand } from '../settings/settings.ts';
import { makeFolder, replaceFile, sync, takeLock, UNFINISHED_FILE } from '../store/files.ts';

const RUN_FILE = 'run.json';
const EVENTS_FILE = 'events.jsonl';

export interface RunDirectory extends AsyncDisposable {
  readonly path: string;
  /** Unique. */
  readonly id: string;
  readonly storePath: string;
  readonly checkpoints: string;
  /** Relative to the path as the user gave it. */
  checkpointPath(step: number): string;
  log(event: RunEvent): void;
  /** Replaces run.json atomically. */
  keep(record: object): Promise<void>;
}

/** Creates the directory or adopts an empty one, locks it and writes run.json. `replaces`: whether what is there is removed first. */
export async function createRunDirectory(
  path: string,
  record: object,
  { trains = true, replaces }: { readonly trains?: boolean; readonly replaces?: (path: string) => boolean } = {},
): Promise<RunDirectory> {
  // Absolute, because a workflow may change the working directory.
  const root = resolve(path);
  await boundary('USAGE', `cannot create the run directory ${path}`, () => makeFolder(root));
  const id = randomUUID();
  return await locked(path, root, id, async () => {
    if (replaces?.(root)) await emptyFolder(root);
    await requireEmpty(path);
    await writeRunFile(root, { ...record, id });
    if (trains) await mkdir(join(root, 'checkpoints'));
  });
}

/** All but the lock, and run.json last, so that a kill leaves what can be recognized. */
async function emptyFolder(root: string): Promise<void> {
  const names = (await readdir(root)).filter((name) => !name.startsWith('lock'));
  const inOrder = names.toSorted((a, b) => Number(a === RUN_FILE) - Number(b === RUN_FILE));
  for (const name of inOrder) await rm(join(root, name), { recursive: true });
}

/** Throws RUN_NOT_EMPTY if the directory holds anything but a lock. */
export async function requireEmpty(path: string): Promise<void> {
  const names = existsSync(path) ? await boundary('USAGE', `${path} is no directory`, () => readdir(path)) : [];
  const held = names.filter((name) => !name.startsWith('lock') && name !== RUN_FILE + UNFINISHED_FILE);
  if (held.length === 0) return;
  const hint =
    held.includes(RUN_FILE) && !isSft(path)
      ? `go on with it: ${resumeCommand(path, verbOf(path))}; or give --run another directory`
      : `${isSft(path) ? 'it was taught with other settings or other data: ' : ''}give --run another directory, or remove this one`;
  throw new TrainyardError('RUN_NOT_EMPTY', `${path} already holds ${held.slice(0, 3).join(', ')}`, hint);
}

export async function reopenRunDirectory(path: string, { trains = true } = {}): Promise<RunDirectory> {
  const root = resolve(path);
  const { id } = readRunFile(path) as { readonly id: string };
  return await locked(path, root, id, async () => {
    if (trains) await mkdir(join(root, 'checkpoints'), { recursive: true });
    cutTornLine(join(root, EVENTS_FILE));
  });
}

/** Creates or adopts a directory that does not belong to a run, for one process at a time. */
export async function lockFolder(path: string, flag = '--run'): Promise<AsyncDisposable> {
  const root = resolve(path);
  await boundary('USAGE', `cannot create the directory ${path}`, () => makeFolder(root));
  if (existsSync(join(root, RUN_FILE))) {
    throw new TrainyardError('RUN_NOT_EMPTY', `${path} holds a run`, `give ${flag} another directory`);
  }
  const lock = takeLock(root, flag);
  return { [Symbol.asyncDispose]: async () => lock.close() };
}

/** `missing`: the code if there is no run. */
export function readRunFile(path: string, missing: ErrorCode = 'RESUME_IMPOSSIBLE'): unknown {
  const file = join(path, RUN_FILE);
  if (!existsSync(file)) {
    const above = [dirname(path), dirname(dirname(path))].find((folder) => existsSync(join(folder, RUN_FILE)));
    throw new TrainyardError(
      missing,
      `${path} holds no run.json, so there is no run`,
      above === undefined ? 'give the directory of a run, such as runs/<name>' : `did you mean ${above}?`,
    );
  }
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    const hint = 'restore the file from a copy, or begin anew in another directory';
    throw new TrainyardError('RESUME_IMPOSSIBLE', `${file} cannot be read: ${messageOf(cause)}`, { cause, hint });
  }
}

export function isEvaluation(record: unknown): boolean {
  return typeof record === 'object' && record !== null && 'kind' in record && record.kind === 'evaluation';
}

function isSft(root: string): boolean {
  return tried(() => (readRunFile(root) as { readonly kind?: unknown }).kind) === 'sft';
}

/** Throws USAGE. */
export function refuseSft(path: string): void {
  if (!isSft(path)) return;
  throw new TrainyardError(
    'USAGE',
    `${path} holds supervised fine-tuning, which keeps no rollouts`,
    'its checkpoint is for --model and --checkpoint; if it was interrupted, the same command begins it anew',
  );
}

function verbOf(root: string): 'train' | 'eval' {
  try {
    return isEvaluation(readRunFile(root)) ? 'eval' : 'train';
  } catch {
    return 'train';
  }
}

async function locked(path: string, root: string, id: string, prepare: () => Promise<void>): Promise<RunDirectory> {
  const lock = takeLock(root, '--run');
  await prepare().catch((thrown: unknown) => {
    lock.close();
    throw thrown;
  });
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
  await replaceFile(join(root, RUN_FILE), `${JSON.stringify(record, null, 2)}\n`);
  await sync(root);
}

/** A kill during a write leaves half a line, which was never acknowledged. */
function cutTornLine(path: string): void {
  if (!existsSync(path)) return;
  try {
    const file = openSync(path, 'r+');
    ftruncateSync(file, readFileSync(file).lastIndexOf('\n') + 1);
    closeSync(file);
  } catch (cause) {
    throw unwritable(cause, 'it must be a file that this user may write');
  }
}

/** Synchronous, so that an event is in the file before it is shown. */
function writeLine(file: number, event: RunEvent): void {
  try {
    writeSync(file, lineOf(event));
  } catch (cause) {
    throw unwritable(cause, 'is the disk full?');
  }
}

function unwritable(cause: unknown, hint: string): TrainyardError {
  return new TrainyardError('STORE_FAILED', `cannot write ${EVENTS_FILE}: ${messageOf(cause)}`, { cause, hint });
}

export function eventsIn(run: string): readonly LoggedEvent[] {
  return eventsFrom(run, 0).events;
}

/** Those from this byte on, and where they end: before `start` if the file was written anew. Ignores a last line that is not complete. */
export function eventsFrom(run: string, start: number): { readonly events: readonly LoggedEvent[]; readonly end: number } {
  const file = join(run, EVENTS_FILE);
  const size = statSync(file, { throwIfNoEntry: false })?.size ?? 0;
  if (size === start || size === 0) return { events: [], end: size };
  const bytes = readFileSync(file);
  const end = bytes.lastIndexOf('\n') + 1;
  const lines = bytes.toString('utf8', start, Math.max(start, end)).split('\n').slice(0, -1);
  const events = lines.map((line, i) => {
    try {
      return JSON.parse(line) as LoggedEvent;
    } catch (cause) {
      const hint = 'restore the file from a copy';
      const place = start === 0 ? `line ${i + 1}` : `a line after byte ${start}`;
      throw new TrainyardError('STORE_FORMAT', `${file}: ${place} is no JSON`, { cause, hint });
    }
  });
  return { events, end };
}

export interface ChosenCheckpoint {
  readonly folder: string;
  /** `given`: the path was a checkpoint itself. Otherwise the run's best, or its last if the run has not said which is the best. */
  readonly chosen: 'given' | 'best' | 'last';
}

/** A model or PEFT folder: the path itself, or a run's best checkpoint, or else its last. */
export async function chooseCheckpoint(path: string): Promise<ChosenCheckpoint> {
  if (['config.json', 'adapter_config.json'].some((name) => existsSync(join(path, name))))
    return { folder: path, chosen: 'given' };
  const folder = join(path, 'checkpoints');
  const steps: readonly number[] = await savedSteps(folder).catch(() => []);
  // Whatever happened to the events, the last checkpoint can be used.
  const done = tried(() => eventsIn(path))?.findLast(({ type }) => type === 'done' || type === 'sft-end');
  const best = done !== undefined && 'best' in done ? done.best?.step : undefined;
  // Supervised fine-tuning keeps only the best one.
  const isBest = (best !== undefined && steps.includes(best)) || done?.type === 'sft-end';
  const step = isBest ? (best ?? steps.at(-1)) : steps.at(-1);
  if (step !== undefined) return { folder: join(folder, checkpointName(step)), chosen: isBest ? 'best' : 'last' };
  const found = `checkpoint: expected a model folder or the directory of a run with checkpoints, found ${path}`;
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    found,
    'name the directory of a training run, such as runs/<name>, or one of the folders in its checkpoints',
  );
}

export async function checkpointIn(path: string): Promise<string> {
  return (await chooseCheckpoint(path)).folder;
}

/** Milliseconds. */
const PROGRESS_INTERVAL = 100;
/** Failures of the process, its machine or the server rather than of the run, so resuming may well work. */
const WORTH_RESUMING: ReadonlySet<string> = new Set([
  'STORE_FAILED',
  'CANCELLED',
  'ENGINE_FAILED',
  'FAILURE_BUDGET',
  'GRADER_BUDGET',
  'POLICY_UNREACHABLE',
  'POLICY_REFUSED',
  'POLICY_GARBLED',
  'POLICY_LOST',
]);

interface EventLog extends Emit {
  /** Also writes events to the directory while `work` runs, including an error that ends it. */
  during<T>(directory: RunDirectory, work: () => Promise<T>): Promise<T>;
}

/** `verb`: the command that resumes such a run; `sft` is not resumed. */
export function eventLog(emit: Emit, verb: 'train' | 'eval' | 'sft' = 'train'): EventLog {
  let directory: RunDirectory | undefined;
  let lastProgress = Number.NEGATIVE_INFINITY;
  const tell = (told: RunEvent): void => {
    const event: LoggedEvent = { ...told, at: Date.now() };
    if (event.type === 'progress') {
      const now = performance.now();
      if (now - lastProgress < PROGRESS_INTERVAL && event.of > 0) return;
      lastProgress = now;
    } else {
      directory?.log(event);
    }
    emit(event);
  };
  const during = async <T>(kept: RunDirectory, work: () => Promise<T>): Promise<T> => {
    directory = kept;
    try {
      return await work();
    } catch (thrown) {
      const shown = verb === 'sft' ? thrown : withWayOn(thrown, verb, resumeCommand(kept.path, verb));
      try {
        kept.log(errorEvent(shown));
      } catch {
        // The disk itself may have failed; the original error matters more.
      }
      throw shown;
    } finally {
      // Events emitted later, during closing, would find the file closed.
      directory = undefined;
    }
  };
  return Object.assign(tell, { during });
}

function withWayOn(thrown: unknown, verb: 'train' | 'eval', command: string): unknown {
  if (!(thrown instanceof TrainyardError) || !WORTH_RESUMING.has(thrown.code)) return thrown;
  const { code, hint } = thrown;
  const onward = (way: string) => new TrainyardError(code, messageOf(thrown), { cause: thrown, hint: way });
  if (verb === 'train' || !code.endsWith('_BUDGET'))
    return onward(`${hint === undefined ? '' : `${hint}; `}go on with: ${command}`);
  // Resuming an evaluation with changed code would mix two versions, so it must start anew.
  if (code === 'GRADER_BUDGET') return onward(`fix the grader and begin anew, or allow more: ${command} --max-error-share 1`);
  return onward(
    `${hint}; if it was the code, begin anew; if it was a server, run the failed ones again: ${command} --retry-failed`,
  );
}
