/**
 * Reads the user's entry and tasks, and reports all problems at once, before anything is opened or spent. Imports the entry but runs
 * nothing. Also computes digests of the user's code per file, so that changes can be named.
 */
import { stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, extname, resolve } from 'node:path';
import type { Grader } from '../core/contracts.ts';
import { missingEnv } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import type { Task } from '../core/types.ts';
import { digestsBeside, fileOf, type Sources, sourceDigests } from '../processes/user-modules.ts';
import { type Entry, inspectEntry, type ModuleExport, together } from '../rollout/discovery.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { shortPath } from '../settings/settings.ts';
import type { TaskSource } from '../tasks/rows.ts';
import { namedLikeAnswer } from '../tasks/rules.ts';
import { type Dataset, readDataset, type Split, seenInTraining, splitTasks } from '../tasks/tasks.ts';

/** `flow`: the name of the flow that serves as workflow. `flows`: the file that lists it. */
type Files = Pick<TrainSettings, 'entry'> & {
  readonly [Name in 'flow' | 'flows' | 'isolation' | 'tasks' | 'heldOut' | 'minTasks' | 'split' | 'seed']?:
    | TrainSettings[Name]
    | undefined;
};

type Warnings = Dataset['warnings'];

export interface Checked {
  readonly entry: Entry;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
  readonly warnings: Warnings;
}

export interface Inspection extends Omit<Checked, 'entry'> {
  readonly entry?: Entry | undefined;
  readonly problems: readonly TrainyardError[];
}

/** Throws a single problem as is; several as one error with the code of the first. */
export async function preflight(files: Files): Promise<Checked> {
  const { entry, problems, ...checked } = await inspectFiles(files);
  if (entry !== undefined && problems.length === 0) return { entry, ...checked };
  throw together(problems);
}

