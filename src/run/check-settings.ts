/**
 * The settings of a run: what they mean and may be, and how they come from what a caller gives. Defaults are filled in, task files found
 * beside the entry, and everything wrong is said at once before anything is opened or spent. docs/reference/settings.md explains each.
 */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import type { Unusual } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { TaskSource } from '../dataset/rows.ts';
import type { Entry } from '../rollout/discovery.ts';
import { ALGORITHMS, WEIGHTINGS } from '../trainer/advantages.ts';
import { BASE_MODEL, ENGINES, EVAL_DEFAULTS, TRAIN_DEFAULTS, usualHeldOut, usualRun, usualTasks } from './settings.ts';

const count = z.int().min(1).max(1_000_000);
const natural = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const share = z.number().min(0).max(1);
const SOME_SHARE = 'expected a share between 0 and 1, such as 0.1, so that both sides have tasks';
const positive = z.number().gt(0);
const file = z.string().min(1);
const workers = z.int().min(1).max(256);
/** A file, or the rows. */
const tasks = z.custom<TaskSource>(
  (value) => (typeof value === 'string' ? value !== '' : isIterable(value)),
  'expected a path, or a list or iterable of rows',
);
const isEntry = (value: unknown): boolean => typeof value === 'object' && value !== null && 'workflow' in value;

/** What trainings and evaluations have in common. */
const runShape = {
  /** Path of the module that exports the workflow and the grader, or the two themselves (the grader then cannot be killed). */
  entry: z.union([file, z.custom<Entry>(isEntry)]),
  /** The flow that is the workflow, by its name; then the entry may hold the grader alone, or be the flows file. */
  flow: file.optional(),
  /** The file that lists flows. */
  flows: file.optional(),
  /** Where the policy is sampled and trained: in this process, or on a server of the Tinker API. */
  engine: z.enum(ENGINES),
  /** Model folder: config.json, tokenizer.json, tokenizer_config.json and, for the embedded engine, model.safetensors. */
  model: file,
  /** The server's name for the model in `model`; undefined: what a checkpoint says, or the only one it has. */
  baseModel: file.optional(),
  /** Of the Tinker server; undefined: TINKER_BASE_URL. */
  baseURL: z.url({ protocol: /^https?$/ }).optional(),
  /** Rank of the adapter that a Tinker server trains. */
  loraRank: z.int().min(1).max(1024),
  seed: natural,
  /** Rollouts at once. */
  concurrency: count,
  /** Threads of the embedded policy. */
  threads: workers,
  limits: z.strictObject({ turns: count, tokens: count, deadlineMs: z.int().min(1) }),
  /** Most tokens one model call may sample. */
  callTokens: count,
  /** Processes of a workflow with isolation 'process', and so its rollouts at once. */
  workflowWorkers: workers,
  graderWorkers: workers,
  graderDeadlineMs: z.int().min(1),
  /** How often a grading that failed is tried again, where the grader says nothing else. */
  graderRetries: z.int().min(0).max(100),
  /** Of one process that grades, with all it starts. */
  graderMemoryMb: z.int().min(64).max(1_048_576),
  /** Held-out conversations to keep for showing. */
  transcripts: natural,
  /** Roles to train, whatever the workflow says; undefined: those it says. In an evaluation: the roles that the policy plays. */
  trainable: z.array(file).min(1).readonly().optional(),
  /** Share of gradings that may fail before the run ends; judged over 64 or more. */
  maxErrorShare: share,
};

const evaluationShape = {
  /** Tasks that are evaluated. */
  heldOut: tasks,
  /** Directory it is kept in; undefined: nothing is kept, and it cannot be resumed. */
  run: file.optional(),
  /** Rollouts per task. */
  n: count,
  temperature: z.number().min(0).max(2),
  /** Rows of the task file, such as 3,7,10-20; undefined: all. */
  rows: z.string().optional(),
};

