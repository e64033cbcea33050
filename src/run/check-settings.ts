/**
 * From what a caller gives to the settings of a run: defaults filled in, task files found beside the entry, everything wrong said at once
 * before anything is opened or spent.
 */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { ALGORITHMS, WEIGHTINGS } from '../trainer/advantages.ts';
import {
  BASE_MODEL,
  ENGINES,
  type EngineName,
  EVAL_DEFAULTS,
  type EvaluationRequest,
  type EvaluationSettings,
  TRAIN_DEFAULTS,
  type TrainRequest,
  type TrainSettings,
  usualHeldOut,
  usualRun,
  usualTasks,
  withoutUndefined,
} from './settings.ts';

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
    ...withoutUndefined(request),
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
    ...withoutUndefined(request),
    engine,
    baseURL: baseURLOf(engine, request),
    tasks: request.tasks ?? usualTasks(request.entry),
    heldOut: request.heldOut ?? (request.split === undefined && existsSync(found) ? found : undefined),
    run: request.run ?? usualRun(request.entry),
    model: resolve(request.model ?? BASE_MODEL),
  });
}

/** A checkpoint whose weights are on a Tinker server can be used nowhere else. */
function engineOf({ engine, model }: Partial<Pick<TrainSettings, 'engine' | 'model'>>): EngineName {
  const chosen = engine ?? (model !== undefined && existsSync(join(model, 'tinker.json')) ? 'tinker' : EVAL_DEFAULTS.engine);
  if (chosen === 'tinker' && model === undefined) {
    throw new TrainyardError('USAGE', 'model: expected the folder of the model at the Tinker server, found none', {
      hint: 'give --model a folder with its config.json, tokenizer.json and tokenizer_config.json',
    });
  }
  return chosen;
}

/** The environment's, where none was given: so that the run remembers where it was begun. */
export function baseURLOf(engine: EngineName, { baseURL }: { readonly baseURL?: string | undefined }): string | undefined {
  return engine === 'tinker' ? (baseURL ?? (process.env['TINKER_BASE_URL'] || undefined)) : baseURL;
}

const count = z.int().min(1).max(1_000_000);
const natural = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const share = z.number().min(0).max(1);
const SOME_SHARE = 'expected a share between 0 and 1, such as 0.1, so that both sides have tasks';
const positive = z.number().gt(0);
const file = z.string().min(1);
const tasks = z.union([file, z.custom((value) => isIterable(value))], 'expected a path, or a list or iterable of rows');

const runShape = {
  entry: z.union([file, z.looseObject({ workflow: z.unknown(), grader: z.unknown().optional() })]),
  flow: z.string().min(1).optional(),
  flows: file.optional(),
  engine: z.enum(ENGINES),
  model: file,
  baseModel: z.string().min(1).optional(),
  baseURL: z.url({ protocol: /^https?$/ }).optional(),
  loraRank: z.int().min(1).max(1024),
  seed: natural,
  concurrency: count,
  threads: z.int().min(1).max(256),
  limits: z.strictObject({ turns: count, tokens: count, deadlineMs: z.int().min(1) }),
  callTokens: count,
  workflowWorkers: z.int().min(1).max(256),
  graderWorkers: z.int().min(1).max(256),
  graderDeadlineMs: z.int().min(1),
  graderRetries: z.int().min(0).max(100),
  graderMemoryMb: z.int().min(64).max(1_048_576),
  transcripts: natural,
  trainable: z.array(z.string().min(1)).min(1).optional(),
  maxErrorShare: share,
};

