/** What the settings of a run may be. Everything wrong is said at once, before anything is opened or spent. */
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { ALGORITHMS, WEIGHTINGS } from '../trainer/advantages.ts';

const count = z.int().min(1).max(1_000_000);
const natural = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const share = z.number().min(0).max(1);
const SOME_SHARE = 'expected a share between 0 and 1, such as 0.1, so that both sides have tasks';
const positive = z.number().gt(0);
const file = z.string().min(1);
const tasks = z.union([file, z.custom((value) => isIterable(value))], 'expected a path, or a list or iterable of rows');

export const ENGINES = ['embedded', 'tinker'] as const;
export type EngineName = (typeof ENGINES)[number];

const evalShape = {
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
  maxErrorShare: share,
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

const BASE_MODEL_ALONE = {
  path: ['baseModel'],
  message: 'expected engine tinker beside it: it is the name of a model at a Tinker server',
};

const namesFlow = ({ flow, flows }: { readonly flow?: string | undefined; readonly flows?: string | undefined }): boolean =>
  flows === undefined || flow !== undefined;
const FLOW_MISSING = { path: ['flow'], message: 'expected the name of a flow of the flows file, found none' };

const evalSchema = z
  .strictObject({ ...evalShape, heldOut: tasks })
  .refine(namesFlow, FLOW_MISSING)
  .refine(({ engine, baseModel }) => engine === 'tinker' || baseModel === undefined, BASE_MODEL_ALONE);
/** An evaluation that is kept in a directory, may have several rollouts a task, and only some of the tasks. */
const evaluationSchema = z
  .strictObject({
    ...evalShape,
    heldOut: tasks,
    maxErrorShare: share,
    run: file.optional(),
    n: count,
    temperature: z.number().min(0).max(2),
    rows: z.string().optional(),
  })
  .refine(namesFlow, FLOW_MISSING)
  .refine(({ engine, baseModel }) => engine === 'tinker' || baseModel === undefined, BASE_MODEL_ALONE);
const trainSchema = z
  .strictObject({ ...evalShape, ...trainShape, heldOut: tasks.optional() })
  .refine(namesFlow, FLOW_MISSING)
  .refine(({ engine, baseModel }) => engine === 'tinker' || baseModel === undefined, BASE_MODEL_ALONE)
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
  const schema = 'steps' in settings ? trainSchema : 'n' in settings ? evaluationSchema : evalSchema;
  const result = schema.safeParse(settings);
  if (result.success) return settings;
  const problems = result.error.issues.map(({ path, message }) =>
    path.length === 0 ? message : `${path.join('.')}: ${message}`,
  );
  throw new TrainyardError('USAGE', problems.join('; '), { hint: 'docs/reference/settings.md lists every setting' });
}

/** Before anything is looked for beside it. */
export function checkEntry(entry: unknown): void {
  if (typeof entry === 'string' || (typeof entry === 'object' && entry !== null && 'workflow' in entry)) return;
  throw new TrainyardError('USAGE', `entry: expected a path or { workflow, grader? }, found ${JSON.stringify(entry)}`);
}
