/**
 * Turns a call of `train`, `resume`, `evaluateOnly` or `resumeEvaluation` into a plan: settings, entry and tasks, checked before anything
 * is opened. run.json records everything that determines the result. A resumed training keeps its settings, except those that do not affect
 * what is computed. An evaluation resumes only if everything is unchanged, its code included; otherwise its rollouts would measure
 * different things.
 */
import { hash } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { defined, digestOf } from '../core/json.ts';
import type { Task } from '../core/types.ts';
import { modelDigest } from '../engines/checkpoint.ts';
import { bestVariant, isRunnable } from '../engines/embedded/compile.ts';
import { KERNEL_VARIANTS, type KernelVariant } from '../engines/embedded/wasm.ts';
import { withModelPath } from '../engines/model-path.ts';
import { checkModelNamed } from '../engines/open-policy.ts';
import type {
  EvaluationRequest,
  EvaluationSettings,
  RunSettings,
  TrainFromRequest,
  TrainRequest,
  TrainSettings,
} from '../settings/check-settings.ts';
import { baseURLOf, checkSettings, evaluationSettings, trainSettings } from '../settings/check-settings.ts';
import { rowsOf } from '../settings/row-ranges.ts';
import { flat, nested, rowOf, TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { type EngineName, isApi, type LossName, resumeCommand, shortPath } from '../settings/settings.ts';
import { withoutPassword } from '../store/url.ts';
import { isEvaluation, readRunFile, refuseSft } from './directory.ts';
import { type Checked, changedSources, preflight, sourcesOf } from './preflight.ts';
import { withSettingsOf } from './settings-of-run.ts';

/** Settings given again must match the run's, except those that may change. */
export type ResumeRequest = Pick<TrainSettings, 'run'> & Partial<TrainRequest>;
export type EvaluationResumeRequest = { readonly run: string } & Partial<EvaluationRequest>;

interface Plan<Settings, Record> extends Pick<Checked, 'entry' | 'warnings'> {
  readonly settings: Settings;
  readonly record: Record;
  readonly isResumed: boolean;
  /** The kernels the run began with, if the machine supports them: others differ in the last bits. */
  readonly kernels: KernelVariant;
}

export interface TrainPlan extends Plan<TrainSettings, TrainRecord>, Checked {
  /** Identifies the run: a digest of everything that affects what it computes. */
  readonly identity: string;
  /** For a run that named no loss, where the trainer cannot train the usual one. */
  readonly otherLoss?: LossName | undefined;
}

export interface EvaluationPlan extends Plan<EvaluationSettings, EvaluationRecord> {
  readonly tasks: readonly NumberedTask[];
}

/** A held-out task and its row in the file, from 1. */
export interface NumberedTask {
  readonly task: Task;
  readonly number: number;
}

/** Per evaluation, because all results are held in memory. */
const MOST_ROLLOUTS = 1_000_000;

const trainRecordSchema = z.object({
  settings: z.looseObject({}),
  tasks: z.string(),
  heldOut: z.string(),
  model: z.string(),
  /** None of an entry that was given as a value. */
  sources: z.record(z.string(), z.string()),
  kernels: z.enum(KERNEL_VARIANTS),
});
const evaluationRecordSchema = z.object({
  kind: z.literal('evaluation'),
  settings: z.looseObject({ n: z.int().min(1).max(MOST_ROLLOUTS), temperature: z.number() }),
  tasks: z.array(z.object({ row: z.int().min(1), id: z.string(), digest: z.string() })),
  model: z.string(),
  sources: z.record(z.string(), z.string()),
  kernels: z.enum(KERNEL_VARIANTS),
});
/** Settings with absolute paths; digests of tasks, model folder and code files; and the kernels. */
type TrainRecord = z.infer<typeof trainRecordSchema>;
type EvaluationRecord = z.infer<typeof evaluationRecordSchema>;

const MOST_NAMED = 5;

export async function planTraining(given: TrainRequest | TrainFromRequest): Promise<TrainPlan> {
  const request = given.from === undefined ? (given as TrainRequest) : withSettingsOf(given as TrainFromRequest);
  const settings = trainSettings(await withModelPath(request));
  const checked = await preflight(settings);
  const record = await trainRecord(settings, checked);
  const { loss, isLevel, isAction, isCap, isFloor } = request;
  const otherLoss = (loss ?? isLevel ?? isAction ?? isCap ?? isFloor) === undefined ? TRAIN_DEFAULTS.loss : undefined;
  return { settings, ...checked, record, isResumed: false, kernels: record.kernels, identity: identityOf(record), otherLoss };
}

/** The same plan for another loss. */
export function withLoss(plan: TrainPlan, loss: LossName): TrainPlan {
  const record = { ...plan.record, settings: { ...plan.record.settings, loss } };
  return { ...plan, settings: { ...plan.settings, loss }, record, identity: identityOf(record) };
}

/** The same plan for another first policy, such as a checkpoint. */
export async function startingWith(plan: TrainPlan, model: string): Promise<TrainPlan> {
  const settings = { ...plan.settings, model: resolve(model) };
  const record = await trainRecord(settings, plan);
  return { ...plan, settings, record, identity: identityOf(record) };
}

export async function planResumedTraining(request: ResumeRequest): Promise<TrainPlan> {
  const begun = trainRecordIn(request.run);
  const settings = checkSettings('train', await withModelPath(resumedSettings(begun.settings, await withModelPath(request))));
  const checked = await preflight(settings);
  const now = await trainRecord(settings, checked);
  const tasks = typeof settings.tasks === 'string' ? `the tasks in ${settings.tasks}` : 'the tasks';
  const changed =
    (now.tasks !== begun.tasks && `${tasks} have`) ||
    (now.heldOut !== begun.heldOut && 'the held-out tasks have') ||
    (now.model !== begun.model && `the model in ${settings.model} has`);
  if (changed) {
    const hint = 'put it back as it was, or begin a new run from one of this one’s checkpoints with --model';
    throw impossible(`${changed} changed since the run began`, hint);
  }
  const record = { ...begun, settings: { ...begun.settings, steps: settings.steps }, sources: now.sources };
  return {
    settings,
    ...checked,
    record,
    isResumed: true,
    identity: identityOf(begun),
    ...keptKernels(begun.kernels, 'the run', [...checked.warnings, ...codeWarnings(begun, now)]),
  };
}

export async function planEvaluation(request: EvaluationRequest): Promise<EvaluationPlan> {
  await checkModelNamed(request);
  const settings = evaluationSettings(await withModelPath(request));
  const { entry, heldOut, warnings } = await preflight(settings);
  const { n, temperature } = settings;
  const tasks = rowsOf(settings.rows, heldOut.length).map((row) => ({ task: heldOut[row - 1] as Task, number: row }));
  if (tasks.length * n > MOST_ROLLOUTS) {
    const found = `found ${tasks.length} tasks × ${n} = ${tasks.length * n}`;
    const hint = 'give a smaller --n, or fewer --rows';
    throw new TrainyardError('USAGE', `n: expected at most ${MOST_ROLLOUTS} rollouts in all, ${found}`, hint);
  }
  const record = await evaluationRecord(settings, entry, tasks);
  const message = `${n} rollouts of a task at temperature 0 are most likely all the same: give --temperature 1`;
  const alike: Checked['warnings'] = n > 1 && temperature === 0 ? [{ code: 'SAME_ROLLOUTS', message }] : [];
  return { settings, entry, tasks, record, isResumed: false, kernels: record.kernels, warnings: [...warnings, ...alike] };
}

export async function planResumedEvaluation(request: EvaluationResumeRequest): Promise<EvaluationPlan> {
  const { run } = request;
  refuseSft(run);
  const begun = evaluationIn(run);
  if (begun === undefined)
    throw impossible(`${run} holds a training run, not an evaluation`, `go on with it: ${resumeCommand(run)}`);
  const merged = absolute(await withModelPath(withGroups(begun.settings, request, { run })));
  requireValues(merged, 'the evaluation', 'heldOut');
  const settings = evaluationSettings(merged as EvaluationRequest);
  const { entry, heldOut, warnings } = await preflight(settings);
  const tasks = begun.tasks.flatMap(({ row }) => heldOut.slice(row - 1, row).map((task) => ({ task, number: row })));
  const isWhole = settings.rows !== undefined || heldOut.length === begun.tasks.length;
  const changes = [
    ...changesIn(begun, await evaluationRecord(settings, entry, tasks)),
    ...(isWhole ? [] : [`the task file has ${heldOut.length} rows, it had ${begun.tasks.length}`]),
    ...(settings.store === undefined && isStoreGone(run) ? ['store.sqlite is gone, and every rollout with it'] : []),
  ];
  if (changes.length > 0) {
    const message = changes.length === 1 ? changes[0]! : `${changes.length} things are not as they were: ${changes.join('; ')}`;
    throw impossible(message, 'put it back as it was, or begin a new evaluation');
  }
  return { settings, entry, tasks, record: begun, isResumed: true, ...keptKernels(begun.kernels, 'it', warnings) };
}

/** What of a run is needed to run or grade one of its rollouts again. */
export type ReplayPlan = Pick<TrainPlan, 'settings' | 'entry' | 'tasks' | 'heldOut' | 'warnings'>;

/** With the code and tasks as they are now: a change is only told, since it may be what is tried out. Looks at no model. */
export async function planReplay(
  run: string,
  given: Partial<Pick<TrainSettings, 'entry' | 'isolation' | 'store'>> = {},
): Promise<ReplayPlan> {
  const evaluation = evaluationIn(run);
  const begun = evaluation ?? trainRecordIn(run);
  const merged = withGroups(TRAIN_DEFAULTS, begun.settings, given, { run });
  requireValues(merged, 'the run', evaluation ? 'heldOut' : 'tasks');
  const settings = merged as unknown as TrainSettings;
  const { entry, tasks, heldOut } = await preflight(settings);
  const sources = given.entry === undefined ? await sourcesOf(settings.entry, settings.flows, entry) : undefined;
  const ofCode = sources ? changedSources(begun.sources, sources, settings.entry) : [];
  const digest = (of: unknown): string => digestOf([JSON.stringify(of)]);
  const areTasksSame = evaluation
    ? evaluation.tasks.every(({ row, digest: was }) => digest(heldOut[row - 1]) === was)
    : digest(tasks) === (begun as TrainRecord).tasks;
  const changed = [...ofCode, ...(areTasksSame ? [] : ['the tasks have changed'])];
  const message = `since the run began: ${listed(changed, ' more files')}; code and tasks are taken as they are now`;
  return { settings, entry, tasks, heldOut, warnings: changed.length === 0 ? [] : [{ code: 'ENTRY_CHANGED', message }] };
}

/** Undefined for a training run. */
export function evaluationIn(run: string): EvaluationRecord | undefined {
  const found = readRunFile(run);
  const parsed = evaluationRecordSchema.safeParse(found);
  if (parsed.success) return parsed.data;
  if (!isEvaluation(found)) return undefined;
  const hint = 'put it back as it was, or use the version that wrote it';
  throw impossible(`${run}/run.json is damaged, or not of this version of Trainyard`, hint);
}

function trainRecordIn(run: string): TrainRecord {
  refuseSft(run);
  const found = readRunFile(run);
  if (isEvaluation(found)) {
    throw impossible(`${run} holds an evaluation, not a training run`, `go on with it: ${resumeCommand(run, 'eval')}`);
  }
  const parsed = trainRecordSchema.safeParse(found);
  if (parsed.success) return parsed.data;
  throw impossible(`${run}/run.json is not of this version of Trainyard`, 'finish it with the version that began it');
}

/** The run's original settings, with new values for those that may change. */
function resumedSettings(begun: TrainRecord['settings'], request: ResumeRequest): TrainSettings {
  const baseURL = baseURLOf(begun['engine'] === 'tinker' ? 'tinker' : 'embedded', request);
  const given = absolute(defined({ ...request, baseURL }));
  const before = new Map(flat(begun));
  for (const [name, value] of flat(given)) {
    if ((mayChange(name) && !isMoved(name, begun)) || (canBeValue(name) && typeof value === 'object')) continue;
    const was = before.get(name);
    if (value === undefined || isDeepStrictEqual(was, value)) continue;
    const message = `the run was begun with ${name} ${shown(was, name)}, now it is ${shown(value, name)}`;
    throw impossible(message, 'leave it out, or begin a new run from one of this one’s checkpoints with --model');
  }
  // Defaults for settings that are not recorded where they are not used.
  const settings = withGroups(TRAIN_DEFAULTS, begun, given, { run: request.run });
  requireValues(settings, 'the run', 'tasks');
  // Shown relative to the working directory.
  for (const name of ['entry', 'flows', 'tasks', 'heldOut']) {
    const path = settings[name];
    if (typeof path === 'string') settings[name] = shortPath(path);
  }
  return settings as unknown as TrainSettings;
}

/** Later ones win, also within groups such as `limits`. */
function withGroups(...all: readonly object[]): Record<string, unknown> {
  return { ...nested(all.flatMap((values) => flat(defined(values)))) };
}

/** Entries and tasks that were passed as values must be passed again. */
function requireValues(settings: object, what: string, tasks: 'tasks' | 'heldOut'): void {
  if (!('entry' in settings))
    throw impossible(
      `${what} was begun from TypeScript`,
      'give the same workflow and grader again; to replay one rollout, --entry',
    );
  if (!(tasks in settings)) throw impossible(`${what} was begun with tasks given as values`, 'give the same tasks again');
}

/** Keeps the original kernels if the machine supports them; otherwise warns. */
function keptKernels(begun: KernelVariant, what: string, warnings: Checked['warnings']): Pick<TrainPlan, 'kernels' | 'warnings'> {
  if (isRunnable(begun)) return { kernels: begun, warnings };
  const message = `${what} was begun with the ${begun} kernels, which this machine lacks`;
  return { kernels: bestVariant(), warnings: [...warnings, { code: 'OTHER_KERNELS', message }] };
}

/** Training may continue with changed code, but its readers must know. */
function codeWarnings(begun: TrainRecord, now: TrainRecord): Checked['warnings'] {
  const isValue = ({ sources }: TrainRecord): boolean => Object.keys(sources).length === 0;
  const isComparable = isValue(begun) === isValue(now);
  const changed = isComparable ? changedSources(begun.sources, now.sources, now.settings['entry']) : ['the entry has changed'];
  if (changed.length === 0) return [];
  const message = `since the run began: ${listed(changed, ' more files')}; it goes on with the code as it is now, rollouts made before are kept`;
  return [{ code: 'ENTRY_CHANGED', message }];
}

/** `a, b and 3 more`. */
function listed(all: readonly unknown[], more = ' more'): string {
  const rest = all.length - MOST_NAMED;
  return `${all.slice(0, MOST_NAMED).join(', ')}${rest > 0 ? ` and ${rest}${more}` : ''}`;
}

/** The address of a database may change, but rollouts in a file are not in a database. */
const isMoved = (name: string, begun: Readonly<Record<string, unknown>>): boolean =>
  name === 'store' && begun[name] === undefined;

/** The store is created before the first event. Events without a store mean that it was removed. */
function isStoreGone(run: string): boolean {
  const size = (name: string): number => (existsSync(join(run, name)) ? statSync(join(run, name)).size : 0);
  return size('events.jsonl') > 0 && size('store.sqlite') + size('store.sqlite-wal') === 0;
}

/** Describes every change that affects the result of an evaluation. */
function changesIn(begun: EvaluationRecord, now: EvaluationRecord): readonly string[] {
  const [was, is] = [begun, now].map((record) => new Map(flat(record.settings)));
  const settings = [...new Set([...was!.keys(), ...is!.keys()])].flatMap((name) => {
    const before = was!.get(name);
    const after = is!.get(name);
    // Values are compared by content elsewhere.
    const isValue = canBeValue(name) && (before === undefined || after === undefined);
    // Another address of an API may be another model.
    const isFree =
      mayChange(name) && !isMoved(name, begun.settings) && !(name === 'baseURL' && isApi(now.settings['engine'] as EngineName));
    if (isFree || isValue || isDeepStrictEqual(before, after)) return [];
    const what = name === 'entry' ? 'the entry' : name;
    return [`${what} was ${shown(before, name)}, now it is ${shown(after, name)}`];
  });
  const rows = begun.tasks.filter((task, i) => !isDeepStrictEqual(task, now.tasks[i])).map(({ row }) => row);
  return [
    ...settings,
    ...(rows.length === 0 ? [] : [`tasks have changed: row${rows.length === 1 ? '' : 's'} ${listed(rows)}`]),
    ...(begun.model === now.model ? [] : [`the model in ${String(now.settings['model'])} has changed`]),
    ...changedSources(begun.sources, now.sources, now.settings['entry']),
  ];
}

function identityOf({ settings, sources: _, ...record }: TrainRecord): string {
  const decisive = Object.entries(settings).filter(([name]) => !mayChange(name));
  return hash('sha256', JSON.stringify({ ...record, settings: decisive.toSorted() }), 'hex');
}

async function trainRecord(settings: TrainSettings, { entry: found, tasks, heldOut }: Checked): Promise<TrainRecord> {
  // Budgets apply to one command, not to the run.
  const { maxTime: _maxTime, maxTokens: _maxTokens, ...kept } = settings;
  return {
    settings: recorded(kept) as TrainRecord['settings'],
    tasks: digestOf([JSON.stringify(tasks)]),
    heldOut: digestOf([JSON.stringify(heldOut)]),
    ...(await madeWith(settings, found)),
  };
}

async function evaluationRecord(settings: EvaluationSettings, entry: Checked['entry'], tasks: readonly NumberedTask[]) {
  return {
    kind: 'evaluation' as const,
    settings: recorded(settings) as EvaluationRecord['settings'],
    tasks: tasks.map(({ task, number }) => ({ row: number, id: task.id, digest: digestOf([JSON.stringify(task)]) })),
    ...(await madeWith(settings, entry)),
  };
}

async function madeWith({ engine, model, entry, flows }: TrainSettings | EvaluationSettings, found: Checked['entry']) {
  return {
    // What a server has under the name may change at any time.
    model: isApi(engine) ? model : await modelDigest(model),
    sources: await sourcesOf(entry, flows, found),
    kernels: bestVariant(),
  };
}

function recorded({ run: _, ...settings }: Partial<RunSettings> & { readonly run: string | undefined }): unknown {
  const { store } = settings;
  const kept = Object.entries({ ...absolute(settings), store: store && withoutPassword(store) }).filter(
    ([name, value]) => !(canBeValue(name) && typeof value === 'object'),
  );
  return JSON.parse(JSON.stringify(Object.fromEntries(kept)));
}

/** A model behind an API is a name. The directory of the run stays as it was given. */
function absolute<T extends object>(settings: T): T {
  const isModel = !isApi('engine' in settings ? settings.engine : undefined);
  const isPath = (name: string): boolean =>
    name === 'model' ? isModel : name !== 'run' && rowOf(name)?.kind.isPath !== undefined;
  const paths = Object.entries(settings).filter(([name, value]) => isPath(name) && typeof value === 'string');
  return { ...settings, ...Object.fromEntries(paths.map(([name, path]) => [name, resolve(path)])) };
}

/** Values are not recorded; of tasks, only digests are. */
const canBeValue = (name: string): boolean => rowOf(name)?.kind.isPath === 'or value';
const mayChange = (name: string): boolean => rowOf(name)?.mayChange !== undefined;

function shown(value: unknown, setting: string): string {
  if (value === undefined) return 'not given';
  if (setting === 'store') return withoutPassword(String(value));
  return rowOf(setting)?.kind.show?.(value) ?? JSON.stringify(value);
}

function impossible(message: string, hint: string): TrainyardError {
  return new TrainyardError('RESUME_IMPOSSIBLE', message, hint);
}