const trainShape = {
  run: file,
  tasks,
  minTasks: count,
  split: z.number().gt(0, SOME_SHARE).lt(1, SOME_SHARE).optional(),
  steps: count,
  group: count.min(2, 'expected at least 2: a rollout is compared with the others of its group'),
  groupsPerStep: count,
  refill: count,
  staleness: z.int().min(0).max(1000),
  temperature: z.number().min(0.01).max(2),
  algorithm: z.enum(ALGORITHMS),
  weighting: z.enum(WEIGHTINGS),
  turnDiscount: share.optional(),
  learningRate: positive.max(1),
  warmupSteps: z.int().min(0),
  adam: z.strictObject({
    beta1: share,
    beta2: share,
    epsilon: positive,
    weightDecay: z.number().min(0),
    maxGradNorm: z.number().min(0),
  }),
  clipLow: share,
  clipHigh: z.number().min(0),
  kl: z.number().min(0).max(1000),
  evalEvery: natural,
  evalTasks: count,
  patience: natural,
  checkpointEvery: count,
  maxTime: z.number('expected seconds').gt(0).optional(),
  maxTokens: positive.optional(),
};

interface Shared {
  readonly flow?: string | undefined;
  readonly flows?: string | undefined;
  readonly engine: EngineName;
  readonly baseModel?: string | undefined;
}

/** What every run's settings must be beside each other. */
function consistent<T extends z.ZodType<Shared>>(schema: T): T {
  return schema
    .refine(({ flow, flows }) => flows === undefined || flow !== undefined, {
      path: ['flow'],
      message: 'expected the name of a flow of the flows file, found none',
    })
    .refine(({ engine, baseModel }) => engine === 'tinker' || baseModel === undefined, {
      path: ['baseModel'],
      message: 'expected engine tinker beside it: it is the name of a model at a Tinker server',
    });
}

const evaluationSchema = consistent(
  z.strictObject({
    ...runShape,
    heldOut: tasks,
    run: file.optional(),
    n: count,
    temperature: z.number().min(0).max(2),
    rows: z.string().optional(),
  }),
);
const trainSchema = consistent(z.strictObject({ ...runShape, ...trainShape, heldOut: tasks.optional() }))
  .refine(({ algorithm, weighting }) => algorithm !== 'dr-grpo' || weighting === 'tokens', {
    path: ['weighting'],
    message: 'expected tokens with dr-grpo: it divides by a constant of its own',
  })
  .refine(({ patience, evalEvery }) => patience === 0 || evalEvery > 0, {
    path: ['patience'],
    message: 'expected evaluations on the way to count, found evalEvery 0',
  })
  .refine(({ engine, temperature }) => engine === 'embedded' || temperature === 1, {
    path: ['temperature'],
    message: 'expected 1 with a Tinker server: it scores tokens at temperature 1, whatever they were sampled at',
  })
  .refine(({ split, heldOut }) => split === undefined || heldOut === undefined, {
    path: ['split'],
    message: 'expected either a share to hold out or held-out tasks, found both',
  })
  .refine(({ patience, heldOut, split }) => patience === 0 || heldOut !== undefined || split !== undefined, {
    path: ['patience'],
    message: 'expected held-out tasks to evaluate on, found none',
  });

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value);
}

/** The settings as they are, or USAGE. */
export function checkSettings<T extends object>(settings: T): T {
  const schema = 'steps' in settings ? trainSchema : evaluationSchema;
  const result = schema.safeParse(settings);
  if (result.success) return settings;
  const problems = result.error.issues.map(({ path, message }) =>
    path.length === 0 ? message : `${path.join('.')}: ${message}`,
  );
  throw new TrainyardError('USAGE', problems.join('; '), { hint: 'docs/reference/settings.md lists every setting' });
}

/** Before anything is looked for beside it. */
function checkEntry(entry: unknown): void {
  if (typeof entry === 'string' || (typeof entry === 'object' && entry !== null && 'workflow' in entry)) return;
  throw new TrainyardError('USAGE', `entry: expected a path or { workflow, grader? }, found ${JSON.stringify(entry)}`);
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
  const sorted = found.filter((range) => typeof range !== 'string').toSorted(([a], [b]) => a - b);
  const merged: Range[] = [];
  for (const [first, last] of sorted) {
    const before = merged.at(-1);
    if (before !== undefined && first <= before[1] + 1) merged[merged.length - 1] = [before[0], Math.max(before[1], last)];
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
