/** One rollout of one task, to look at: every turn as it is recorded, what the workflow threw with its stack, what the grader made of it. */
import { mkdtemp, readdir, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { SamplingSettings, Task, Trajectory, Turn } from '../core/types.ts';
import { memoryStore } from '../store/memory.ts';
import { preflight } from './preflight.ts';
import { type EvalRequest, evalSettings } from './settings.ts';
import { openWorkshop } from './workshop.ts';

export interface TryRequest extends EvalRequest {
  /** Id of the task, or its number in the file, from 1; absent: the first. */
  readonly task?: string | undefined;
  /** Absent: 1, as in training. */
  readonly temperature?: number | undefined;
}

export interface TryObserver {
  onStart(task: Task): void;
  onTurn(turn: Turn): void;
  /** What the workflow threw. */
  onThrown(thrown: unknown): void;
  /** Where the files are that the rollout kept, if it did. */
  onFiles(folder: string): void;
  readonly warn: Warn;
}

/** Someone may be sitting in a debugger. */
const DEADLINE_MS = 24 * 3_600_000;

const ROLLOUT = 'try';

/** Keeps nothing but the files of the rollout, in a temporary folder. */
export async function tryOnce(request: TryRequest, observer: TryObserver, stop: AbortSignal): Promise<Trajectory> {
  const { task: wanted, temperature = 1, ...given } = request;
  const settings = evalSettings(given);
  const { entry, heldOut } = await preflight(settings);
  const { trainable } = settings;
  const task = taskNamed(wanted, heldOut, typeof settings.heldOut === 'string' ? settings.heldOut : 'the list');
  const { warn } = observer;
  const limits = { ...settings.limits, deadlineMs: DEADLINE_MS };
  const watch = { recorded: (_: unknown, turn: Turn) => observer.onTurn(turn), threw: observer.onThrown };
  await using folder = await temporaryFolder();
  await using workshop = await openWorkshop({ ...settings, limits }, entry, {
    stop,
    warn,
    trainable,
    observer: watch,
    files: { run: folder.path, tasks: [settings.heldOut] },
  });
  await using store = memoryStore();
  observer.onStart(task);
  const sampling: SamplingSettings = { temperature, topP: 1, topK: 0, maxTokens: settings.callTokens };
  const identity = { rolloutId: ROLLOUT, groupId: ROLLOUT, purpose: 'train' } as const;
  const trajectory = await workshop.rolloutsInto(store, folder.artifacts).run(identity, task, sampling);
  const kept = await folder.kept();
  if (kept !== undefined) observer.onFiles(kept);
  return trajectory;
}

interface TemporaryFolder extends AsyncDisposable {
  /** Undefined where the system gives none: files are a convenience. */
  readonly path: string | undefined;
  readonly artifacts: string | undefined;
  /** The rollout's files, if there are any. */
  kept(): Promise<string | undefined>;
}

/** Disposing removes it where nothing was kept. */
async function temporaryFolder(): Promise<TemporaryFolder> {
  // By its real name, which is what an isolated rollout is told.
  const path = await mkdtemp(join(tmpdir(), 'trainyard-try-')).then(
    (made) => realpath(made),
    () => undefined,
  );
  if (path === undefined) return { path, artifacts: path, kept: async () => path, [Symbol.asyncDispose]: async () => {} };
  const artifacts = join(path, 'artifacts');
  const kept = async (): Promise<string | undefined> => {
    const files = await readdir(join(artifacts, ROLLOUT)).catch(() => []);
    return files.length === 0 ? undefined : join(artifacts, ROLLOUT);
  };
  const remove = async (): Promise<void> => {
    if ((await kept()) === undefined) await rm(path, { recursive: true, force: true });
  };
  return { path, artifacts, kept, [Symbol.asyncDispose]: remove };
}

function taskNamed(wanted: string | undefined, tasks: readonly Task[], file: string): Task {
  const found =
    wanted === undefined
      ? tasks[0]
      : (tasks.find(({ id }) => id === wanted) ?? (/^\d+$/.test(wanted) ? tasks[Number(wanted) - 1] : undefined));
  if (found !== undefined) return found;
  throw new TrainyardError('USAGE', `${file} has no task ${wanted === undefined ? 'at all' : JSON.stringify(wanted)}`, {
    hint: `give the id of one of its ${tasks.length} tasks, or a number from 1 to ${tasks.length}`,
  });
}
