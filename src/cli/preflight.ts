/** `trainyard preflight`: shows what an entry contains, or everything that is wrong with it. Imports the entry but runs nothing. */
import { existsSync } from 'node:fs';
import type { Workflow } from '../core/contracts.ts';
import { printable } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { type Inspection, inspectFiles } from '../run/preflight.ts';
import { usualHeldOut, usualTasks } from '../run/settings.ts';
import { asCalled, count } from './text.ts';
import { entryGiven } from './verbs.ts';

interface PreflightFlags extends Partial<Readonly<Record<'flow' | 'flows' | 'tasks' | 'heldOut', string>>> {
  readonly minTasks?: number;
  readonly json: boolean;
}

/** Exit code 0 if a run could start, 2 if something must be fixed first. */
export async function preflightCommand(given: string | undefined, flags: PreflightFlags): Promise<number> {
  const { flow, flows, minTasks } = flags;
  const entry = entryGiven(given ?? flows, 'trainyard preflight <entry>');
  if (flows !== undefined && flow === undefined) {
    throw new TrainyardError('USAGE', 'flow: expected the name of a flow of the flows file, found none', { hint: 'give --flow' });
  }
  const ifThere = (file: string): string | undefined => (existsSync(file) ? file : undefined);
  const tasks = flags.tasks ?? ifThere(usualTasks(entry));
  const heldOut = flags.heldOut ?? ifThere(usualHeldOut(entry));
  const inspection = await inspectFiles({ entry, flow, flows, tasks, heldOut, minTasks });
  const ok = inspection.problems.length === 0;
  const found = foundIn(inspection);
  const { warnings } = inspection;
  if (flags.json) {
    const problems = inspection.problems.map(({ code, message, hint }) => ({ code, message, hint }));
    console.log(JSON.stringify({ type: 'preflight', ok, problems, warnings, found }));
  } else {
    // Without a grader, its concurrency is meaningless.
    const shown = Object.entries(found).filter(([key]) => key !== 'graderConcurrency' || found['grader'] !== null);
    const problems = inspection.problems.flatMap(problemLines);
    const lines = ok
      ? [readyLine(inspection), ...shown.map(lineOf)]
      : [`${count(inspection.problems.length, 'problem')}:`, ...problems];
    const warned = warnings.map(({ code, message }) => `Warning ${code}: ${message}`);
    for (const line of [...lines, ...warned]) console.log(printable(line));
  }
  return ok ? 0 : 2;
}

function foundIn({ entry, tasks, heldOut }: Inspection): Readonly<Record<string, Json>> {
  if (entry === undefined) return {};
  const { workflow, grader, shape } = entry;
  return {
    workflow: workflow.name,
    shape: shape ?? null,
    config: configName(workflow),
    roles: Object.fromEntries(Object.entries(workflow.roles).map(([name, { trainable }]) => [name, trainable])),
    concurrency: workflow.concurrency ?? null,
    isolation: workflow.isolation,
    grader: grader?.name ?? null,
    graderConcurrency: grader?.concurrency ?? null,
    tasks: tasks.length,
    heldOut: heldOut.length,
  };
}

function configName({ config }: Workflow): string | null {
  if (config === undefined || config === null) return null;
  return config.constructor?.name ?? 'object';
}

const LABELS: Readonly<Record<string, string>> = {
  concurrency: 'at once',
  graderConcurrency: 'gradings at once',
  heldOut: 'held-out tasks',
  shape: 'written as',
};
const ABSENT: Readonly<Record<string, string>> = {
  shape: 'an agent flow',
  config: 'none',
  concurrency: 'as many rollouts as --concurrency allows',
  grader: 'none: run must return rewards',
  graderConcurrency: 'one for each process of --grader-workers',
  tasks: 'none: put train.jsonl beside the entry, or give --tasks',
  heldOut: 'none: put held-out.jsonl beside the entry, or give --held-out; without them a training is not measured',
};
const WIDTH = 18;

/** A valid entry may still lack tasks to train on. */
function readyLine({ tasks, heldOut }: Inspection): string {
  if (tasks.length > 0) return 'Ready:';
  return heldOut.length > 0
    ? 'Ready to evaluate; there are no tasks to train on:'
    : 'The entry is in order; there are no tasks yet:';
}

function lineOf([key, found]: [string, Json]): string {
  const value = (key === 'tasks' || key === 'heldOut') && found === 0 ? null : found;
  return `  ${(LABELS[key] ?? key).padEnd(WIDTH)}${key === 'roles' ? rolesText(value as Record<string, boolean>) : String(value ?? ABSENT[key])}`;
}

function rolesText(roles: Readonly<Record<string, boolean>>): string {
  const names = Object.entries(roles).map(([name, trained]) => (trained ? name : `${name} (not trained)`));
  return names.join(', ') || 'not declared: any that run asks for';
}

function problemLines({ code, message, hint }: Inspection['problems'][number]): string[] {
  return [`  ${code}: ${message}`, ...(hint === undefined ? [] : [`    ${asCalled(hint)}`])];
}
