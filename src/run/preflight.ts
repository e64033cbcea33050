/**
 * Everything that can be wrong with what the user wrote is found here, all of it at once, before anything is opened or spent.
 */

import { flowRegistry } from '../authoring/agent-flow/flow-registry.ts';
import { TrainyardError } from '../core/errors.ts';
import { isFlow } from '../core/flow-door.ts';
import type { Task } from '../core/types.ts';
import { readTasks } from '../dataset/tasks.ts';
import { type Entry, together } from '../rollout/discovery.ts';
import { flowProblems, inspectFlow, inspectUnnamed } from './flow-entry.ts';

export interface Files {
  readonly entry: string | Entry;
  /** The flow that is the workflow, by name, and the file that lists it. */
  readonly flow?: string | undefined;
  readonly flows?: string | undefined;
  readonly tasks?: string | undefined;
  readonly heldOut?: string | undefined;
}

export interface Checked {
  readonly entry: Entry;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
}

/** What could be read, and what is wrong with the rest. */
export interface Inspection {
  readonly entry?: Entry | undefined;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
  readonly problems: readonly TrainyardError[];
}

/** One mistake is thrown as it is; several as one error with the first one's code. */
export async function preflight(files: Files): Promise<Checked> {
  const { entry, tasks, heldOut, problems } = await inspectFiles(files);
  if (entry !== undefined && problems.length === 0) return { entry, tasks, heldOut };
  throw together(problems);
}

/** Imports the entry, and runs nothing. */
export async function inspectFiles(files: Files): Promise<Inspection> {
  const problems: TrainyardError[] = [];
  const tasksIn = async (path: string | undefined): Promise<readonly Task[]> => {
    try {
      return path === undefined ? [] : await readTasks(path);
    } catch (thrown) {
      if (!(thrown instanceof TrainyardError)) throw thrown;
      problems.push(thrown);
      return [];
    }
  };
  const { flow, entry } = files;
  const isChosen = flow !== undefined && typeof entry === 'string';
  const chosen = isChosen ? await inspectFlow({ entry, flow, flows: files.flows }) : undefined;
  const found = chosen ?? (typeof entry === 'string' ? await inspectUnnamed(entry) : { entry, problems: [] });
  const tasks = await tasksIn(files.tasks);
  const heldOut = await tasksIn(files.heldOut);
  const problemsOf = chosen?.problemsOf ?? problemsOfEntry(found.entry);
  problems.push(...problemsOf([...tasks, ...heldOut]));
  return { entry: found.entry, tasks, heldOut, problems: [...found.problems, ...problems] };
}

/** A flow that the entry exports may give way to another one that a task names. */
function problemsOfEntry(entry: Entry | undefined): (tasks: readonly Task[]) => readonly TrainyardError[] {
  if (entry === undefined || !isFlow(entry.workflow)) return () => [];
  const { name } = entry.workflow;
  return (tasks) => flowProblems(tasks, [name, ...flowRegistry().names]);
}
