/**
 * What a call of an evaluation means: settings, entry and tasks, all checked before anything is opened.
 *
 * run.json keeps everything that decides the result. An evaluation is taken up again only where all of that is still the same:
 * otherwise half of its rollouts would be of something else. All that changed is named at once.
 */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import type { Task } from '../core/types.ts';
import { bestVariant, isRunnable } from '../nn/compile.ts';
import { KERNEL_VARIANTS, type KernelVariant } from '../nn/wasm.ts';
import type { Entry } from '../rollout/discovery.ts';
import { resumeCommand } from './command-line.ts';
import { modelDigest } from './digests.ts';
import type { NumberedTask } from './evaluate.ts';
import { rowsOf } from './evaluation-rows.ts';
import { type EvaluationRequest, type EvaluationSettings, evaluationSettings } from './evaluation-settings.ts';
import { absolute, flagOf, shown } from './plan.ts';
import { preflight } from './preflight.ts';
import { isEvaluation, readRunFile } from './run-directory.ts';
import { withoutUndefined } from './settings.ts';
import { changedSources, sourcesOf } from './sources.ts';

/** An evaluation to go on with; settings that are given again must agree with it, but for those that may change. */
export type EvaluationResumeRequest = { readonly run: string } & Partial<EvaluationRequest>;

export interface EvaluationPlan {
  readonly settings: EvaluationSettings;
  readonly entry: Entry;
  /** Those that are evaluated, with their rows. */
  readonly tasks: readonly NumberedTask[];
  readonly record: EvaluationRecord;
  readonly isResumed: boolean;
  /** Those it was begun with, where the machine has them: others differ in the last bits. */
  readonly kernels: KernelVariant;
  readonly warnings: readonly { readonly code: string; readonly message: string }[];
}

/** In one evaluation; what each came to is in memory. */
const MOST_ROLLOUTS = 1_000_000;

const evaluationRecordSchema = z.object({
  kind: z.literal('evaluation'),
  settings: z.looseObject({ n: z.int().min(1).max(MOST_ROLLOUTS), temperature: z.number() }),
  tasks: z.array(z.object({ row: z.int().min(1), id: z.string(), digest: z.string() })),
  model: z.string(),
  sources: z.record(z.string(), z.string()),
  kernels: z.enum(KERNEL_VARIANTS),
});
/** Settings with paths made absolute; digests of each task, of the model and of each file of the user's code. */
export type EvaluationRecord = z.infer<typeof evaluationRecordSchema>;

/** They decide how fast it goes and what is shown, never what comes out. */
const MAY_CHANGE: ReadonlySet<string> = new Set<keyof EvaluationSettings>([
  'run',
  'threads',
  'concurrency',
  'workflowWorkers',
  'graderWorkers',
  'transcripts',
  'baseURL',
  'maxErrorShare',
]);

/** A path, or the thing itself. */
const GIVEN_AS_VALUES: ReadonlySet<string> = new Set<keyof EvaluationSettings>(['entry', 'heldOut']);

export async function planEvaluation(request: EvaluationRequest): Promise<EvaluationPlan> {
  const settings = evaluationSettings(request);
  const { entry, heldOut, warnings } = await preflight(settings);
  const tasks = rowsOf(settings.rows, heldOut.length).map((row) => ({ task: heldOut[row - 1] as Task, number: row }));
  checkSize(tasks.length, settings.n);
  const record = await recordOf(settings, entry, tasks);
  const alike = settings.n > 1 && settings.temperature === 0;
  const message = `${settings.n} rollouts of a task at temperature 0 are most likely all the same: give --temperature 1`;
  const told = [...warnings, ...(alike ? [{ code: 'SAME_ROLLOUTS', message }] : [])];
  return { settings, entry, tasks, record, isResumed: false, kernels: record.kernels, warnings: told };
}

export async function planResumedEvaluation(request: EvaluationResumeRequest): Promise<EvaluationPlan> {
  const begun = recordIn(request.run);
  const given = absolute(withoutUndefined(request));
  const merged = { ...begun.settings, ...given, run: request.run };
  if (!('entry' in merged)) {
    throw impossible(['the evaluation was begun from TypeScript'], 'give the same workflow and grader again');
  }
  if (!('heldOut' in merged))
    throw impossible(['the evaluation was begun with tasks given as values'], 'give the same tasks again');
  const settings = evaluationSettings(merged as EvaluationRequest);
  const { entry, heldOut, warnings: ofTasks } = await preflight(settings);
  const chosen = begun.tasks.flatMap(({ row }) => heldOut[row - 1] ?? []);
  const tasks = chosen.map((task, i) => ({ task, number: begun.tasks[i]?.row ?? 0 }));
  const now = await recordOf(settings, entry, tasks);
  const isWhole = settings.rows !== undefined || heldOut.length === begun.tasks.length;
  const changes = [
    ...changesIn(begun, now),
    ...(isWhole ? [] : [`the task file has ${heldOut.length} rows, it had ${begun.tasks.length}`]),
    ...(isStoreGone(request.run) ? ['store.sqlite is gone, and every rollout with it'] : []),
  ];
  if (changes.length > 0) throw impossible(changes, 'put it back as it was, or begin a new evaluation');
  const kernels = isRunnable(begun.kernels) ? begun.kernels : now.kernels;
  const message = `it was begun with the ${begun.kernels} kernels, which this machine lacks`;
  const warnings = [...ofTasks, ...(kernels === begun.kernels ? [] : [{ code: 'OTHER_KERNELS', message }])];
  return { settings, entry, tasks, record: begun, isResumed: true, kernels, warnings };
}

