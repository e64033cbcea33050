/**
 * Everything that can be wrong with what the user wrote is found here, all of it at once, before anything is opened or spent.
 */
import { missingEnv } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import { type Split, seenInTraining, splitTasks } from '../dataset/split.ts';
import { type Dataset, readDataset } from '../dataset/tasks.ts';
import { type Entry, inspectEntry, together } from '../rollout/discovery.ts';
import { answerWarnings } from './answer-warnings.ts';

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
  const { entry, problems: ofEntry } = await inspectGiven(files);
  const { tasks, heldOut, warnings, problems } = await inspectTasks(files);
  const ofTasks = entry?.workflow.checkTasks?.([...tasks, ...heldOut]) ?? [];
  const ofAnswers = entry === undefined ? [] : answerWarnings(entry.grader, files, { tasks, heldOut });
  return {
    entry,
    tasks,
    heldOut,
    warnings: [...warnings, ...missingVariables(entry), ...ofAnswers],
    problems: [...ofEntry, ...problems, ...ofTasks],
  };
}

/** A flow that is chosen by its name is found by its own room. */
async function inspectGiven({ entry, flow, flows }: Files): Promise<Pick<Inspection, 'entry' | 'problems'>> {
  if (typeof entry !== 'string') return { entry, problems: [] };
  if (flow !== undefined) return await (await import('../flows/flows-file.ts')).inspectFlow(entry, flow, flows);
  const found = await inspectEntry(entry);
  if (found.problems.every(({ code }) => code !== 'WORKFLOW_NOT_FOUND')) return found;
  const { withFlowHint } = await import('../flows/flows-file.ts');
  return { ...found, problems: found.problems.map(withFlowHint) };
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