const trainShape = {
  run: file,
  /** Tasks to train on. */
  tasks,
  /** Fewer tasks are refused. */
  minTasks: count,
  /** Without them, and without `split`, nothing is evaluated. */
  heldOut: tasks.optional(),
  /** The share of `tasks` that is held out instead. */
  split: z.number().gt(0, SOME_SHARE).lt(1, SOME_SHARE).optional(),
  steps: count,
  /** Rollouts per group. */
  group: count.min(2, 'expected at least 2: a rollout is compared with the others of its group'),
  /** Groups with signal per step. */
  groupsPerStep: count,
  /** A step gives up filling after this many times `groupsPerStep` groups. */
  refill: count,
  /** Policy versions that may lie between sampling and training: 0 is synchronous, more lets rollouts run ahead of the trainer. */
  staleness: z.int().min(0).max(1000),
  /** Temperature for training; evaluation is at 0. */
  temperature: z.number().min(0.01).max(2),
  /** How rewards become advantages. */
  algorithm: z.enum(ALGORITHMS),
  /** What counts alike in a step: every trained token, or every rollout. */
  weighting: z.enum(WEIGHTINGS),
  /** How much of what later turns earn counts for an earlier one, where the workflow does not say; undefined: rewards hold as given. */
  turnDiscount: share.optional(),
  learningRate: positive.max(1),
  /** The learning rate falls linearly to a tenth of its value; over these first steps it is also scaled up from near zero. */
  warmupSteps: z.int().min(0),
  adam: z.strictObject({
    ...{ beta1: share, beta2: share, epsilon: positive },
    ...{ weightDecay: z.number().min(0), maxGradNorm: z.number().min(0) },
  }),
  clipLow: share,
  clipHigh: z.number().min(0),
  /** Coefficient of the KL penalty against the policy that training began with. 0: none. */
  kl: z.number().min(0).max(1000),
  /** Steps between evaluations on `evalTasks` held-out tasks. 0: only before and after. */
  evalEvery: natural,
  evalTasks: count,
  /** Evaluations without a new best after which training ends. 0: never. */
  patience: natural,
  /** Steps between checkpoints. What lies between two is computed again from the store when a run is resumed. */
  checkpointEvery: count,
  /** Seconds after which no further step is begun. */
  maxTime: z.number('expected seconds').gt(0).optional(),
  /** Sampled tokens after which no further step is begun. */
  maxTokens: positive.optional(),
};

const runSchema = z.strictObject(runShape);
const evaluationSchema = z.strictObject({ ...runShape, ...evaluationShape });
const trainSchema = z.strictObject({ ...runShape, ...trainShape });

export type RunSettings = Readonly<Required<z.infer<typeof runSchema>>>;
export type EvaluationSettings = Readonly<Required<z.infer<typeof evaluationSchema>>>;
export type TrainSettings = Readonly<Required<z.infer<typeof trainSchema>>>;
/** What a caller gives; the rest has defaults. */
export type EvaluationRequest = Pick<EvaluationSettings, 'entry'> & Partial<EvaluationSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Partial<TrainSettings>;

/** What settings may not be beside each other. */
function conflictsIn(settings: EvaluationSettings | TrainSettings): readonly (string | false)[] {
  const { flow, flows, engine, baseModel } = settings;
  return [
    flows !== undefined && flow === undefined && 'flow: expected the name of a flow of the flows file, found none',
    engine === 'embedded' &&
      baseModel !== undefined &&
      'baseModel: expected engine tinker beside it: it is the name of a model at a Tinker server',
    ...('steps' in settings ? conflictsInTraining(settings) : []),
  ];
}

function conflictsInTraining(settings: TrainSettings): readonly (string | false)[] {
  const { engine, temperature, algorithm, weighting, patience, evalEvery, split, heldOut } = settings;
  const isWeighted = algorithm === 'dr-grpo' && weighting !== 'tokens';
  const isScoredAtOne = engine === 'tinker' && temperature !== 1;
  const isMeasured = heldOut !== undefined || split !== undefined;
  return [
    isWeighted && 'weighting: expected tokens with dr-grpo: it divides by a constant of its own',
    patience > 0 && evalEvery === 0 && 'patience: expected evaluations on the way to count, found evalEvery 0',
    isScoredAtOne &&
      'temperature: expected 1 with a Tinker server: it scores tokens at temperature 1, whatever they were sampled at',
    split !== undefined && heldOut !== undefined && 'split: expected either a share to hold out or held-out tasks, found both',
    patience > 0 && !isMeasured && 'patience: expected held-out tasks to evaluate on, found none',
  ];
}

/** Tinker's own: gradients of large models are small, and some servers also average what ours adds up. */
const TINKER_EPSILON = 1e-12;

export function evaluationSettings(request: EvaluationRequest): EvaluationSettings {
  checkEntry(request.entry);
  const { n = 1, run, rows } = request;
  const engine = engineOf(request);
  return checkSettings({
    ...EVAL_DEFAULTS,
    // Several rollouts of a task are to differ; a single one is to be the policy's best guess.
    temperature: n > 1 ? 1 : 0,
    ...defined(request),
    entry: request.entry,
    n,
    run,
    rows: rows === undefined ? undefined : tidyRows(rows),
    engine,
    baseURL: baseURLOf(engine, request),
    heldOut: request.heldOut ?? usualHeldOut(request.entry),
  });
}

/** Without `heldOut` or `split`, and without a held-out.jsonl beside the entry, nothing is evaluated. */
export function trainSettings(request: TrainRequest): TrainSettings {
  checkEntry(request.entry);
  const found = usualHeldOut(request.entry);
  const engine = engineOf(request);
  return checkSettings({
    ...TRAIN_DEFAULTS,
    ...(engine === 'tinker' && { adam: { ...TRAIN_DEFAULTS.adam, epsilon: TINKER_EPSILON } }),
    ...defined(request),
    entry: request.entry,
    engine,
    baseURL: baseURLOf(engine, request),
    tasks: request.tasks ?? usualTasks(request.entry),
    heldOut: request.heldOut ?? (request.split === undefined && existsSync(found) ? found : undefined),
    run: request.run ?? usualRun(request.entry),
    model: resolve(request.model ?? BASE_MODEL),
  });
}

