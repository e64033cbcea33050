/**
 * `trainyard preflight`: shows what an entry contains, or everything that is wrong with it. Imports the entry but runs nothing, unless a
 * probe is asked for: then it runs a few groups and says whether a training has anything to learn from.
 */
import { existsSync } from 'node:fs';
import type { Workflow } from '../core/contracts.ts';
import { printable, printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { withModelPath } from '../engines/model-path.ts';
import { type Checked, type Inspection, inspectFiles } from '../run/preflight.ts';
import { type TrainRequest, trainSettings } from '../settings/check-settings.ts';
import { flat, isChecked, TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { usualHeldOut, usualTasks } from '../settings/settings.ts';
import type { Probe } from '../training/groups.ts';
import { guarded } from './guarded.ts';
import { planText, textLines } from './output/print.ts';
import { amount, asCalled, count, duration, figure, took } from './output/text.ts';
import { entryGiven } from './verbs.ts';

interface PreflightFlags extends Partial<Omit<TrainRequest, 'entry' | 'tasks' | 'heldOut'>> {
  readonly tasks?: string;
  readonly heldOut?: string;
  readonly probe?: boolean;
  readonly json: boolean;
}

/** Exit code 0 if a run could start, 1 if a probe found nothing to learn from, 2 if something must be fixed first. */
export async function preflightCommand(given: string | undefined, flags: PreflightFlags): Promise<number> {
  const { tasks: _, heldOut: __, json, probe: isProbed = false, ...own } = flags;
  const { flow, flows, minTasks = TRAIN_DEFAULTS.minTasks } = own;
  const unused = isProbed ? undefined : flat(own).find(([name]) => !isChecked(name))?.[0];
  if (unused !== undefined) {
    throw new TrainyardError(
      'USAGE',
      `${unused}: expected --probe beside it: without one, nothing is run`,
      'give --probe, or leave it out',
    );
  }
  const entry = entryGiven(given ?? flows, 'trainyard preflight <entry>');
  if (flows !== undefined && flow === undefined) {
    throw new TrainyardError('USAGE', 'flow: expected the name of a flow of the flows file, found none', 'give --flow');
  }
  const ifThere = (file: string): string | undefined => (existsSync(file) ? file : undefined);
  const tasks = flags.tasks ?? (isProbed ? usualTasks(entry) : ifThere(usualTasks(entry)));
  const heldOut = flags.heldOut ?? ifThere(usualHeldOut(entry));
  const request = { ...own, entry, ...defined({ minTasks, flow, flows, tasks, heldOut }) };
  const inspection = await inspectFiles(request);
  const ok = inspection.problems.length === 0;
  const found = foundIn(inspection);
  const { warnings } = inspection;
  if (!json) {
    // Without a grader, its concurrency is meaningless.
    const shown = Object.entries(found).filter(([key]) => key !== 'graderConcurrency' || found['grader'] !== null);
    const problems = inspection.problems.flatMap(problemLines);
    const lines = ok
      ? [readyLine(inspection), ...shown.map(lineOf)]
      : [`${count(inspection.problems.length, 'problem')}:`, ...problems];
    const warned = warnings.map(({ code, message }) => `Warning ${code}: ${message}`);
    for (const line of [...lines, ...warned]) console.log(printable(line));
  }
  const probed = ok && isProbed ? await probeOf(request, inspection as Checked, json) : undefined;
  if (json) {
    const problems = inspection.problems.map(({ code, message, hint }) => ({ code, message, hint }));
    console.log(JSON.stringify({ type: 'preflight', ok, problems, warnings, found, probe: probed }));
  } else if (probed !== undefined) for (const line of probeLines(probed, request)) console.log(printable(line));
  return ok ? (probed?.missing === undefined ? 0 : 1) : 2;
}

async function probeOf(request: TrainRequest, checked: Checked, json: boolean): Promise<Probe> {
  const settings = trainSettings(await withModelPath(request));
  const { probe } = await import('../training/groups.ts');
  const tell = textLines(json ? process.stderr : process.stdout);
  return await guarded(tell, { steps: false }, async ({ stop }) => await probe(settings, checked, { stop, tell }));
}

function probeLines(
  { tasks, rollouts, missing, answers, run, plan, ...probed }: Probe,
  request: TrainRequest,
): readonly string[] {
  const line = (label: string, text: string): string => `  ${label.padEnd(WIDTH)}${text}`;
  const each = rollouts / tasks.length;
  const { model, steps, groupsPerStep, group } = { ...TRAIN_DEFAULTS, ...defined(request) };
  const { promptTokens: prompt, context } = probed;
  const left = prompt < context ? `${context - prompt} left to answer` : `${prompt - context + 1} too many`;
  const costs = run.cost === undefined ? '' : `, cost ${figure(run.cost, 2)}`;
  const used = `about ${amount(run.calls)} model calls, ${amount(run.promptTokens)} prompt and ${amount(run.sampledTokens)} sampled tokens${costs}`;
  const ofRun = `about ${amount(run.rollouts)} rollouts, evaluations included, in ${duration(run.seconds)}`;
  return [
    `Probe of ${count(tasks.length, 'task')} × ${each} rollouts:`,
    ...tasks.map(({ id, success, meanReward, hasSignal }) => {
      const reward = meanReward === null ? 'none graded' : `mean reward ${figure(meanReward, 2)}`;
      const solved = `${Math.round(success * each)} of ${each} solved`;
      return line('task', `${solved}, ${reward}${hasSignal ? '' : ', no signal'}: ${printableLine(id)}`);
    }),
    line('signal', `${probed.withSignal} of ${count(tasks.length, 'group')} have rewards that differ`),
    ...(answers === undefined ? [] : [line('without signal', answers)]),
    line('sampled', `${Math.round(probed.sampledTokens)} tokens per rollout`),
    line('longest prompt', `${prompt} tokens of a context of ${context}: ${left}`),
    line('time', `${took(probed.seconds)} per rollout, with others beside it`),
    line('a whole run', `${steps} steps of ${groupsPerStep} × ${group}: ${ofRun}; training comes on top and is not measured`),
    line('', used),
    ...(plan === undefined ? [] : [line('model', planText(model, plan))]),
    missing
      ? `Nothing to learn from: ${missing.message}\n  ${asCalled(missing.hint ?? '')}`
      : 'There is something to learn from.',
  ];
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
