/**
 * What a call of `train` or `resume` means: settings, entry and tasks, all checked before anything is opened.
 *
 * A run that is taken up again keeps the settings it was begun with. Some may change, because they do not show in what is
 * computed; for the others the run would no longer be the run it was.
 */
import { createHash } from 'node:crypto';
import { basename, dirname, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import { bestVariant, isRunnable } from '../nn/compile.ts';
import { KERNEL_VARIANTS, type KernelVariant } from '../nn/wasm.ts';
import { resumeCommand, shortPath } from './command-line.ts';
import { digestOfFiles, modelDigest } from './digests.ts';
import { type Checked, preflight } from './preflight.ts';
import { isEvaluation, readRunFile } from './run-directory.ts';
import { baseURLOf, TRAIN_DEFAULTS, type TrainRequest, type TrainSettings, trainSettings, withoutUndefined } from './settings.ts';
import { checkSettings } from './settings-check.ts';
import { changedSources, sourcesOf } from './sources.ts';

/** A run to go on with; settings that are given again must agree with it, but for those that may change. */
export type ResumeRequest = Pick<TrainSettings, 'run'> & Partial<TrainSettings>;

export interface RunPlan extends Checked {
  readonly settings: TrainSettings;
  /** For run.json. */
  readonly record: RunRecord;
  readonly isResumed: boolean;
  /** The kernels the run was begun with, where the machine has them: others differ in the last bits. */
  readonly kernels: KernelVariant;
  /** What tells this run from another: everything that shows in what it computes. */
  readonly identity: string;
  /** What a person should know before the run goes on. */
  readonly warnings: readonly { readonly code: string; readonly message: string }[];
}

const recordSchema = z.object({
  settings: z.looseObject({}),
  tasks: z.string(),
  heldOut: z.string(),
  model: z.string(),
  entry: z.string(),
  /** Runs of before this was kept have none. */
  sources: z.record(z.string(), z.string()).optional(),
  kernels: z.enum(KERNEL_VARIANTS),
});
/** The settings with paths made absolute, digests of tasks, model folder, entry file and each file of the user's code, and what computes. */
export type RunRecord = z.infer<typeof recordSchema>;

/** They decide how much is done or how fast, never what. */
const MAY_CHANGE: ReadonlySet<string> = new Set<keyof TrainSettings>([
  'run',
  'steps',
  'threads',
  'concurrency',
  'workflowWorkers',
  'graderWorkers',
  'transcripts',
  'baseURL',
  'maxTime',
  'maxTokens',
  'minTasks',
  'maxErrorShare',
]);

/** Of files that changed. */
const MOST_NAMED = 5;

/** A record has no place for values; of tasks it has the digest. */
const GIVEN_AS_VALUES: ReadonlySet<string> = new Set<keyof TrainSettings>(['entry', 'tasks', 'heldOut']);

export async function planNew(request: TrainRequest): Promise<RunPlan> {
  const settings = trainSettings(request);
  const checked = await preflight(settings);
  const record = await recordOf(settings, checked);
  const { kernels } = record;
  return { settings, ...checked, record, isResumed: false, kernels, identity: identityOf(record) };
}

export async function planResumed(request: ResumeRequest): Promise<RunPlan> {
  const found = readRunFile(request.run);
  if (isEvaluation(found)) {
    throw impossible(
      `${request.run} holds an evaluation, not a training run`,
      `go on with it: ${resumeCommand(request.run, 'eval')}`,
    );
  }
  const parsed = recordSchema.safeParse(found);
  if (!parsed.success) {
    throw impossible(`${request.run}/run.json is not of this version of Trainyard`, 'finish it with the version that began it');
  }
  const begun = parsed.data;
  const { engine } = begun.settings;
  const baseURL = baseURLOf(engine === 'tinker' ? engine : 'embedded', request);
  const settings = checkSettings(settled(begun.settings, { ...request, baseURL }));
  const checked = await preflight(settings);
  const now = await recordOf(settings, checked);
  const asBefore = 'put it back as it was, or begin a new run from one of this one’s checkpoints with --model';
  if (now.tasks !== begun.tasks) throw impossible(`${tasksIn(settings)} have changed since the run began`, asBefore);
  if (now.heldOut !== begun.heldOut) throw impossible('the held-out tasks have changed since the run began', asBefore);
  if (now.model !== begun.model) throw impossible(`the model in ${settings.model} has changed since the run began`, asBefore);
  const kernels = isRunnable(begun.kernels) ? begun.kernels : now.kernels;
  const record = { ...begun, settings: { ...begun.settings, steps: settings.steps }, entry: now.entry, sources: now.sources };
  return {
    settings,
    ...checked,
    record,
    isResumed: true,
    kernels,
    identity: identityOf(begun),
    warnings: [
      ...checked.warnings,
      ...(kernels === begun.kernels
        ? []
        : [{ code: 'OTHER_KERNELS', message: `the run was begun with the ${begun.kernels} kernels, which this machine lacks` }]),
      ...codeWarnings(begun, now),
    ],
  };
}

/** A run may go on with other code; whoever reads its results has to know. */
function codeWarnings(begun: RunRecord, now: RunRecord): RunPlan['warnings'] {
  const changed = changedCode(begun, now);
  if (changed.length === 0) return [];
  const more = changed.length > MOST_NAMED ? ` and ${changed.length - MOST_NAMED} more files` : '';
  const named = `${changed.slice(0, MOST_NAMED).join(', ')}${more}`;
  const message = `since the run began: ${named}; it goes on with the code as it is now, rollouts made before are kept`;
  return [{ code: 'ENTRY_CHANGED', message }];
}

function changedCode(begun: RunRecord, now: RunRecord): readonly string[] {
  // An entry that is given as a value has no files to compare.
  const isComparable = begun.entry !== '' && now.entry !== '';
  if (isComparable && begun.sources !== undefined && now.sources !== undefined) {
    return changedSources(begun.sources, now.sources, now.settings.entry);
  }
  return begun.entry === now.entry ? [] : ['the entry has changed'];
}

function tasksIn({ tasks }: TrainSettings): string {
  return typeof tasks === 'string' ? `the tasks in ${tasks}` : 'the tasks';
}

function identityOf({ settings, entry: _, sources: _sources, ...record }: RunRecord): string {
  const decisive = Object.entries(settings).filter(([name]) => !MAY_CHANGE.has(name));
  return createHash('sha256')
    .update(JSON.stringify({ ...record, settings: decisive.toSorted() }))
    .digest('hex');
}

function settled(begun: RunRecord['settings'], request: ResumeRequest): TrainSettings {
  const given = absolute(withoutUndefined(request));
  for (const [name, value] of Object.entries(given)) {
    if (MAY_CHANGE.has(name) || (GIVEN_AS_VALUES.has(name) && typeof value === 'object')) continue;
    if (isDeepStrictEqual(begun[name], value)) continue;
    throw impossible(
      `the run was begun with ${flagOf(name)} ${shown(begun[name], name)}, now it is ${shown(value, name)}`,
      `leave it out, or begin a new run from one of this one’s checkpoints with --model`,
    );
  }
  // Runs of before there was a choice do not name one.
  const { engine, loraRank, minTasks, weighting, maxErrorShare, graderRetries, graderMemoryMb } = TRAIN_DEFAULTS;
  const later = { engine, loraRank, minTasks, weighting, maxErrorShare, graderRetries, graderMemoryMb };
  const settings = { ...later, ...begun, ...given, run: request.run };
  if (!('entry' in settings)) throw impossible('the run was begun from TypeScript', 'give the same workflow and grader again');
  if (!('tasks' in settings)) throw impossible('the run was begun with tasks given as values', 'give the same tasks again');
  return shownFrom(settings as unknown as TrainSettings);
}

/** As it is written on the command line, where times have a unit of their own. */
export function flagOf(setting: string): string {
  return `--${setting.replace(/Ms$/, '').replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** The value of a setting, as a person reads it. */
export function shown(value: unknown, setting: string): string {
  if (value === undefined) return 'not given';
  return setting.endsWith('Ms') && typeof value === 'number' ? `${value / 1000}s` : JSON.stringify(value);
}

const PATHS = ['entry', 'flows', 'model', 'tasks', 'heldOut'] as const;

/** With paths that hold in every folder. */
export function absolute<T extends Partial<Record<(typeof PATHS)[number], unknown>>>(settings: T): T {
  const paths = PATHS.flatMap((name) => (typeof settings[name] === 'string' ? [[name, resolve(settings[name])]] : []));
  return { ...settings, ...Object.fromEntries(paths) };
}

/** Paths as a person in this folder would write them. */
function shownFrom(settings: TrainSettings): TrainSettings {
  const paths = (['entry', 'flows', 'tasks', 'heldOut'] as const).flatMap((name) => {
    const path = settings[name];
    return typeof path === 'string' ? [[name, shortPath(path)]] : [];
  });
  return { ...settings, ...Object.fromEntries(paths) };
}

async function recordOf(settings: TrainSettings, { entry: found, tasks, heldOut }: Checked): Promise<RunRecord> {
  // The budgets are of one command, not of the run.
  const { run: _run, maxTime: _maxTime, maxTokens: _maxTokens, entry, ...kept } = absolute(settings);
  const values = Object.entries({ entry, ...kept }).filter(
    ([name, value]) => GIVEN_AS_VALUES.has(name) && typeof value === 'object',
  );
  const unnamed = Object.fromEntries(values.map(([name]) => [name, undefined]));
  return {
    settings: JSON.parse(JSON.stringify({ entry, ...kept, ...unnamed })) as RunRecord['settings'],
    tasks: digestOf([JSON.stringify(tasks)]),
    heldOut: digestOf([JSON.stringify(heldOut)]),
    model: await modelDigest(settings.model),
    entry: typeof entry === 'string' ? await digestOfFiles(dirname(entry), [basename(entry)]) : '',
    sources: await sourcesOf(entry, settings.flows, found),
    kernels: bestVariant(),
  };
}

function impossible(message: string, hint?: string): TrainyardError {
  return new TrainyardError('RESUME_IMPOSSIBLE', message, hint === undefined ? {} : { hint });
}
