/**
 * `trainyard try`: runs one rollout of one task and shows each turn as it is recorded, the stack of anything the workflow threw, and the
 * grade. Keeps only the rollout's files. Returns the exit code.
 */
import { mkdtemp, readdir, realpath } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { styleText } from 'node:util';
import { CloseStack } from '../core/async.ts';
import { printableLine } from '../core/describe.ts';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { LogLine, Task, Trajectory, Turn } from '../core/types.ts';
import { removeFolder } from '../processes/limits.ts';
import { type EvaluationRequest, type EvaluationSettings, evaluationSettings } from '../run/check-settings.ts';
import { checkpointIn } from '../run/directory.ts';
import { withModelPath } from '../run/model-path.ts';
import { checkModelNamed } from '../run/open-policy.ts';
import { openParts } from '../run/parts.ts';
import { preflight } from '../run/preflight.ts';
import { samplingAt } from '../run/settings.ts';
import { memoryStore } from '../store/memory.ts';
import { checkpointConflict } from './eval.ts';
import { guarded } from './guarded.ts';
import { describe, planText, saying } from './print.ts';
import { logText, shownEnding, shownTurn } from './print-rollout.ts';
import { asCalled } from './text.ts';
import { entryGiven, type LimitFlags, withLimits } from './verbs.ts';

interface TryFlags extends Omit<EvaluationRequest, 'entry' | 'heldOut' | 'engine'>, LimitFlags {
  readonly checkpoint?: string;
  /** Id of the task, or its number in the file, from 1. Default: the first. */
  readonly task?: string;
  readonly tasks?: string;
  readonly json: boolean;
}

/** The user may be in a debugger. */
const DEADLINE_MS = 24 * 3_600_000;
const ROLLOUT = 'try';
const OURS = [new URL('..', import.meta.url).href, '/node_modules/commander/'];

export async function tryCommand(given: string | undefined, flags: TryFlags): Promise<number> {
  const { json, tasks, task: wanted, checkpoint, ...rest } = withLimits(flags);
  const conflict = checkpointConflict(flags);
  if (conflict) throw new TrainyardError('USAGE', conflict, { hint: 'see trainyard try --help' });
  const entry = entryGiven(given ?? rest.flows, 'trainyard try <entry>');
  await checkModelNamed(rest);
  const model = checkpoint === undefined ? rest.model : await checkpointIn(checkpoint);
  const settings = evaluationSettings(await withModelPath({ ...rest, entry, ...defined({ model, heldOut: tasks }) }));
  const { temperature = 1 } = rest;
  const say = saying(json);
  const emit = (event: RunEvent): void => {
    // The ending already reports these failures.
    const isSaid = event.type !== 'warning' || event.code === 'UNKILLABLE_GRADER' || event.message.startsWith('rollout try: ');
    if (!isSaid) say(describe(event), event);
  };
  let hint: readonly string[] = [];
  const [turns, printed]: [Turn[], LogLine[]] = [[], []];
  let startedAt = 0;
  const observer = {
    recorded: (_: unknown, turn: Turn) => {
      turns.push(turn);
      say(...shownTurn(turn, turns));
    },
    printed: (line: LogLine) => {
      printed.push(line);
      say([logText(line, startedAt)], { type: 'print', ...line });
    },
    threw: (thrown: unknown) => {
      const stack = thrown instanceof Error ? (thrown.stack ?? thrown.message) : messageOf(thrown);
      if (thrown instanceof TrainyardError && thrown.hint !== undefined) hint = [`  ${printableLine(asCalled(thrown.hint))}`];
      const lines = ownFrames(stack).map((line) => styleText('red', printableLine(line)));
      if (json || lines.length > 0) say(lines, { type: 'threw', stack });
    },
  };
  const onStart = ({ id, prompt }: Task): void => {
    const words = prompt.map(({ role, content }) => `    ${role}: ${printableLine(content)}`);
    say([`${styleText('bold', 'task')} ${printableLine(id)}`, ...words], { type: 'task', id, prompt });
  };
  const { trajectory, files } = await guarded(emit, { steps: false }, async ({ stop }) => {
    const { entry: found, heldOut } = await preflight(settings);
    const task = taskNamed(wanted, heldOut, settings);
    // The real path, which is what an isolated rollout sees.
    const made = (): Promise<string> => mkdtemp(join(tmpdir(), 'trainyard-try-')).then((folder) => realpath(folder));
    const run = await boundary(
      'FILE_NOT_FOUND',
      'no temporary folder can be made',
      made,
      'set TMPDIR to one that can be written to',
    );
    const artifacts = join(run, 'artifacts');
    const filesIn = async (): Promise<readonly string[]> => await readdir(join(artifacts, ROLLOUT)).catch(() => []);
    await using opened = new CloseStack();
    opened.defer(async () => {
      if ((await filesIn()).length === 0) await removeFolder(run);
    });
    await using parts = await openParts({ ...settings, limits: { ...settings.limits, deadlineMs: DEADLINE_MS } }, found, {
      ...{ stop, observer, files: { run, tasks: [settings.heldOut] } },
      warn: (code, message) => emit({ type: 'warning', code, message }),
    });
    await using store = memoryStore();
    const { model: name, plan } = parts.start;
    if (plan !== undefined) say([planText(name, plan)], { type: 'plan', ...plan });
    onStart(task);
    startedAt = Date.now();
    const identity = { rolloutId: ROLLOUT, groupId: ROLLOUT, purpose: 'train' } as const;
    const trajectory = await parts.rolloutsInto(store, artifacts).run(identity, task, samplingAt(temperature, settings));
    return { trajectory, files: (await filesIn()).length > 0 ? join(artifacts, ROLLOUT) : undefined };
  });
  const kept = files === undefined ? [] : [`  files: ${printableLine(files)}`];
  const [lines, ended] = shownEnding(trajectory, printed);
  say([...lines, ...hint, ...kept], { ...ended, files });
  return succeeded(trajectory) ? 0 : 1;
}

/** The stack without Trainyard's frames. Empty if no user frame is left; the ending reports the error anyway. */
function ownFrames(stack: string): readonly string[] {
  const isOurs = (line: string): boolean => /^\s+at /.test(line) && OURS.some((place) => line.includes(place));
  const lines = stack.split('\n').filter((line) => !isOurs(line));
  return lines.some((line) => /^\s+at .*[:(/]/.test(line) && !line.includes('node:internal')) ? lines : [];
}

/** Success means that the agent got an answer and was graded, whatever the reward. A deliberate rejection counts too. */
function succeeded({ outcome, grade, turns }: Trajectory): boolean {
  const isUnused = outcome.kind === 'rejected' ? outcome.reason === 'no_turns' : turns.length === 0;
  return outcome.kind !== 'failed' && grade.kind !== 'failed' && !isUnused;
}

function taskNamed(wanted: string | undefined, tasks: readonly Task[], { heldOut }: EvaluationSettings): Task {
  const byNumber = wanted === undefined ? 1 : /^\d+$/.test(wanted) ? Number(wanted) : Number.NaN;
  const found = tasks.find(({ id }) => id === wanted) ?? tasks[byNumber - 1];
  if (found !== undefined) return found;
  const file = typeof heldOut === 'string' ? heldOut : 'the list';
  throw new TrainyardError('USAGE', `${file} has no task ${wanted === undefined ? 'at all' : JSON.stringify(wanted)}`, {
    hint: `give the id of one of its ${tasks.length} tasks, or a number from 1 to ${tasks.length}`,
  });
}