/** A checkpoint whose weights are on a Tinker server can be used nowhere else. */
function engineOf({ engine, model }: Partial<TrainSettings | EvaluationSettings>): RunSettings['engine'] {
  const chosen = engine ?? (model !== undefined && existsSync(join(model, 'tinker.json')) ? 'tinker' : EVAL_DEFAULTS.engine);
  if (chosen === 'tinker' && model === undefined) {
    throw new TrainyardError('USAGE', 'model: expected the folder of the model at the Tinker server, found none', {
      hint: 'give --model a folder with its config.json, tokenizer.json and tokenizer_config.json',
    });
  }
  return chosen;
}

/** The environment's, where none was given: so that the run remembers where it was begun. */
export function baseURLOf(
  engine: RunSettings['engine'],
  { baseURL }: { readonly baseURL?: string | undefined },
): string | undefined {
  return engine === 'tinker' ? (baseURL ?? (process.env['TINKER_BASE_URL'] || undefined)) : baseURL;
}

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value);
}

/** The settings as they are, or USAGE. */
export function checkSettings<T extends EvaluationSettings | TrainSettings>(settings: T): T {
  const { error } = ('steps' in settings ? trainSchema : evaluationSchema).safeParse(settings);
  const problems =
    error?.issues.map(({ path, message }) => (path.length === 0 ? message : `${path.join('.')}: ${message}`)) ??
    conflictsIn(settings).filter((problem) => problem !== false);
  if (problems.length === 0) return settings;
  throw new TrainyardError('USAGE', problems.join('; '), { hint: 'docs/reference/settings.md lists every setting' });
}

/** Before anything is looked for beside it. */
function checkEntry(entry: unknown): void {
  if (typeof entry === 'string' || isEntry(entry)) return;
  throw new TrainyardError('USAGE', `entry: expected a path or { workflow, grader? }, found ${JSON.stringify(entry)}`);
}

/**
 * Where a run keeps held-out tasks that are in no file of their own, because they were split off or given as values, so that its models can
 * be measured on them again. Undefined where there is a file, or nothing is held out.
 */
export function heldOutFileOf({ run, heldOut, split }: Pick<TrainSettings, 'run' | 'heldOut' | 'split'>): string | undefined {
  return split !== undefined || typeof heldOut === 'object' ? join(run, 'held-out.jsonl') : undefined;
}

/** What has to be said again to measure as this run did. */
export function unusualIn(settings: TrainSettings): Unusual {
  const { flow, flows, entry, trainable, limits } = settings;
  const heldOut = heldOutFileOf(settings) ?? settings.heldOut;
  return defined({
    ...{ flow, flows, trainable },
    heldOut: typeof heldOut === 'string' && heldOut !== usualHeldOut(entry) ? heldOut : undefined,
    turns: limits.turns === EVAL_DEFAULTS.limits.turns ? undefined : limits.turns,
  });
}

type Range = readonly [first: number, last: number];

/** Rows of a task file, `3,7,10-20` counted from 1, in one way of writing: sorted, each once. Throws USAGE, with all that is wrong. */
export function tidyRows(text: string): string {
  const ranges = rangesIn(text);
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
}

/** Row numbers, ascending. Throws USAGE where the file has fewer rows. */
export function rowsOf(text: string | undefined, rows: number): readonly number[] {
  const ranges = text === undefined ? ([[1, rows]] as const) : rangesIn(text);
  const last = ranges.at(-1)?.[1] ?? 0;
  if (last > rows) {
    throw new TrainyardError('USAGE', `rows: expected rows from 1 to ${rows}, the last of the file, found ${last}`, {
      hint: 'give --rows numbers and ranges such as 3,7,10-20',
    });
  }
  return ranges.flatMap(([first, end]) => Array.from({ length: end - first + 1 }, (_, i) => first + i));
}

/** Ascending, without overlaps. */
function rangesIn(text: string): readonly Range[] {
  const found = text.split(',').map((part) => rangeIn(part.trim()));
  const problems = found.filter((range) => typeof range === 'string');
  if (problems.length > 0) {
    throw new TrainyardError('USAGE', `rows: ${problems.join('; ')}`, {
      hint: 'give --rows numbers and ranges from 1, such as 3,7,10-20',
    });
  }
  const merged: [number, number][] = [];
  for (const [first, last] of (found as Range[]).toSorted(([a], [b]) => a - b)) {
    const before = merged.at(-1);
    if (before !== undefined && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else merged.push([first, last]);
  }
  return merged;
}

function rangeIn(part: string): Range | string {
  const parsed = /^(\d{1,15})(?:\s*-\s*(\d{1,15}))?$/.exec(part);
  if (parsed === null) return `expected a row or a range of rows, found ${JSON.stringify(part)}`;
  const first = Number(parsed[1]);
  const last = Number(parsed[2] ?? parsed[1]);
  if (first === 0) return `rows are counted from 1, found ${JSON.stringify(part)}`;
  return first > last ? `${first} to ${last} is the wrong way round` : [first, last];
}
