/**
 * Everything that can be wrong with what the user wrote is found here, all of it at once, before anything is opened or spent.
 */
import { missingEnv } from '../core/define-grader.ts';
import { TrainyardError } from '../core/errors.ts';
import { isFlow } from '../core/flow-door.ts';
import type { Task } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import { type Split, seenInTraining, splitTasks } from '../dataset/split.ts';
import { type Dataset, readDataset } from '../dataset/tasks.ts';
import { flowRegistry } from '../flows/flow-registry.ts';
import { type Entry, together } from '../rollout/discovery.ts';
import { answerWarnings } from './answer-warnings.ts';
import { flowProblems, inspectFlow, inspectUnnamed } from './flow-entry.ts';

export interface Files {
  readonly entry: string | Entry;
  /** The flow that is the workflow, by name, and the file that lists it. */
  readonly flow?: string | undefined;
  readonly flows?: string | undefined;
  readonly tasks?: TaskSource | undefined;
  readonly heldOut?: TaskSource | undefined;
  /** Fewer tasks to train on are refused. */
  readonly minTasks?: number | undefined;
  /** The share of `tasks` that is held out, by `seed`. */
  readonly split?: number | undefined;
  readonly seed?: number | undefined;
}

export interface Checked {
  readonly entry: Entry;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
  /** What a person should know about the tasks. */
  readonly warnings: Dataset['warnings'];
}

/** What could be read, and what is wrong with the rest. */
export interface Inspection {
  readonly entry?: Entry | undefined;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
  readonly warnings: Dataset['warnings'];
  readonly problems: readonly TrainyardError[];
}

/** One mistake is thrown as it is; several as one error with the first one's code. */
export async function preflight(files: Files): Promise<Checked> {
  const { entry, tasks, heldOut, warnings, problems } = await inspectFiles(files);
  if (entry !== undefined && problems.length === 0) return { entry, tasks, heldOut, warnings };
  throw together(problems);
}

/** Imports the entry, and runs nothing. */
export async function inspectFiles(files: Files): Promise<Inspection> {
  const { flow, entry } = files;
  const isChosen = flow !== undefined && typeof entry === 'string';
  const chosen = isChosen ? await inspectFlow({ entry, flow, flows: files.flows }) : undefined;
  const found = chosen ?? (typeof entry === 'string' ? await inspectUnnamed(entry) : { entry, problems: [] });
  const { tasks, heldOut, warnings, problems } = await inspectTasks(files);
  const problemsOf = chosen?.problemsOf ?? problemsOfEntry(found.entry);
  const ofFlows = problemsOf([...tasks, ...heldOut]);
  const ofAnswers = found.entry === undefined ? [] : answerWarnings(found.entry.grader, files, { tasks, heldOut });
  return {
    entry: found.entry,
    tasks,
    heldOut,
    warnings: [...warnings, ...missingVariables(found.entry), ...ofAnswers],
    problems: [...found.problems, ...problems, ...ofFlows],
  };
}

async function inspectTasks({ tasks, heldOut, minTasks, split, seed = 0 }: Files): Promise<Omit<Inspection, 'entry'>> {
  const problems: TrainyardError[] = [];
  const attempt = async <T>(what: () => T | Promise<T>, otherwise: T): Promise<T> => {
    try {
      return await what();
    } catch (thrown) {
      if (!(thrown instanceof TrainyardError)) throw thrown;
      problems.push(thrown);
      return otherwise;
    }
  };
  const none: Dataset = { tasks: [], warnings: [] };
  const read = (source: TaskSource | undefined, name: string, atLeast?: number): Promise<Dataset> =>
    attempt(() => (source === undefined ? none : readDataset(source, { name, minTasks: atLeast })), none);
  const train = await read(tasks, 'tasks', minTasks);
  const held = await read(heldOut, 'heldOut');
  const given: Split = { tasks: train.tasks, heldOut: held.tasks };
  const isSplit = split !== undefined && train.tasks.length > 0;
  const sides = isSplit ? await attempt(() => splitTasks(train.tasks, { share: split, seed, minTasks }), given) : given;
  return { ...sides, warnings: [...train.warnings, ...held.warnings, ...seenBefore(sides)], problems };
}

function seenBefore(sides: Split): Dataset['warnings'] {
  const seen = seenInTraining(sides);
  if (seen === 0) return [];
  const message = `${seen} of ${sides.heldOut.length} held-out tasks ask what a training task asks: success on them says little`;
  return [{ code: 'HELD_OUT_SEEN', message }];
}

/** No problem yet: what is looked over here may be run elsewhere. */
function missingVariables(entry: Entry | undefined): Dataset['warnings'] {
  const { grader } = entry ?? {};
  const missing = grader === undefined ? [] : missingEnv(grader);
  return missing.map((name) => ({
    code: 'GRADER_ENV_MISSING',
    message: `the grader ${grader?.name} needs the environment variable ${name}, which is not set here`,
  }));
}

/** A flow that the entry exports may give way to another one that a task names. */
function problemsOfEntry(entry: Entry | undefined): (tasks: readonly Task[]) => readonly TrainyardError[] {
  if (entry === undefined || !isFlow(entry.workflow)) return () => [];
  const { name } = entry.workflow;
  return (tasks) => flowProblems(tasks, [name, ...flowRegistry().names]);
}