function checkSize(tasks: number, n: number): void {
  if (tasks * n <= MOST_ROLLOUTS) return;
  throw new TrainyardError(
    'USAGE',
    `n: expected at most ${MOST_ROLLOUTS} rollouts in all, found ${tasks} tasks × ${n} = ${tasks * n}`,
    { hint: 'give a smaller --n, or fewer --rows' },
  );
}

/** The store is made before the first event is told, so where there are events and no store, it was taken away. */
function isStoreGone(run: string): boolean {
  const size = (name: string): number => (existsSync(join(run, name)) ? statSync(join(run, name)).size : 0);
  return size('events.jsonl') > 0 && size('store.sqlite') + size('store.sqlite-wal') === 0;
}

function recordIn(run: string): EvaluationRecord {
  const found = evaluationIn(run);
  if (found !== undefined) return found;
  throw impossible([`${run} holds a training run, not an evaluation`], `go on with it: ${resumeCommand(run)}`);
}

/** What run.json says; undefined where the run trains. */
export function evaluationIn(run: string): EvaluationRecord | undefined {
  const found = readRunFile(run);
  const parsed = evaluationRecordSchema.safeParse(found);
  if (parsed.success) return parsed.data;
  if (!isEvaluation(found)) return undefined;
  const hint = 'put it back as it was, or use the version that wrote it';
  throw impossible([`${run}/run.json is damaged, or not of this version of Trainyard`], hint);
}

/** Everything that decides the result and is no longer what it was, in words. */
function changesIn(begun: EvaluationRecord, now: EvaluationRecord): readonly string[] {
  const names = new Set([...Object.keys(begun.settings), ...Object.keys(now.settings)]);
  const settings = [...names]
    .filter((name) => !MAY_CHANGE.has(name) && !GIVEN_AS_VALUES.has(name))
    .flatMap((name) => {
      const [before, after] = [begun.settings[name], now.settings[name]];
      return isDeepStrictEqual(before, after)
        ? []
        : [`${typeof before === 'object' ? name : flagOf(name)} was ${shown(before, name)}, now it is ${shown(after, name)}`];
    });
  // Where values are given again, what they hold is compared.
  const paths = [...GIVEN_AS_VALUES].flatMap((name) => {
    const [before, after] = [begun.settings[name], now.settings[name]];
    const isOther = before !== undefined && after !== undefined && before !== after;
    return isOther
      ? [`${name === 'entry' ? 'the entry' : flagOf(name)} was ${shown(before, name)}, now it is ${shown(after, name)}`]
      : [];
  });
  return [
    ...settings,
    ...paths,
    ...changedTasks(begun, now),
    ...(begun.model === now.model ? [] : [`the model in ${String(now.settings['model'])} has changed`]),
    ...changedSources(begun.sources, now.sources, now.settings['entry']),
  ];
}

function changedTasks({ tasks: before }: EvaluationRecord, { tasks: after }: EvaluationRecord): readonly string[] {
  const rows = before.filter((task, i) => !isDeepStrictEqual(task, after[i])).map(({ row }) => row);
  const first = rows.slice(0, 5).join(', ');
  if (rows.length === 0) return [];
  return [
    `tasks have changed: row${rows.length === 1 ? '' : 's'} ${first}${rows.length > 5 ? ` and ${rows.length - 5} more` : ''}`,
  ];
}

async function recordOf(settings: EvaluationSettings, entry: Entry, tasks: readonly NumberedTask[]): Promise<EvaluationRecord> {
  const { run: _, entry: given, heldOut, ...kept } = absolute(settings);
  // A record has no place for values; of tasks it has the digests.
  const named = Object.fromEntries(Object.entries({ entry: given, heldOut }).filter(([, value]) => typeof value === 'string'));
  return {
    kind: 'evaluation',
    settings: JSON.parse(JSON.stringify({ ...named, ...kept })) as EvaluationRecord['settings'],
    tasks: tasks.map(({ task, number }) => ({ row: number, id: task.id, digest: digestOf([JSON.stringify(task)]) })),
    model: await modelDigest(settings.model),
    sources: await sourcesOf(given, settings.flows, entry),
    kernels: bestVariant(),
  };
}

function impossible(changes: readonly string[], hint: string): TrainyardError {
  const message =
    changes.length === 1 ? (changes[0] ?? '') : `${changes.length} things are not as they were: ${changes.join('; ')}`;
  return new TrainyardError('RESUME_IMPOSSIBLE', message, { hint });
}
