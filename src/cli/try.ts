/** `trainyard try`: one rollout, turn by turn, for finding out what an agent does. Returns the exit code. */
import { mkdtemp, readdir, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { RunEvent, Warn } from '../core/events.ts';
import { turnSummary } from '../core/turns.ts';
import type { Task, Trajectory, Turn } from '../core/types.ts';
import { evaluationSettings } from '../run/check-settings.ts';
import { openParts } from '../run/parts.ts';
import { preflight } from '../run/preflight.ts';
import { type EvaluationRequest, samplingAt } from '../run/settings.ts';
import { memoryStore } from '../store/memory.ts';
import { entryGiven, type LimitFlags, withLimits } from './flags.ts';
import { guarded } from './guard.ts';
import { describe } from './print.ts';
import { endingLines, turnText } from './rollout-text.ts';
import { asCalled } from './text.ts';

interface TryRequest extends EvaluationRequest {
  /** Id of the task, or its number in the file, from 1; absent: the first. */
  readonly task?: string | undefined;
}

interface TryFlags extends Omit<TryRequest, 'entry' | 'heldOut'>, LimitFlags {
  readonly tasks?: string;
  readonly json: boolean;
}

export async function tryCommand(given: string | undefined, flags: TryFlags): Promise<number> {
  const { json, tasks, ...settings } = withLimits(flags);
  const entry = entryGiven(given ?? settings.flows, 'trainyard try <entry>');
  const request = { ...settings, entry, ...(tasks === undefined ? {} : { heldOut: tasks }) };
  const say = (lines: readonly string[], value: object): void => console.log(json ? JSON.stringify(value) : lines.join('\n'));
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'UNKILLABLE_GRADER' && !isEnding(event.message)) say(describe(event), event);
  };
  let hint: readonly string[] = [];
  let files: string | undefined;
  const observer = {
    onStart: (task: Task) => {
      const words = task.prompt.map(({ role, content }) => `    ${role}: ${printableLine(content)}`);
      say([`${styleText('bold', 'task')} ${printableLine(task.id)}`, ...words], {
        type: 'task',
        id: task.id,
        prompt: task.prompt,
      });
    },
    onTurn: (turn: Turn) => {
      const summary = turnSummary(turn);
      say([turnText(summary)], { type: 'turn', ...summary });
    },
    onThrown: (thrown: unknown) => {
      const stack = thrown instanceof Error ? (thrown.stack ?? thrown.message) : messageOf(thrown);
      if (thrown instanceof TrainyardError && thrown.hint !== undefined) hint = [`  ${printableLine(asCalled(thrown.hint))}`];
      const lines = ownFrames(stack).map((line) => styleText('red', printableLine(line)));
      if (json || lines.length > 0) say(lines, { type: 'threw', stack });
    },
    onFiles: (folder: string) => {
      files = folder;
    },
    warn: (code: string, message: string) => emit({ type: 'warning', code, message }),
  };
  const trajectory = await guarded(emit, { steps: false }, ({ stop }) => tryOnce(request, observer, stop));
  const { outcome, grade, output, metadata, metrics, logs, unanswered } = trajectory;
  const kept = files === undefined ? [] : [`  files: ${printableLine(files)}`];
  const ended = { type: 'ended', outcome, grade, output, metadata, metrics, logs, unanswered, files };
  say([...endingLines(trajectory), ...hint, ...kept], ended);
  return succeeded(trajectory) ? 0 : 1;
}

const OURS = new URL('..', import.meta.url).href;

/** The stack without our own frames; nothing where no other is left: what was thrown is said by the ending, too. */
function ownFrames(stack: string): readonly string[] {
  const lines = stack.split('\n').filter((line) => !(/^\s+at /.test(line) && line.includes(OURS)));
  return lines.some((line) => /^\s+at .*[:(/]/.test(line) && !line.includes('node:internal')) ? lines : [];
}

/** A run warns of its first failure; here the ending says it. */
function isEnding(warning: string): boolean {
  return warning.startsWith('rollout try: ');
}

/** The agent ran and was graded: with which reward is its own affair, and so is a rejection of its own. */
function succeeded({ outcome, grade }: Trajectory): boolean {
  const isUnused = outcome.kind === 'rejected' && outcome.reason === 'no_turns';
  return outcome.kind !== 'failed' && grade.kind !== 'failed' && !isUnused;
}

interface TryObserver {
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
async function tryOnce(request: TryRequest, observer: TryObserver, stop: AbortSignal): Promise<Trajectory> {
  const { task: wanted, temperature = 1, ...given } = request;
  const settings = evaluationSettings(given);
  const { entry, heldOut } = await preflight(settings);
  const task = taskNamed(wanted, heldOut, typeof settings.heldOut === 'string' ? settings.heldOut : 'the list');
  const limits = { ...settings.limits, deadlineMs: DEADLINE_MS };
  const watch = { recorded: (_: unknown, turn: Turn) => observer.onTurn(turn), threw: observer.onThrown };
  await using folder = await temporaryFolder();
  const files = { run: folder.path, tasks: [settings.heldOut] };
  await using parts = await openParts({ ...settings, limits }, entry, { stop, warn: observer.warn, observer: watch, files });
  await using store = memoryStore();
  observer.onStart(task);
  const identity = { rolloutId: ROLLOUT, groupId: ROLLOUT, purpose: 'train' } as const;
  const trajectory = await parts.rolloutsInto(store, folder.artifacts).run(identity, task, samplingAt(temperature, settings));
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
