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
import { boundary, TrainyardError } from '../core/errors.ts';
import { type RunEvent, warnBy } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { withModelPath } from '../engines/model-path.ts';
import { checkModelNamed } from '../engines/open-policy.ts';
import { removeFolder } from '../processes/limits.ts';
import { checkpointIn } from '../run/directory.ts';
import { openParts } from '../run/parts.ts';
import { preflight } from '../run/preflight.ts';
import { type EvaluationRequest, type EvaluationSettings, evaluationSettings } from '../settings/check-settings.ts';
import { hiddenFiles, samplingAt } from '../settings/settings.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { checkpointConflict } from './eval.ts';
import { guarded } from './guarded.ts';
import { describe, planText } from './output/print.ts';
import { liveRollout } from './output/print-rollout.ts';
import { entryGiven } from './verbs.ts';

interface TryFlags extends Omit<EvaluationRequest, 'entry'> {
  readonly checkpoint?: string;
  /** Id of the task, or its number in the file, from 1. Default: the first. */
  readonly task?: string;
  readonly json: boolean;
}

/** The user may be in a debugger. */
const DEADLINE_MS = 24 * 3_600_000;
const ROLLOUT = 'try';

export async function tryCommand(given: string | undefined, flags: TryFlags): Promise<number> {
  const { json, task: wanted, checkpoint, ...rest } = flags;
  const conflict = checkpointConflict(flags);
  if (conflict) throw new TrainyardError('USAGE', conflict, 'see trainyard try --help');
  const entry = entryGiven(given ?? rest.flows, 'trainyard try <entry>');
  await checkModelNamed(rest);
  const model = checkpoint === undefined ? rest.model : await checkpointIn(checkpoint);
  const settings = evaluationSettings(await withModelPath({ ...rest, entry, ...defined({ model }) }));
  const { temperature = 1 } = rest;
  const { say, observer, ended } = liveRollout(json);
  const emit = (event: RunEvent): void => {
    // The ending already reports these failures.
    const isSaid = event.type !== 'warning' || event.code === 'UNKILLABLE_GRADER' || event.message.startsWith('rollout try: ');
    if (!isSaid) say(describe(event), event);
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
      stop,
      observer,
      files: { ...hiddenFiles(settings), run },
      warn: warnBy(emit),
    });
    await using store = await openSqliteStore(':memory:');
    const { model: name, plan } = parts.start;
    if (plan !== undefined) say([planText(name, plan)], { type: 'plan', ...plan });
    onStart(task);
    const identity = { rolloutId: ROLLOUT, groupId: ROLLOUT, purpose: 'train' } as const;
    const trajectory = await parts.rolloutsInto(store, artifacts).run(identity, task, samplingAt(temperature, settings));
    return { trajectory, files: (await filesIn()).length > 0 ? join(artifacts, ROLLOUT) : undefined };
  });
  const kept = files === undefined ? [] : [`  files: ${printableLine(files)}`];
  const [lines, value] = ended(trajectory);
  say([...lines, ...kept], { ...value, files });
  return succeeded(trajectory) ? 0 : 1;
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
  throw new TrainyardError(
    'USAGE',
    `${file} has no task ${wanted === undefined ? 'at all' : JSON.stringify(wanted)}`,
    `give the id of one of its ${tasks.length} tasks, or a number from 1 to ${tasks.length}`,
  );
}
