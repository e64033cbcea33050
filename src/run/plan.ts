/**
 * What a call of `train` or `resume` means: settings, entry and tasks, all checked before anything is opened.
 *
 * A run that is taken up again keeps the settings it was begun with. Some may change, because they do not show in what is
 * computed; for the others the run would no longer be the run it was.
 */
import { createHash } from 'node:crypto';
import { relative, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { bestVariant, isRunnable } from '../nn/compile.ts';
import { KERNEL_VARIANTS, type KernelVariant } from '../nn/wasm.ts';
import { type Checked, preflight } from './preflight.ts';
import { readRunFile } from './run-directory.ts';
import { type TrainRequest, type TrainSettings, trainSettings, withoutUndefined } from './settings.ts';
import { checkSettings } from './settings-check.ts';

/** A run to go on with; settings that are given again must agree with it, but for those that may change. */
export type ResumeRequest = Pick<TrainSettings, 'run'> & Partial<TrainSettings>;

export interface RunPlan extends Checked {
  readonly settings: TrainSettings;
  /** For run.json. */
  readonly record: RunRecord;
  readonly isResumed: boolean;
  /** The kernels the run was begun with, where the machine has them: others differ in the last bits. */
  readonly kernels: KernelVariant;
}

const recordSchema = z.object({
  settings: z.looseObject({}),
  tasks: z.string(),
  heldOut: z.string(),
  kernels: z.enum(KERNEL_VARIANTS),
});
/** The settings with paths made absolute, digests of the task files, and what computes. */
export type RunRecord = z.infer<typeof recordSchema>;

/** They decide how much is done or how fast, never what. */
const MAY_CHANGE: ReadonlySet<string> = new Set<keyof TrainSettings>([
  'run',
  'steps',
  'threads',
  'concurrency',
  'graderWorkers',
  'transcripts',
  'maxTime',
  'maxTokens',
]);

export async function planNew(request: TrainRequest): Promise<RunPlan> {
  const settings = trainSettings(request);
  const checked = await preflight(settings);
  const record = recordOf(settings, checked);
  return { settings, ...checked, record, isResumed: false, kernels: record.kernels };
}

export async function planResumed(request: ResumeRequest): Promise<RunPlan> {
  const parsed = recordSchema.safeParse(readRunFile(request.run));
  if (!parsed.success) {
    throw impossible(`${request.run}/run.json is not of this version of Trainyard`, 'finish it with the version that began it');
  }
  const record = parsed.data;
  const settings = checkSettings(settled(record.settings, request));
  const checked = await preflight(settings);
  const now = recordOf(settings, checked);
  if (now.tasks !== record.tasks) throw impossible(`the tasks in ${settings.tasks} have changed since the run began`);
  if (now.heldOut !== record.heldOut) throw impossible('the held-out tasks have changed since the run began');
  const kernels = isRunnable(record.kernels) ? record.kernels : now.kernels;
  return { settings, ...checked, record, isResumed: true, kernels };
}

function settled(begun: RunRecord['settings'], request: ResumeRequest): TrainSettings {
  const given = absolute(withoutUndefined(request));
  for (const [name, value] of Object.entries(given)) {
    if (MAY_CHANGE.has(name) || (name === 'entry' && typeof value === 'object')) continue;
    if (isDeepStrictEqual(begun[name], value)) continue;
    throw impossible(
      `the run was begun with ${name} ${JSON.stringify(begun[name])}, now it is ${JSON.stringify(value)}`,
      `leave it out, or begin a new run from one of this one’s checkpoints with --model`,
    );
  }
  const settings = { ...begun, ...given, run: request.run };
  if (!('entry' in settings)) throw impossible('the run was begun from TypeScript', 'give the same workflow and grader again');
  return shownFrom(settings as unknown as TrainSettings);
}

const PATHS = ['entry', 'model', 'tasks', 'heldOut'] as const;

function absolute<T extends Partial<TrainSettings>>(settings: T): T {
  const paths = PATHS.flatMap((name) => (typeof settings[name] === 'string' ? [[name, resolve(settings[name])]] : []));
  return { ...settings, ...Object.fromEntries(paths) };
}

/** Paths as a person in this folder would write them. */
function shownFrom(settings: TrainSettings): TrainSettings {
  const short = (path: string): string => {
    const near = relative('.', path);
    return near.startsWith('..') ? path : near;
  };
  const paths = (['entry', 'tasks', 'heldOut'] as const).flatMap((name) => {
    const path = settings[name];
    return typeof path === 'string' ? [[name, short(path)]] : [];
  });
  return { ...settings, ...Object.fromEntries(paths) };
}

function recordOf(settings: TrainSettings, { tasks, heldOut }: Checked): RunRecord {
  // The budgets are of one command, not of the run.
  const { run: _run, maxTime: _maxTime, maxTokens: _maxTokens, entry, ...kept } = absolute(settings);
  return {
    settings: { ...(typeof entry === 'string' ? { entry } : {}), ...kept },
    tasks: digestOf(tasks),
    heldOut: digestOf(heldOut),
    kernels: bestVariant(),
  };
}

function digestOf(tasks: readonly Task[]): string {
  return createHash('sha256').update(JSON.stringify(tasks)).digest('hex');
}

function impossible(message: string, hint?: string): TrainyardError {
  return new TrainyardError('RESUME_IMPOSSIBLE', message, hint === undefined ? {} : { hint });
}