export async function inspectFiles(files: Files): Promise<Inspection> {
  const { entry: given, problems: ofEntry } = await inspectGiven(files);
  const entry = given && files.isolation ? { ...given, workflow: { ...given.workflow, isolation: files.isolation } } : given;
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

/** flows-file.ts finds flows that are chosen by name. */
async function inspectGiven({ entry, flow, flows }: Files): Promise<Pick<Inspection, 'entry' | 'problems'>> {
  if (typeof entry !== 'string') return { entry, problems: [] };
  if (flow !== undefined) return await (await import('../shapes/flows/flows-file.ts')).inspectFlow(entry, flow, flows);
  const found = await inspectEntry(entry);
  if (found.problems.every(({ code }) => code !== 'WORKFLOW_NOT_FOUND')) return found;
  const { withFlowHint } = await import('../shapes/flows/flows-file.ts');
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
  const seen = seenInTraining(sides);
  const message = `${seen} of ${sides.heldOut.length} held-out tasks ask what a training task asks: success on them says little`;
  const seenBefore: Warnings = seen === 0 ? [] : [{ code: 'HELD_OUT_SEEN', message }];
  return { ...sides, warnings: [...train.warnings, ...held.warnings, ...seenBefore], problems };
}

/** Only a warning, since the run may happen in another environment. */
function missingVariables({ grader }: Partial<Entry> = {}): Warnings {
  const missing = grader === undefined ? [] : missingEnv(grader);
  return missing.map((name) => ({
    code: 'GRADER_ENV_MISSING',
    message: `the grader ${grader?.name} needs the environment variable ${name}, which is not set here`,
  }));
}

const NUMBER = /^\s*[-+]?(\d+|\d{1,3}(,\d{3})+)?(\.\d+)?\s*$/;
const UNUSED =
  'tasks have answers, and there is no grader: a workflow is never given them; fine if its rewards need none, or if an AsyncRewardWrapper computes them, whose function is given data.answer (without isolation); else export a grader, which is given task.answer';

/**
 * Warns about answers that are missing, unused or perhaps of the wrong type. Graders cannot be asked what they need, so it never refuses.
 */
export function answerWarnings(
  grader: Grader | undefined,
  sources: Pick<Files, 'tasks' | 'heldOut'>,
  { tasks, heldOut }: Split,
): Warnings {
  if (grader === undefined) return [...tasks, ...heldOut].some(hasAnswer) ? [{ code: 'ANSWERS_UNUSED', message: UNUSED }] : [];
  const numbers = isCsvOfNumbers(sources.tasks, tasks) || isCsvOfNumbers(sources.heldOut, heldOut);
  const message = 'all answers of a CSV file look like numbers, and are texts: compare with String(…), or use numberMatch';
  const asTexts: Warnings = numbers ? [{ code: 'NUMBERS_ARE_TEXTS', message }] : [];
  return [...withoutAnswer(tasks, 'task'), ...withoutAnswer(heldOut, 'held-out task'), ...asTexts];
}

function hasAnswer({ answer }: Task): boolean {
  return answer !== undefined && answer !== null;
}

function withoutAnswer(tasks: readonly Task[], what: string): Warnings {
  const without = tasks.filter((task) => !hasAnswer(task)).length;
  if (without === 0) return [];
  // The metadata then holds what the grader needs.
  const named = tasks.map((task) => (hasAnswer(task) ? undefined : namedLikeAnswer(task))).find((path) => path !== undefined);
  if (named !== undefined) {
    const where = `${named} is named like one, and the workflow reads metadata`;
    return [
      { code: 'NO_ANSWERS', message: `a ${what} has no answer, but ${where}: give it as "answer", which only the grader reads` },
    ];
  }
  if (without === tasks.length && tasks.every(({ metadata }) => metadata !== undefined)) return [];
  const are = without === tasks.length ? `no ${what} has an answer` : `${without} of ${tasks.length} ${what}s have no answer`;
  return [{ code: 'NO_ANSWERS', message: `${are}, and there is a grader: fine if it does not need one, else add "answer"` }];
}

function isCsvOfNumbers(source: TaskSource | undefined, tasks: readonly Task[]): boolean {
  if (typeof source !== 'string' || extname(source).toLowerCase() !== '.csv') return false;
  const answers = tasks.filter(hasAnswer).map(({ answer }) => answer);
  return answers.length > 0 && answers.every((answer) => typeof answer === 'string' && /\d/.test(answer) && NUMBER.test(answer));
}

/** Digests of the user's code by path, relative to the entry's folder. Empty if the entry was given as a value. */
export async function sourcesOf(given: unknown, flows: string | undefined, entry: Entry): Promise<Record<string, string>> {
  if (typeof given !== 'string') return {};
  const modules = [entry.workflowModule, entry.graderModule].flatMap((module) => (module && fileOf(module.url)) ?? []);
  const files = [resolve(given), ...(flows === undefined ? [] : [resolve(flows)]), ...modules];
  return { ...(await sourceDigests(dirname(resolve(given)), [...new Set(files)])) };
}

/** Files beside an entry, with the versions of packages that its modules import. */
interface Beside {
  /** Of one folder on one machine: what its rollouts write there is everyone's at once. */
  readonly folder: string;
  readonly files: Sources;
}

/** `without`: what else was given, such as tasks. */
export async function besideOf(entry: string, sources: Sources, without: readonly unknown[] = []): Promise<Beside> {
  const folder = dirname(resolve(entry));
  const modules = Object.keys(sources).map((file) => resolve(folder, file));
  const given = without.flatMap((path) => (typeof path === 'string' ? [resolve(path)] : []));
  const { dev, ino } = await stat(folder);
  const files = await digestsBeside(folder, modules, [...modules, ...given]);
  return { folder: digestOf([`${hostname()} ${dev} ${ino}`]), files };
}

/** Of what both have: a worker may lack what its rollouts do not read. */
export function changedBeside(before: Sources, after: Sources, entry: string): readonly string[] {
  const both = Object.keys(before).filter((file) => after[file] !== undefined);
  const these = (files: Sources): Sources => Object.fromEntries(both.map((file) => [file, files[file]!]));
  return changedSources(these(before), these(after), entry);
}

/** Digests, when called, what a process imports for this export. Undefined if the module is not a file. */
export function sourcesOfModule(module: ModuleExport | undefined): (() => Promise<Sources>) | undefined {
  const file = module && fileOf(module.url);
  return file === undefined ? undefined : () => sourceDigests('.', [file]);
}

/** Describes each changed file, with its path relative to the working directory. */
export function changedSources(before: Sources, after: Sources, entry: unknown): readonly string[] {
  const folder = typeof entry === 'string' ? dirname(entry) : '.';
  const files = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((file) => before[file] !== after[file]);
  return files.map((file) => {
    const how = before[file] === undefined ? 'is new' : after[file] === undefined ? 'is gone' : 'has changed';
    return `${shortPath(resolve(folder, file))} ${how}`;
  });
}
